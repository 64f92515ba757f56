"""Starts sandboxes and containers as ``startContainer`` does: image, attempt, create, start, symlink, postStart."""

import asyncio
import re
from dataclasses import dataclass
from pathlib import Path

import structlog

from agent.cri import errors
from common.pb.runtime.v1 import api_pb2 as cri
from hack.devnode.kubelet import config, hooks
from hack.devnode.kubelet.devices import DeviceManager
from hack.devnode.kubelet.environment import UnsupportedFieldError
from hack.devnode.kubelet.observed import Runtime
from hack.devnode.kubelet.runtime import CriRuntime
from hack.devnode.kubelet.settings import Settings
from hack.devnode.kubelet.spec import Container, Pod
from hack.devnode.kubelet.statuses import StartFailure
from hack.devnode.kubelet.volumes import PodDirectories

log = structlog.get_logger(__name__)

_LOG_FILE = re.compile(r"(?P<count>\d+)\.log(?:\..*)?")
_HOOK_TIMEOUT = 600


class StartFailedError(Exception):
    """A container could not be started; ``failure`` is what its status will say."""

    def __init__(self, failure: StartFailure) -> None:
        super().__init__(f"{failure.reason}: {failure.message}")
        self.failure = failure


@dataclass(frozen=True, slots=True)
class Nest:
    """The sandbox that containers are started in, and what they share."""

    id: str
    sandbox: cri.PodSandboxConfig
    ip: str
    volumes: dict[str, Path]


@dataclass(frozen=True, slots=True)
class Launcher:
    """Starts what the rules have decided."""

    runtime: CriRuntime
    settings: Settings
    directories: PodDirectories
    devices: DeviceManager

    def sandbox_config(self, pod: Pod, *, attempt: int) -> cri.PodSandboxConfig:
        """Return the config of the pod's sandbox."""
        return config.sandbox_config(
            pod, attempt=attempt, pod_logs=self.settings.pod_logs_dir, cgroup_root=self.settings.cgroup_root
        )

    async def sandbox(self, pod: Pod, *, attempt: int) -> str:
        """Create and start a sandbox; return its id."""
        directory = config.pod_log_directory(self.settings.pod_logs_dir, pod)
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        return await self.runtime.run_sandbox(self.sandbox_config(pod, attempt=attempt))

    async def start(self, container: Container, *, pod: Pod, shown: Runtime, nest: Nest) -> str:
        """Start one container and return its id. Raises StartFailedError."""
        attempt = self._attempt(container, pod=pod, shown=shown)
        wanted = await self._config(container, pod=pod, nest=nest, attempt=attempt)
        try:
            container_id = await self.runtime.create(sandbox_id=nest.id, wanted=wanted, sandbox=nest.sandbox)
        except errors.CriError as error:
            raise StartFailedError(StartFailure("CreateContainerError", error.what)) from error
        try:
            await self.runtime.start(container_id)
        except errors.CriError as error:
            raise StartFailedError(StartFailure("RunContainerError", error.what)) from error
        log.info("container.started", pod=str(pod), container=container.name, attempt=attempt, id=container_id)
        self._symlink(container, pod=pod, container_id=container_id, attempt=attempt)
        await self._post_start(container, pod=pod, container_id=container_id)
        return container_id

    def _attempt(self, container: Container, *, pod: Pod, shown: Runtime) -> int:
        """One more than the newest container's; where there is none, one more than the newest log file's."""
        newest = shown.newest(container.name)
        if newest is not None:
            return newest.restart_count + 1
        directory = config.pod_log_directory(self.settings.pod_logs_dir, pod) / container.name
        if not directory.is_dir():
            return 0
        matches = (_LOG_FILE.match(path.name) for path in directory.iterdir() if path.is_file())
        return max((int(match["count"]) + 1 for match in matches if match is not None), default=0)

    async def _config(self, container: Container, *, pod: Pod, nest: Nest, attempt: int) -> cri.ContainerConfig:
        try:
            image_ref = await self.runtime.image_ref(container.image)
            if image_ref is None:
                message = f'Container image "{container.image}" is not present: this kubelet stand-in pulls nothing'
                raise StartFailedError(StartFailure("ErrImageNeverPull", message))
            directory = config.pod_log_directory(self.settings.pod_logs_dir, pod) / container.name
            await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
            launch = config.Launch(
                attempt=attempt,
                image_ref=image_ref,
                mounts=self.directories.mounts(container, pod=pod, volumes=nest.volumes),
                pod_ip=nest.ip,
                host_ip=self.settings.host_ip,
                device_environment=self.devices.environment(pod, container),
            )
            return config.container_config(container, pod=pod, launch=launch)
        except (UnsupportedFieldError, KeyError, ValueError) as error:
            raise StartFailedError(StartFailure("CreateContainerConfigError", str(error))) from error
        except errors.CriError as error:
            raise StartFailedError(StartFailure("ImageInspectError", error.what)) from error

    def _symlink(self, container: Container, *, pod: Pod, container_id: str, attempt: int) -> None:
        """The legacy log link that log shippers follow (``/var/log/containers``)."""
        if self.settings.log_symlinks is None:
            return
        target = config.pod_log_directory(self.settings.pod_logs_dir, pod) / container.name / f"{attempt}.log"
        if target.exists():
            link = self.settings.log_symlinks / f"{pod.name}_{pod.namespace}_{container.name}-{container_id}.log"
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to(target)

    async def _post_start(self, container: Container, *, pod: Pod, container_id: str) -> None:
        hook = container.hook("postStart")
        if hook is None:
            return
        try:
            await hooks.run(hook, runtime=self.runtime, container_id=container_id, timeout=_HOOK_TIMEOUT)
        except hooks.HookFailedError as error:
            await self.runtime.stop(container_id, grace=max(hooks.MIN_GRACE, pod.grace_seconds))
            raise StartFailedError(StartFailure("PostStartHookError", str(error))) from error
