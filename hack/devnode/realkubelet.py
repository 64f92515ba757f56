"""A real kubelet, kept inside one dev node: own directories, own cgroup, own mounts.

It gets a mount namespace of its own in which /var/lib and /var/log are empty (it insists on /var/lib/kubelet and
/var/log/containers), and in which the kernel parameters that it would set on this machine seem to be set already.
Volumes that need a mount (secret, projected, emptyDir in memory) do not reach the containers for the same reason.

Made-up GPUs come from a device plugin of ours, a process of its own (``hack.devnode.deviceplugin``).
"""

import asyncio
import contextlib
import os
import resource
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import yaml

from hack.devnode import kubernetes, layout, processes
from hack.devnode.kubelet import cleanup, process

_CGROUPS = Path("/sys/fs/cgroup")
# What it insists on (pkg/kubelet/cm ``setupKernelTunables``).
_SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
_STOP_SECONDS = 15.0


def missing(environ: Mapping[str, str] = os.environ) -> str:
    """Return why there is no real kubelet on this machine, or "" when there is one."""
    return kubernetes.missing("kubelet", environ=environ)


class RealKubelet:
    """kubelet as a process; a KubeletProcess. ``config`` is merged over its KubeletConfiguration."""

    def __init__(
        self,
        where: layout.NodeLayout,
        *,
        kubeconfig: Path,
        node_name: str,
        devices: Sequence[str] = (),
        config: Mapping[str, Any] | None = None,
        dies_with_us: bool = True,
    ) -> None:
        self.node_name = node_name
        self._dies_with_us = dies_with_us
        self._where = where
        self._kubeconfig = kubeconfig
        self._devices = tuple(devices)
        self._config = dict(config or {})
        self._child: processes.Child | None = None
        self._plugin: processes.Child | None = None

    @property
    def pod_resources_socket(self) -> Path:
        """Where it serves the pod-resources API."""
        return self._where.kubelet_root / "pod-resources" / "kubelet.sock"

    @property
    def control(self) -> None:
        """Nobody tells a real kubelet when to look."""
        return

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        await asyncio.to_thread(cleanup.remove_cgroup, self._where.cgroup_parent)

    async def start(self) -> None:
        """Start it and wait until the node is Ready. Raises processes.ProcessError."""
        await asyncio.to_thread(self._prepare)
        log = self._where.log_file("kubelet")
        self._child = processes.Child.start(
            ["unshare", "--mount", "--propagation", "private", "sh", "-euc", self._script()],
            name="kubelet",
            log=log,
            pid_file=self._where.pid_file("kubelet"),
            dies_with_us=self._dies_with_us,
        )
        try:
            await process.wait_until_ready(self, kubeconfig=self._kubeconfig, child=self._child, log=log)
            if self._devices:  # not sooner: a kubelet that starts removes the sockets of plugins
                self._plugin = self._start_plugin()
                await process.wait_until_ready(
                    self, kubeconfig=self._kubeconfig, child=self._child, log=log, devices=len(self._devices)
                )
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End it; its containers go on running."""
        await self._end(grace=_STOP_SECONDS)

    async def kill(self) -> None:
        """End it by SIGKILL."""
        await self._end(grace=0)

    async def _end(self, *, grace: float) -> None:
        for child in (self._plugin, self._child):
            if child is not None:
                await child.stop(grace=grace)
        self._plugin = self._child = None

    def _start_plugin(self) -> processes.Child:
        directory = self._var_lib / "device-plugins"
        flags = [f"--directory={directory}", *(f"--device={item}" for item in self._devices)]
        return processes.Child.start(
            [sys.executable, "-m", "hack.devnode.deviceplugin", *flags],
            name="device plugin",
            log=self._where.log_file("deviceplugin"),
            pid_file=self._where.pid_file("deviceplugin"),
            environment=process.source_environment(),
            dies_with_us=self._dies_with_us,
        )

    def configuration(self) -> dict[str, Any]:
        """Return its KubeletConfiguration."""
        where = self._where
        return {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "containerRuntimeEndpoint": f"unix://{where.containerd_socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": where.cgroup_parent,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "podLogsDir": str(where.pod_logs),
            "enableServer": False,
            "readOnlyPort": 0,
            "healthzPort": 0,
            "makeIPTablesUtilChains": False,
            "authentication": {"anonymous": {"enabled": True}, "webhook": {"enabled": False}},
            "authorization": {"mode": "AlwaysAllow"},
            "nodeStatusUpdateFrequency": "2s",
            "imageGCHighThresholdPercent": 100,
            "imageGCLowThresholdPercent": 99,
            "imageMaximumGCAge": "0s",
            "evictionHard": dict.fromkeys(_EVICTION_SIGNALS, "0%"),
            "localStorageCapacityIsolation": False,
            "volumePluginDir": str(where.kubelet_root / "volume-plugins"),
            "resolvConf": "",
            "oomScoreAdj": 0,
            "maxOpenFiles": resource.getrlimit(resource.RLIMIT_NOFILE)[1],  # more needs CAP_SYS_RESOURCE
            **self._config,
        }

    @property
    def _config_file(self) -> Path:
        return self._where.root / "kubelet.yaml"

    def _prepare(self) -> None:
        where = self._where
        for path in (where.kubelet_root, where.pod_logs, where.container_log_links, self._var_lib):
            path.mkdir(parents=True, exist_ok=True)
        self._config_file.write_text(yaml.safe_dump(self.configuration(), sort_keys=False))
        for key, value in _SYSCTLS.items():
            path = self._sysctls / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"{value}\n")
        _make_cgroup(where.cgroup_parent)

    @property
    def _sysctls(self) -> Path:
        return self._where.root / "sysctls"

    @property
    def _var_lib(self) -> Path:
        """What it sees as /var/lib/kubelet: device plugins register there, whatever its root directory is."""
        return self._where.root / "var-lib-kubelet"

    def _script(self) -> str:
        binds = {"/var/lib/kubelet": self._var_lib, "/var/log/containers": self._where.container_log_links}
        command = [
            str(kubernetes.program("kubelet")),
            f"--config={self._config_file}",
            f"--kubeconfig={self._kubeconfig}",
            f"--root-dir={self._where.kubelet_root}",
            f"--cert-dir={self._where.kubelet_root / 'pki'}",
            f"--hostname-override={self.node_name}",
            f"--node-ip={self._where.gateway}",  # it refuses a loopback address
        ]
        return "\n".join(
            [
                *(f"mount --bind {shlex.quote(str(self._sysctls / key))} /proc/sys/{key}" for key in _SYSCTLS),
                *(f"mount -t tmpfs tmpfs {Path(target).parent}" for target in binds),
                *(
                    f"mkdir {target} && mount --bind {shlex.quote(str(path))} {target}"
                    for target, path in binds.items()
                ),
                "mount --make-rshared /",
                f"exec {shlex.join(command)}",
            ]
        )


_EVICTION_SIGNALS = (
    "memory.available", "nodefs.available", "nodefs.inodesFree", "imagefs.available", "imagefs.inodesFree",
)  # fmt: skip


def _make_cgroup(name: str) -> None:
    """Make kubelet's cgroup in every hierarchy: it wants to find its root there, and a usable cpuset (cgroup v1)."""
    hierarchies = [path for path in _CGROUPS.iterdir() if path.is_dir() and not path.is_symlink()]
    if (_CGROUPS / "cgroup.controllers").exists():
        hierarchies = [_CGROUPS]
    for hierarchy in hierarchies:
        cgroup = hierarchy / name.lstrip("/")
        cgroup.mkdir(parents=True, exist_ok=True)
        for key in ("cpuset.cpus", "cpuset.mems"):
            with contextlib.suppress(FileNotFoundError):
                (cgroup / key).write_text((hierarchy / key).read_text())
