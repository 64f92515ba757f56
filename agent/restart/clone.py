"""Make the successor's config from the old container's own. Pure.

The runtime returns the config as Go's JSON (``ContainerStatus(verbose)``, ``info.config``), not protobuf's. Everything
is copied unchanged except the fields that a restart must advance, and resources, for which the current ones count (a
resize in place is not in the config). A field that the CRI definition used here does not know is a refusal, never
dropped: a container that silently lost a mount or a device is worse than no restart.
"""

import base64
import contextlib
import enum
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, TypeVar

from kubemend.agent.restart import host_files, intents
from kubemend.common.pb.runtime.v1 import api_pb2
from kubemend.common.protobuf_json import json_format

POD_UID_LABEL = "io.kubernetes.pod.uid"  # staging/src/k8s.io/kubelet/pkg/types/labels.go
RESTART_COUNT_ANNOTATION = "io.kubernetes.container.restartCount"  # pkg/kubelet/kuberuntime/labels.go
TERMINATION_PATH_ANNOTATION = "io.kubernetes.container.terminationMessagePath"
RESTART_ID_ANNOTATION = "kubemend.io/restart-id"
RESTART_COUNT_ENV = "KUBEMEND_RESTART_COUNT"
RESTART_REASON_ENV = "KUBEMEND_RESTART_REASON"
_LONGEST = 500
"""Characters of a refusal: it quotes what pods and the runtime have written."""
_MOST_ATTEMPTS = 2**31
"""Beyond it the numbers of the next attempts do not fit into CRI's uint32, or into kubelet's int32 (restartCount)."""
_OF_A_BYTE = 16
"""Bytes in memory for each byte of a sandbox's config on the wire, at most: a pod's labels can be many and short."""
_IDENTITY = frozenset({"metadata", "image", "labels", "annotations", "linux"})
_DEVICE_PERMISSIONS = frozenset("rwm")
_CDI_NAME = re.compile(r"[^/=\s]+/[^/=\s]+=[^=\s]+")  # vendor/class=device: SPEC.md of container-device-interface


class CloneRefusal(enum.Enum):
    """Why a config cannot be cloned faithfully."""

    NO_CONFIG = "RuntimeHidesConfig"
    UNSUPPORTED = "ConfigUnsupported"
    ENV_AMBIGUOUS = "EnvironmentAmbiguous"
    NO_RESTART_COUNT = "NotStartedByKubelet"
    NOT_CREATABLE = "RuntimeWouldRefuse"
    TOO_LARGE = "ConfigTooLarge"


class CloneRefusedError(Exception):
    """The config cannot be cloned faithfully; ``reason`` is stable, the text is for people."""

    def __init__(self, reason: CloneRefusal, detail: str) -> None:
        super().__init__(f"{reason.value}: {detail}"[:_LONGEST])
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Successor:
    """The inputs for creating container n+1 and for keeping the host's files as kubelet would.

    ``log_path`` is relative to the sandbox's log directory, as in CRI. ``config`` still mounts the old container's
    termination-message file; ``termination_log`` is the file to create instead, or None if kubelet mounted none: see
    ``with_own_termination_log``. ``is_copy``: only what identifies the container was changed; neither the resources of
    a resize in place nor an image that is a volume, which the runtime looks up again.
    """

    config: api_pb2.ContainerConfig
    restart_count: int
    log_path: str
    termination_log: host_files.TerminationLog | None
    is_copy: bool = False

    @property
    def termination_path(self) -> str | None:
        """Return where the successor's own termination-message file is mounted; None if it has none."""
        return self.config.annotations.get(TERMINATION_PATH_ANNOTATION) if self.termination_log is not None else None


def sandbox_config(config: Mapping[str, Any] | None) -> api_pb2.PodSandboxConfig:
    """Return the sandbox's config as the message that CreateContainer requires.

    Raises CloneRefusedError if the runtime does not return it or it has unknown fields.
    """
    if not config:
        raise CloneRefusedError(CloneRefusal.NO_CONFIG, "PodSandboxStatus(verbose) carries no info.config")
    return _parsed(config, api_pb2.PodSandboxConfig())


def weight(config: api_pb2.PodSandboxConfig) -> int:
    """Estimate the bytes that a sandbox's config takes in memory."""
    return _OF_A_BYTE * config.ByteSize()


def identity(config: Mapping[str, Any] | None, *, restart_id: str) -> api_pb2.ContainerConfig:
    """Return the part of a container's config that identifies its pod, and that it shares with its sandbox.

    Raises CloneRefusedError.
    """
    shown = {key: value for key, value in (config or {}).items() if key in _IDENTITY}
    made = _parsed(shown, api_pb2.ContainerConfig())
    made.annotations[RESTART_ID_ANNOTATION] = restart_id
    return made


def successor(
    config: Mapping[str, Any] | None,
    *,
    intent: intents.Intent,
    runtime_env: Iterable[str] | None,
    resources: api_pb2.LinuxContainerResources | None = None,
    live_cpuset: str | None = None,
) -> Successor:
    """Return the config of container n+1, made from container n's.

    ``runtime_env`` are the ``K=V`` of ``runtimeSpec.process.env``: they distinguish plain env values from base64 ones.
    ``resources`` are the old container's current ones: a resize in place changes them and not the config, and kubelet
    does not repeat the resize for a successor. None if the runtime does not report them. ``live_cpuset`` is the old
    container's current ``cpuset.cpus``: kubelet's CPU manager may have moved the shared pool since the container was
    created, and corrects a stale clone only when the pool changes again.

    Raises CloneRefusedError.
    """
    if not config:
        raise CloneRefusedError(CloneRefusal.NO_CONFIG, "ContainerStatus(verbose) carries no info.config")
    rest = {key: value for key, value in config.items() if key != "envs"}
    clone = _parsed(rest, api_pb2.ContainerConfig())
    if (clone.labels.get(POD_UID_LABEL), clone.metadata.name) != (intent.target.pod.uid, intent.target.name):
        raise CloneRefusedError(CloneRefusal.UNSUPPORTED, "the runtime returned the config of another container")
    if not 0 <= intent.old_attempt < _MOST_ATTEMPTS:
        raise CloneRefusedError(CloneRefusal.UNSUPPORTED, f"its attempt is {intent.old_attempt}")
    with _understanding():
        clone.envs.extend(_environment(config.get("envs") or [], runtime_env=runtime_env))
        count = _restart_count(clone) + 1
    clone.metadata.attempt = intent.old_attempt + 1
    clone.annotations[RESTART_COUNT_ANNOTATION] = str(count)
    clone.annotations[RESTART_ID_ANNOTATION] = intent.id
    clone.log_path = str(PurePosixPath(clone.log_path).parent / f"{count}.log")
    _set_env(clone, RESTART_COUNT_ENV, str(count))
    _set_env(clone, RESTART_REASON_ENV, intent.reason)
    asked = api_pb2.LinuxContainerResources()
    asked.CopyFrom(clone.linux.resources)
    if resources is not None:
        _take_over(clone.linux.resources, present=resources)
    _unresolve_images(clone)
    if live_cpuset and clone.linux.resources.cpuset_cpus:
        clone.linux.resources.cpuset_cpus = live_cpuset
    has_images = any(mount.HasField("image") for mount in clone.mounts)
    if obstacles := refusals(clone):
        raise CloneRefusedError(CloneRefusal.NOT_CREATABLE, "; ".join(obstacles))
    return Successor(
        config=clone,
        restart_count=count,
        log_path=clone.log_path,
        termination_log=_termination_log(clone, intent=intent),
        is_copy=not (has_images or _are_changed(asked, clone.linux.resources)),
    )


def refusals(config: api_pb2.ContainerConfig) -> tuple[str, ...]:
    """Return why a runtime would refuse to create a container of this config; empty if no rule is broken.

    Checked before the old container is stopped. A runtime need not return the config that it was given, so this checks
    the rules in api.proto's own comments (Mount, Device, CDIDevice, LinuxContainerResources, ContainerConfig).
    """
    found = [*_of_mounts(config.mounts), *_of_devices(config)]
    if not config.image.image:
        found.append("the config names no image")
    if config.HasField("windows"):
        found.append("the config is of a Windows container")
    log_path = PurePosixPath(config.log_path)
    if log_path.is_absolute() or ".." in log_path.parts:
        found.append(f"log path {config.log_path!r} is not below the sandbox's")
    if not all(limit.page_size for limit in config.linux.resources.hugepage_limits):
        found.append("a limit of huge pages names no size")
    return tuple(found)


def _of_mounts(mounts: Iterable[api_pb2.Mount]) -> Iterator[str]:
    for mount in mounts:
        at = f"the mount at {mount.container_path!r}"
        if not mount.container_path:
            yield f"the mount of {mount.host_path!r} has no path in the container"
        if mount.HasField("image"):
            if mount.host_path:
                yield f"{at} is of an image and of host path {mount.host_path!r}"
            if not mount.image.image:
                yield f"{at} names no image"
            if not mount.readonly:
                yield f"{at} is of an image and not read-only"
        elif not mount.host_path:
            yield f"{at} has neither host path nor image"
        elif mount.image_sub_path:
            yield f"{at} has a path in an image and no image"
        if mount.recursive_read_only and not (mount.readonly and mount.propagation == api_pb2.PROPAGATION_PRIVATE):
            yield f"{at} is recursively read-only, which needs readonly and private propagation"


def _of_devices(config: api_pb2.ContainerConfig) -> Iterator[str]:
    for device in config.devices:
        if not (device.host_path and device.container_path):
            yield f"device {device.host_path or device.container_path!r} has no path on the host or in the container"
        if not set(device.permissions) <= _DEVICE_PERMISSIONS:
            yield f"device {device.host_path!r} has permissions {device.permissions!r}"
    for named in config.CDI_devices:
        if not _CDI_NAME.fullmatch(named.name):
            yield f"{named.name!r} is not a CDI device name"


def _unresolve_images(config: api_pb2.ContainerConfig) -> None:
    """Clear the host paths of image mounts: the runtime returns them, but refuses a config that has them.

    Source: containerd ``mutateImageMount`` (internal/cri/server/container_image_mount.go) sets ``host_path`` in the
    config that it keeps, and refuses a config in which it is set.
    """
    for mount in config.mounts:
        if mount.HasField("image") and mount.image.image:
            mount.host_path = ""


def with_own_termination_log(made: Successor) -> api_pb2.ContainerConfig:
    """Return the config with the successor's own termination-message file, which must have been created."""
    assert made.termination_log is not None
    config = api_pb2.ContainerConfig()
    config.CopyFrom(made.config)
    for mount in config.mounts:
        if _is_in(made.termination_log.directory, mount=mount, config=config):
            mount.host_path = made.termination_log.path
    return config


def with_resources(
    config: api_pb2.ContainerConfig, present: api_pb2.LinuxContainerResources
) -> api_pb2.ContainerConfig:
    """Return the config with the resources that the old container had at its end."""
    made = api_pb2.ContainerConfig()
    made.CopyFrom(config)
    _take_over(made.linux.resources, present=present)
    return made


def _take_over(made: api_pb2.LinuxContainerResources, *, present: api_pb2.LinuxContainerResources) -> None:
    """Replace the requested resources by the current ones. An empty field in CRI is "not reported", not "none"."""
    if present.hugepage_limits:  # lists and maps are not replaced by a merge
        made.ClearField("hugepage_limits")
    if present.unified:
        made.ClearField("unified")
    made.MergeFrom(present)


def _are_changed(asked: api_pb2.LinuxContainerResources, present: api_pb2.LinuxContainerResources) -> bool:
    """Return whether other resources were requested. Without a limit of swap, containerd shows the memory limit."""
    expected = api_pb2.LinuxContainerResources()
    expected.CopyFrom(asked)
    expected.memory_swap_limit_in_bytes = asked.memory_swap_limit_in_bytes or present.memory_limit_in_bytes
    shown = api_pb2.LinuxContainerResources()
    shown.CopyFrom(present)
    shown.memory_swap_limit_in_bytes = present.memory_swap_limit_in_bytes or present.memory_limit_in_bytes
    return expected != shown


_Config = TypeVar("_Config", api_pb2.ContainerConfig, api_pb2.PodSandboxConfig)


def _parsed(config: Mapping[str, Any], message: _Config) -> _Config:
    try:
        json_format.ParseDict(dict(config), message)
    except (json_format.ParseError, OverflowError) as error:  # 1e400 is JSON, and infinite
        raise CloneRefusedError(CloneRefusal.UNSUPPORTED, str(error)) from error
    return message


@contextlib.contextmanager
def _understanding() -> Iterator[None]:
    """Turn errors about a malformed config into a refusal."""
    try:
        yield
    except (AttributeError, TypeError, ValueError) as error:
        raise CloneRefusedError(CloneRefusal.UNSUPPORTED, repr(error)) from error


def _restart_count(config: api_pb2.ContainerConfig) -> int:
    text = config.annotations.get(RESTART_COUNT_ANNOTATION, "")
    if not text.isdecimal() or int(text) >= _MOST_ATTEMPTS:
        raise CloneRefusedError(
            CloneRefusal.NO_RESTART_COUNT, f"annotation {RESTART_COUNT_ANNOTATION} is {text!r}, not a number"
        )
    return int(text)


def _environment(envs: Sequence[Mapping[str, str]], *, runtime_env: Iterable[str] | None) -> list[api_pb2.KeyValue]:
    decode = _value_decoder(envs, runtime_env=runtime_env)
    return [api_pb2.KeyValue(key=item.get("key", ""), value=decode(item.get("value") or "")) for item in envs]


def _value_decoder(envs: Sequence[Mapping[str, str]], *, runtime_env: Iterable[str] | None) -> Callable[[str], bytes]:
    """Return the decoder for env values: plain or base64, determined by the runtime's OCI spec.

    containerd 2.1 has ``string value`` in its own copy of the proto and writes them plain; a runtime built on the CRI
    of Kubernetes 1.36 has ``bytes value`` and writes base64. All values of one config use the same form.
    """
    last = {item.get("key", ""): item.get("value") or "" for item in envs}
    if not any(last.values()):
        return str.encode
    if runtime_env is None:
        raise CloneRefusedError(CloneRefusal.ENV_AMBIGUOUS, "the runtime does not show the process environment")
    actual = set(runtime_env)
    plain = sum(f"{key}={value}" in actual for key, value in last.items() if value)
    encoded = sum(
        decoded is not None and f"{key}={decoded}" in actual
        for key, decoded in ((key, _base64_text(value)) for key, value in last.items() if value)
    )
    if plain and not encoded:
        return str.encode
    if encoded and not plain:
        return base64.b64decode
    raise CloneRefusedError(
        CloneRefusal.ENV_AMBIGUOUS,
        f"{plain} of {len(last)} values read as plain text and {encoded} as base64 match the process environment",
    )


def _base64_text(value: str) -> str | None:
    try:
        return base64.b64decode(value, validate=True).decode()
    except ValueError:  # not base64, or not text
        return None


def _set_env(config: api_pb2.ContainerConfig, key: str, value: str) -> None:
    for item in config.envs:
        if item.key == key:
            item.value = value.encode()
            return
    config.envs.append(api_pb2.KeyValue(key=key, value=value.encode()))


def _termination_log(config: api_pb2.ContainerConfig, *, intent: intents.Intent) -> host_files.TerminationLog | None:
    inside = config.annotations.get(TERMINATION_PATH_ANNOTATION)
    paths = (mount.host_path for mount in config.mounts if mount.container_path == inside and not mount.readonly)
    found = (host_files.termination_log(path, container=intent.target, restart=intent.id) for path in paths)
    return next((each for each in found if each is not None), None)


def _is_in(directory: PurePosixPath, *, mount: api_pb2.Mount, config: api_pb2.ContainerConfig) -> bool:
    is_at_path = mount.container_path == config.annotations.get(TERMINATION_PATH_ANNOTATION)
    return is_at_path and not mount.readonly and PurePosixPath(mount.host_path).parent == directory
