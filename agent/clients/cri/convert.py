"""Convert the runtime's answers into the agent's values. Pure."""

import json
import re
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Self, TypeVar

from kubemend.agent.clients.cri import errors
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerState,
    ContainerSummary,
    PodRef,
    PodUid,
    SandboxId,
    SandboxView,
)
from kubemend.agent.restart import clone, keep, process, rebuild, shm
from kubemend.common import cache_volume
from kubemend.common.pb.runtime.v1 import api_pb2

# kubelet's labels: staging/src/k8s.io/kubelet/pkg/types/labels.go
POD_NAME_LABEL = "io.kubernetes.pod.name"
POD_NAMESPACE_LABEL = "io.kubernetes.pod.namespace"
POD_UID_LABEL = clone.POD_UID_LABEL
CONTAINER_NAME_LABEL = "io.kubernetes.container.name"

_Listed = TypeVar("_Listed", api_pb2.Container, api_pb2.PodSandbox)

_INFO_KEY = "info"  # the only key of the verbose map: one JSON object, in containerd and in CRI-O

HEAVIEST: Final = 8 * 2**20
"""Most bytes that one verbose answer may take as Python objects (``weight``); the config in a heavier one is not read.

Both runtimes return each variable of the environment twice, as CRI's and as the process's, so a variable counts 480
bytes and its text twice: 15,000 short ones fit. The kernel starts no program with more than 2 MiB of arguments and
environment (execve(2), with the usual 8 MiB of stack), which count 4 MiB and 480 bytes each. Kubelet's own are seven
for each service of the namespace. A pod can have more: one ConfigMap in ``envFrom`` has 1 MiB, some 100,000 of them.
"""
Admit = Callable[[int], str]
"""Admits a config of this ``weight`` to be read; returns why not, "" if it may be read. May raise an error instead."""
_PIDS: Final = range(1, 2**22 + 1)
"""Process ids of Linux (PID_MAX_LIMIT in include/linux/threads.h)."""
_OF_A_QUOTE: Final = 48
"""Half of a string as a Python object, with its share of the object or list around it; measured with environments."""
_HEAD: Final = 64 * 1024
"""Characters of a heavy answer that are read: the small fields, which precede the config in both runtimes."""
_FIELD: Final = re.compile(r'[\s{,]*"(\w+)"\s*:\s*')

STATES: "Mapping[api_pb2.ContainerState.ValueType, ContainerState]" = {
    api_pb2.CONTAINER_CREATED: ContainerState.CREATED,
    api_pb2.CONTAINER_RUNNING: ContainerState.RUNNING,
    api_pb2.CONTAINER_EXITED: ContainerState.EXITED,
    api_pb2.CONTAINER_UNKNOWN: ContainerState.UNKNOWN,
}


@dataclass(frozen=True, slots=True)
class RuntimeVersion:
    """The runtime's name and version, such as ``containerd`` ``2.1.9``."""

    name: str
    version: str


@dataclass(frozen=True, slots=True)
class Capabilities:
    """The capabilities of a runtime that the agent needs.

    ``gives_config``: whether ContainerStatus(verbose) contains the container's config, which a swap needs; None while
    no container has been seen. ``has_events``: whether GetContainerEvents exists.
    """

    runtime: RuntimeVersion
    gives_config: bool | None
    has_events: bool


@dataclass(frozen=True, slots=True)
class ExecResult:
    """How a command in a container ended. The output is raw: it need not be text."""

    exit_code: int
    stdout: bytes
    stderr: bytes


@dataclass(frozen=True, slots=True)
class ContainerStatus:
    """The result of ContainerStatus(verbose). Times are Unix nanoseconds, 0 is "not yet".

    - ``log_path`` is the absolute path on the host.
    - ``resources`` are those of the moment of the answer; None if the runtime does not report them.
    - ``is_rebuilt``: the runtime does not return ``config``; it was rebuilt (``agent.restart.rebuild``).
    - ``hidden`` is why there is no ``config``.

    The others come from the verbose part, which is not specified. None means that this runtime does not report them:

    - ``config``, ``spec`` (OCI), ``runtime_env`` (``K=V``), ``runtime_args``, ``pid``
    - ``root``: where its root is mounted, if that is a path of the host
    - ``shm_source``, ``cache_source``: the host's directories that are mounted at /dev/shm and for compile caches
    - ``mount_points``: in the container
    - ``snapshot``: the snapshot of its root
    - ``runtime_type``: containerd's name of the low-level runtime

    ``weight`` estimates the bytes of the verbose part in memory. ``config``, ``spec``, ``runtime_env`` and
    ``runtime_args`` may contain secrets and are kept out of ``repr``.
    """

    id: ContainerId
    ref: ContainerRef
    attempt: int
    state: ContainerState
    created_at: int
    started_at: int
    finished_at: int
    exit_code: int
    reason: str
    message: str
    log_path: str
    annotations: Mapping[str, str]
    sandbox_id: SandboxId | None = None
    pid: int | None = None
    root: str | None = None
    shm_source: str | None = None
    cache_source: str | None = None
    mount_points: tuple[str, ...] | None = None
    snapshot: keep.Snapshot | None = None
    runtime_type: str | None = None
    config: Mapping[str, Any] | None = field(default=None, repr=False)
    spec: Mapping[str, Any] | None = field(default=None, repr=False)
    is_rebuilt: bool = False
    hidden: str = ""
    runtime_env: tuple[str, ...] | None = field(default=None, repr=False)
    runtime_args: tuple[str, ...] | None = field(default=None, repr=False)
    resources: api_pb2.LinuxContainerResources | None = None
    weight: int = 0

    @property
    def ends_with_first_process(self) -> bool:
        """Return whether the kernel ends all processes with the first: in a PID namespace of the container's own."""
        namespaces = _object((self.spec or {}).get("linux")).get("namespaces")
        if not isinstance(namespaces, list):
            return True
        paths = [_object(each).get("path") for each in namespaces if _object(each).get("type") == "pid"]
        return bool(paths) and not any(paths)

    def without_config(self) -> Self:
        """Return the status without its large parts, for callers that keep it.

        Of environment and arguments it has what leads to the container's launcher (``agent.restart.process``).
        """
        arguments = [each for each in self.runtime_args or () if process.runs_launcher([each])]
        return replace(
            self,
            config=None,
            spec=None,
            runtime_env=(f"{process.CACHE_VARIABLE}={process.folder(self.runtime_env)}",),
            runtime_args=tuple(arguments[:1]),
            mount_points=None,
        )


def container_ref(labels: Mapping[str, str]) -> ContainerRef | None:
    """Return the container that kubelet's labels name, or None if kubelet did not create it."""
    pod = pod_ref(labels)
    name = labels.get(CONTAINER_NAME_LABEL)
    return ContainerRef(pod=pod, name=name) if pod is not None and name else None


def pod_ref(labels: Mapping[str, str]) -> PodRef | None:
    """Return the pod that kubelet's labels name, or None if kubelet did not set them."""
    namespace, name, uid = (labels.get(key) for key in (POD_NAMESPACE_LABEL, POD_NAME_LABEL, POD_UID_LABEL))
    return PodRef(namespace=namespace, name=name, uid=PodUid(uid)) if namespace and name and uid else None


def container_view(
    container: api_pb2.Container | api_pb2.ContainerStatus, *, sandbox_id: str
) -> ContainerSummary | None:
    """Return one container of a listing or an event, or None if kubelet did not create it."""
    ref = container_ref(container.labels)
    if ref is None:
        return None
    return ContainerSummary(
        id=ContainerId(container.id),
        ref=ref,
        sandbox_id=SandboxId(sandbox_id),
        attempt=container.metadata.attempt,
        state=STATES.get(container.state, ContainerState.UNKNOWN),
        created_at=container.created_at,
        restart_id=container.annotations.get(clone.RESTART_ID_ANNOTATION),
    )


def container_views(listed: Iterable[api_pb2.Container]) -> tuple[ContainerSummary, ...]:
    """Return kubelet's containers of a listing, oldest first."""
    views = (container_view(item, sandbox_id=item.pod_sandbox_id) for item in listed)
    return tuple(sorted((view for view in views if view is not None), key=lambda view: view.created_at))


def sandbox_views(listed: Iterable[api_pb2.PodSandbox]) -> tuple[SandboxView, ...]:
    """Return kubelet's sandboxes of a listing, oldest first."""
    views = (sandbox_view(item) for item in listed)
    return tuple(sorted((view for view in views if view is not None), key=lambda view: view.created_at))


def by_pod(listed: Iterable[_Listed], *, pods: Collection[PodUid]) -> Mapping[PodUid, Sequence[_Listed]]:
    """Return a listing's items of these pods; of other items only the label is read."""
    found: dict[PodUid, list[_Listed]] = {uid: [] for uid in pods}
    for item in listed:
        if (mine := found.get(PodUid(item.labels.get(POD_UID_LABEL, "")))) is not None:
            mine.append(item)
    return found


def sandbox_view(sandbox: api_pb2.PodSandbox) -> SandboxView | None:
    """Return one sandbox of a listing, or None if kubelet did not create it."""
    pod = pod_ref(sandbox.labels)
    if pod is None:
        return None
    return SandboxView(
        id=SandboxId(sandbox.id),
        pod=pod,
        ready=sandbox.state == api_pb2.SANDBOX_READY,
        created_at=sandbox.created_at,
        annotations=dict(sandbox.annotations),
        runtime_handler=sandbox.runtime_handler,
    )


def admit_all(_: int) -> str:
    """Admit any config."""
    return ""


def container_status(
    answer: api_pb2.ContainerStatusResponse, *, endpoint: str, admit: Admit = admit_all
) -> ContainerStatus:
    """Convert a verbose ContainerStatus.

    A config that is too heavy or not admitted is not read: it is ``hidden``. Raises InvalidAnswer if the container is
    not kubelet's or the verbose part is not JSON, and what ``admit`` raises.
    """
    status = answer.status
    ref = container_ref(status.labels)
    if ref is None:
        raise errors.InvalidAnswer(f"container {status.id!r} has none of kubelet's labels", where=endpoint)
    weighs = weight(answer.info)
    hidden = str(_too_heavy(weighs) or admit(weighs))
    verbose = _head(answer.info) if hidden else verbose_info(answer.info, endpoint=endpoint)
    spec = _object(verbose.get("runtimeSpec"))
    config = _object(verbose.get("config"))
    is_rebuilt = not config and not hidden
    if is_rebuilt:
        try:
            config = rebuild.container_config(status, verbose)
        except clone.CloneRefusedError as refusal:
            hidden = str(refusal)
    return ContainerStatus(
        id=ContainerId(status.id),
        ref=ref,
        attempt=status.metadata.attempt,
        state=STATES.get(status.state, ContainerState.UNKNOWN),
        created_at=status.created_at,
        started_at=status.started_at,
        finished_at=status.finished_at,
        exit_code=status.exit_code,
        reason=status.reason,
        message=status.message,
        log_path=status.log_path,
        annotations=dict(status.annotations),
        sandbox_id=_sandbox_id(verbose),
        # CRI-O keeps the pid of one that has ended, and the kernel may have given it to another process.
        pid=_pid(verbose) if status.state != api_pb2.CONTAINER_EXITED else None,
        root=_root(spec),
        shm_source=_mount_source(spec, at=shm.INSIDE),
        cache_source=_mount_source(spec, at=cache_volume.PATH),
        mount_points=_mount_points(spec),
        snapshot=_snapshot(verbose, of=status.id),
        runtime_type=_runtime_type(verbose),
        config=(config or None) if not hidden else None,
        spec=spec or None,
        is_rebuilt=is_rebuilt and not hidden,
        hidden=hidden,
        runtime_env=_words(spec, "env"),
        runtime_args=_words(spec, "args"),
        resources=resources(status),
        weight=weighs,
    )


def admitted(known: ContainerStatus, admit: Admit) -> ContainerStatus:
    """Return a cached status, without its config if that is not admitted."""
    reason = admit(known.weight) if known.config is not None else ""
    return replace(known.without_config(), hidden=reason) if reason else known


def ended(known: ContainerStatus, status: api_pb2.ContainerStatus) -> ContainerStatus:
    """Return the full status of a container that has ended: what was known while it ran, and how it ended."""
    return replace(
        known,
        state=STATES.get(status.state, ContainerState.UNKNOWN),
        started_at=status.started_at,
        finished_at=status.finished_at,
        exit_code=status.exit_code,
        reason=status.reason,
        message=status.message,
        pid=None,
        resources=resources(status),
    )


def resources(status: api_pb2.ContainerStatus) -> api_pb2.LinuxContainerResources | None:
    """Return a container's current resources; None if the runtime does not report them."""
    return status.resources.linux if status.resources.HasField("linux") else None


def sandbox_config(answer: api_pb2.PodSandboxStatusResponse, *, endpoint: str) -> api_pb2.PodSandboxConfig:
    """Return the sandbox's config of a verbose PodSandboxStatus, rebuilt if necessary.

    Raises InvalidAnswer; CloneRefusedError if it is not included, too heavy, or has unknown fields.
    """
    if (refusal := _too_heavy(weight(answer.info))) is not None:
        raise refusal
    verbose = verbose_info(answer.info, endpoint=endpoint)
    config = verbose.get("config")
    if isinstance(config, dict):
        return clone.sandbox_config(config)
    try:
        rebuilt = rebuild.sandbox_config(answer, verbose)
    except clone.CloneRefusedError as malformed:
        raise errors.InvalidAnswer(f"PodSandboxStatus: {malformed}", where=endpoint) from malformed
    return rebuilt if rebuilt is not None else clone.sandbox_config(None)


def weight(info: Mapping[str, str]) -> int:
    """Estimate the bytes that a verbose answer takes as Python objects, without parsing it."""
    text = info.get(_INFO_KEY, "")
    return sys.getsizeof(text) + _OF_A_QUOTE * text.count('"')


def _too_heavy(weighs: int) -> clone.CloneRefusedError | None:
    """Return why a verbose answer of that weight is not read; None if it is."""
    if weighs <= HEAVIEST:
        return None
    detail = f"its config takes {weighs >> 20} MiB of memory, of which at most {HEAVIEST >> 20} are read"
    return clone.CloneRefusedError(clone.CloneRefusal.TOO_LARGE, detail)


def _head(info: Mapping[str, str]) -> Mapping[str, Any]:
    """Return the fields of a verbose answer before the first one that does not end in its head."""
    text, at, found, decoder = info.get(_INFO_KEY, "")[:_HEAD], 0, dict[str, Any](), json.JSONDecoder()
    while (name := _FIELD.match(text, at)) is not None:
        try:
            value, at = decoder.raw_decode(text, name.end())
            _check_text(text[name.end() : at], value)
        except (ValueError, RecursionError):
            break
        if at < len(text):  # else a number may continue
            found[name[1]] = value
    return found


def verbose_info(info: Mapping[str, str], *, endpoint: str) -> Mapping[str, Any]:
    """Return the JSON object of a verbose answer; empty if there is none. Raises InvalidAnswer."""
    text = info.get(_INFO_KEY)
    if not text:
        return {}
    try:
        value = json.loads(text)
        _check_text(text, value)
        return _object(value)
    except (ValueError, RecursionError) as error:
        raise errors.InvalidAnswer(f"the verbose status is not JSON ({error})", where=endpoint) from error


def _check_text(text: str, value: object) -> None:
    """Raise ValueError if a value has half a surrogate pair, which only an escape can express and UTF-8 cannot."""
    if "\\ud" in text or "\\uD" in text:
        json.dumps(value, ensure_ascii=False).encode()


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _sandbox_id(verbose: Mapping[str, Any]) -> SandboxId | None:
    value = verbose.get("sandboxID")
    return SandboxId(value) if isinstance(value, str) and value else None


def _pid(verbose: Mapping[str, Any]) -> int | None:
    value = verbose.get("pid")
    is_pid = type(value) is int and value in _PIDS  # containerd writes 0 for "does not run"
    return value if is_pid else None


def _runtime_type(verbose: Mapping[str, Any]) -> str | None:
    value = verbose.get("runtimeType")
    return value if isinstance(value, str) and value else None


def _root(spec: Mapping[str, Any]) -> str | None:
    value = _object(spec.get("root")).get("path")
    return value if isinstance(value, str) and value.startswith("/") else None


def _mount_source(spec: Mapping[str, Any], *, at: str) -> str | None:
    """Return the source of the last mount at a path: later mounts cover earlier ones."""
    mounts = spec.get("mounts")
    there = [
        mount
        for mount in (mounts if isinstance(mounts, list) else ())
        if isinstance(mount, dict) and keep.place(str(mount.get("destination"))) == at
    ]
    value = there[-1].get("source") if there else None
    return value if isinstance(value, str) and value.startswith("/") else None


def _mount_points(spec: Mapping[str, Any]) -> tuple[str, ...] | None:
    mounts = spec.get("mounts")
    if not isinstance(mounts, list):
        return None
    return tuple(keep.place(str(_object(mount).get("destination"))) for mount in mounts)


def _snapshot(verbose: Mapping[str, Any], *, of: str) -> keep.Snapshot | None:
    """Return a container's snapshot, which containerd names as the container; another name is another's files.

    Source: containerd ``WithNewSnapshot`` in internal/cri/server/container_create.go.
    """
    snapshotter = verbose.get("snapshotter")
    if not (isinstance(snapshotter, str) and snapshotter and verbose.get("snapshotKey") == of):
        return None
    return keep.Snapshot(snapshotter, of)


def _words(spec: Mapping[str, Any], name: str) -> tuple[str, ...] | None:
    value = _object(spec.get("process")).get(name)
    return tuple(str(item) for item in value) if isinstance(value, list) else None
