"""Gather the reports of the runtime and the API server about a restart's target."""

import asyncio
import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kubemend.agent import ports
from kubemend.agent.actuator import device_processes
from kubemend.agent.clients.cri.convert import Admit, ContainerStatus, admit_all
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.clients.podresources import convert
from kubemend.agent.model.processes import ProcessFacts
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerState,
    ContainerSummary,
    PodView,
    SandboxId,
)
from kubemend.agent.restart import admission, cache, clone, intents, oci_programs, process, rebuild, shm
from kubemend.agent.restart.successor_spec import PreStopHook, SuccessorSpec
from kubemend.common import root_mounts
from kubemend.common.pb.runtime.v1 import api_pb2

_NANOSECOND = 1e-9
_AN_ERROR = 1
_HIDDEN = "the runtime does not return its config"
_WORTH_A_STEP = 2.0  # seconds; less can be the delay between clone and the runtime's record of the start


@dataclass(frozen=True, slots=True)
class RuntimeState:
    """The newest container of a name, all containers of that name, and whether its sandbox is ready.

    ``runtime_handler`` is the sandbox's, ``annotations`` are the pod's at its start. ``stopping``: why its launcher,
    which has been asked to stop, may be about to end with the container; empty if it is not.
    """

    info: ContainerStatus
    siblings: tuple[ContainerSummary, ...]
    view: ContainerSummary
    sandbox_ready: bool
    runtime_handler: str = ""
    annotations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))
    launcher: process.Launcher | process.LauncherUnavailable | None = None
    stopping: str = ""

    def facts(self, *, now: float, stepped: float = 0.0, not_holdable: str | None = None) -> admission.RuntimeFacts:
        """Return the facts for admission; ``stepped`` is the result of ``clock_step`` for this target."""
        running = self.launcher if isinstance(self.launcher, process.Launcher) else None
        exited = self.info.state is ContainerState.EXITED
        return admission.RuntimeFacts(
            state=self.info.state,
            exit_code=self.info.exit_code if exited else None,
            started_at=self.info.started_at * _NANOSECOND + stepped if self.info.started_at else None,
            sandbox_ready=self.sandbox_ready,
            finished_at=self.info.finished_at * _NANOSECOND if exited and self.info.finished_at else None,
            not_cloneable=None if self.info.config is not None else self.info.hidden or _HIDDEN,
            config_is_rebuilt=self.info.config is not None and self.info.is_rebuilt,
            not_holdable=not_holdable,
            unsupported=oci_programs.unsupported(runtime_type=self.info.runtime_type, handler=self.runtime_handler),
            launcher=self.launcher,
            program_started_at=now - running.age if running is not None else None,
            stopping=self.stopping,
            container=self.view.id,
            annotations=self.annotations,
        )


async def find(
    runtime: ports.Runtime,
    ref: ContainerRef,
    *,
    known: Iterable[ContainerSummary] = (),
    ended: ContainerId | None = None,
    admit: Admit = admit_all,
) -> RuntimeState | None:
    """Return the target as the runtime reports it, or None if the runtime has no such container. Raises CriError.

    The newest container of a name is the current one, as for kubelet (pkg/kubelet/container/helpers.go), which goes by
    the time of creation: that may be wrong after the clock was set back. ``known`` are
    containers as last seen. The newest one of the name is queried at the same time as the listings are made, with its
    sandbox's config, which a swap needs. If its end has just been reported (``ended``), its name is not listed again:
    the listing would take longer than all other facts. A container that another client has created since then holds
    the successor's name, so it is found when the successor is created. Raises also what ``admit`` raises.
    """
    of_name = tuple(view for view in known if view.ref == ref)
    latest = max(of_name, key=lambda view: view.generation, default=None)
    is_listed = latest is not None and latest.id == ended and latest.state is ContainerState.EXITED
    siblings, sandboxes, early = await asyncio.gather(
        _answer(of_name) if is_listed else runtime.list_containers(pod_uid=ref.pod.uid, name=ref.name),
        runtime.list_sandboxes(pod_uid=ref.pod.uid),
        _query_early(runtime, latest, admit=admit),
    )
    if not siblings:
        return None
    newest = max(siblings, key=lambda view: view.generation)
    mine = next((sandbox for sandbox in sandboxes if sandbox.id == newest.sandbox_id), None)
    is_current = early is not None and (early.id, early.state) == (newest.id, newest.state)
    info = early if early is not None and is_current else await runtime.cached_status(newest, admit=admit)
    return RuntimeState(
        info=info,
        siblings=siblings,
        view=newest,
        sandbox_ready=mine is not None and mine.ready,
        runtime_handler=mine.runtime_handler if mine is not None else "",
        annotations=mine.annotations if mine is not None else {},
    )


async def _answer(views: tuple[ContainerSummary, ...]) -> tuple[ContainerSummary, ...]:
    return views


def as_known(
    runtime: ports.Runtime, ref: ContainerRef, *, ended: admission.Cause, known: Iterable[ContainerSummary]
) -> RuntimeState | None:
    """Return the state of a container that just ended with an error, from cached facts; None if they do not suffice.

    ``ended`` is its end. Its exit code is any error's, and that its sandbox is ready is assumed.
    """
    siblings = tuple(view for view in known if view.ref == ref)
    newest = max(siblings, key=lambda view: view.generation, default=None)
    if newest is None or newest.id != ended.container or newest.state is not ContainerState.EXITED:
        return None
    if (info := runtime.remembered(newest.id)) is None or info.config is None:
        return None
    at_end = replace(
        info,
        state=ContainerState.EXITED,
        exit_code=_AN_ERROR,
        finished_at=int(ended.happened_at / _NANOSECOND),
        pid=None,
    )
    return RuntimeState(info=at_end, siblings=siblings, view=newest, sandbox_ready=True)


async def _query_early(
    runtime: ports.Runtime, view: ContainerSummary | None, *, admit: Admit
) -> ContainerStatus | None:
    """Return a container's full status, and have its sandbox's config cached; None if the runtime does not answer."""
    if view is None:
        return None
    try:
        info: ContainerStatus
        info, _ = await asyncio.gather(runtime.cached_status(view, admit=admit), _cached(runtime, view.sandbox_id))
    except CriError:
        return None
    return info


async def _cached(runtime: ports.Runtime, sandbox_id: SandboxId) -> None:
    with contextlib.suppress(clone.CloneRefusedError):  # ``successor_spec`` has the reason
        await runtime.sandbox_config(sandbox_id)


async def launcher(
    launchers: ports.Launchers | None, info: ContainerStatus
) -> process.Launcher | process.LauncherUnavailable | None:
    """Ask a container's launcher for its state; return None if the container runs none, or has ended."""
    if launchers is None or info.state is not ContainerState.RUNNING or not process.runs_launcher(info.runtime_args):
        return None
    return await launchers.status(info)


def clock_step(info: ContainerStatus, *, processes: ports.Processes, now: float, since_boot: float) -> float:
    """Return by how many seconds the wall clock was set (back: negative) since a container started.

    ``now`` and ``since_boot`` are the two clocks at one moment. The runtime records a start by the wall clock, the
    kernel by its own. Without the correction a clock that was set back would make every running container seem to
    have started after the fault. 0.0 if the step is unknown.
    """
    process = _first_process(info, processes)
    if process is None or not info.started_at:
        return 0.0
    step = (now - since_boot) - (info.started_at * _NANOSECOND - process.started)
    return step if abs(step) >= _WORTH_A_STEP else 0.0


def not_holdable(info: ContainerStatus, *, processes: ports.Processes) -> str | None:
    """Return why a container's successor cannot be held at its first instruction; None: no obstacle is known.

    fanotify can mark only a root that is a file system of its own (``agent.actuator.hold.rootfs_mount_watch``).
    """
    process = _first_process(info, processes)
    kind = processes.root_kind(process.pid) if process is not None else None
    return None if kind in (root_mounts.OVERLAY, None) else f"its root is {kind}, not an overlay"


def _first_process(info: ContainerStatus, processes: ports.Processes) -> ProcessFacts | None:
    """Return a container's first process; None if it is unknown. Its PID may be another process's by now."""
    process = device_processes.read_facts(processes, info.pid) if info.pid is not None else None
    return process if process is not None and process.container == info.id else None


async def plan(runtime: ports.Runtime, pod: PodView) -> tuple[intents.Planned, ...]:
    """Return every container of the pod's spec with its containers in the runtime, in the spec's order.

    Raises CriError.
    """
    views = sorted(await runtime.list_containers(pod_uid=pod.ref.uid), key=lambda view: view.generation)
    found = []
    for spec in pod.containers:
        mine = [view for view in views if view.ref.name == spec.name]
        found.append(
            intents.Planned(
                name=spec.name,
                role=spec.role,
                old=tuple(view.id for view in mine),
                old_attempt=max((view.attempt for view in mine), default=-1),
                has_startup_probe=spec.has_startup_probe,
            )
        )
    return tuple(found)


async def successor_spec(
    runtime: ports.Runtime,
    info: ContainerStatus,
    *,
    intent: intents.Intent,
    pod: PodView | None,
    processes: ports.Processes,
    holders: ports.Holders | None = None,
    admit: Admit = admit_all,
) -> SuccessorSpec:
    """Return the spec of a container's successor; ``admit`` is asked for its sandbox's config.

    ``holders`` has the CDI devices of its claims, which a rebuilt config requests; None: they are unknown. Raises
    CriError; CloneRefusedError if it could not be exact; what ``admit`` raises.
    """
    if info.config is None and info.hidden:
        raise clone.CloneRefusedError(clone.CloneRefusal.NO_CONFIG, info.hidden)
    sandbox, resources = await asyncio.gather(runtime.sandbox_config(intent.sandbox_id), runtime.resources(info))
    if sandbox.metadata.uid != intent.target.pod.uid:
        raise clone.CloneRefusedError(clone.CloneRefusal.UNSUPPORTED, "the runtime returned the sandbox of another pod")
    if reason := admit(clone.weight(sandbox)):
        raise clone.CloneRefusedError(clone.CloneRefusal.NO_CONFIG, reason)
    spec = pod.container(intent.target.name) if pod is not None else None
    process = _first_process(info, processes)
    config = info.config
    if config is not None and info.is_rebuilt and spec is not None and spec.image:
        config = rebuild.with_image(config, named=spec.image)
    if config is not None and info.is_rebuilt and holders is not None:
        claimed = convert.cdi_devices(intent.target, await holders.current(max_age=1.0))
        config = rebuild.with_cdi_devices(config, claimed)
    successor = clone.successor(
        config,
        intent=intent,
        runtime_env=info.runtime_env,
        resources=resources,
        live_cpuset=processes.cpuset(process.pid) if process is not None else None,
    )
    return SuccessorSpec(
        successor=successor,
        sandbox_config=sandbox,
        is_rebuilt=info.is_rebuilt,
        post_start=spec.post_start if spec is not None else None,
        pre_stop_hook=pre_stop_hooks(pod).get(intent.target.name),
        pod_ip=pod.pod_ip if pod is not None else None,
        shared_memory=shm.place(
            info.shm_source,
            pod_uid=intent.target.pod.uid,
            sandbox_id=intent.sandbox_id,
            cgroup_parent=sandbox.linux.cgroup_parent,
            shares_node_ipc=sandbox.linux.security_context.namespace_options.ipc == api_pb2.NODE,
        ),
        compile_cache=cache.place(info.cache_source, container=intent.target),
        mount_points=info.mount_points,
        old_pid=info.pid,
    )


async def successor_specs(
    runtime: ports.Runtime,
    intent: intents.PodIntent,
    *,
    pod: PodView,
    processes: ports.Processes,
    admit: Admit = admit_all,
) -> Mapping[str, SuccessorSpec]:
    """Return the spec of each container's successor, by name. Raises as ``material`` does."""
    found = {}
    for planned in intent.plan:
        if not planned.old:
            raise clone.CloneRefusedError(
                clone.CloneRefusal.NO_CONFIG, f"the runtime has no container {planned.name} to clone"
            )
        info = await runtime.container_status(planned.old[-1], admit=admit)
        found[planned.name] = await successor_spec(
            runtime, info, intent=intent.of_container(planned), pod=pod, processes=processes, admit=admit
        )
    return found


def pre_stop_hooks(pod: PodView | None) -> Mapping[str, PreStopHook]:
    """Return the preStop hooks of a pod's containers."""
    if pod is None:
        return {}
    return {spec.name: PreStopHook(spec.pre_stop, pod.pod_ip) for spec in pod.containers if spec.pre_stop is not None}
