"""Gather what the runtime and the API server show about what may be restarted."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass

from agent.actuator import occupants
from agent.actuator.tools import LastWish, Material
from agent.cri.answers import ContainerInfo
from agent.engine import ports
from agent.model.workloads import ContainerRef, ContainerState, ContainerView, PodView
from agent.restart import admission, clone, intents, runtimes, shm
from agent.sources.processes import ProcFs
from common import root_mounts
from common.pb.runtime.v1 import api_pb2

_NANOSECOND = 1e-9
_WORTH_A_STEP = 2.0  # seconds: less is a process that took its time between clone and the runtime's note of it


@dataclass(frozen=True, slots=True)
class Target:
    """The newest container of a name, its siblings of the same name, and whether its sandbox is ready.

    ``runtime_handler`` is the sandbox's.
    """

    info: ContainerInfo
    siblings: tuple[ContainerView, ...]
    view: ContainerView
    sandbox_ready: bool
    runtime_handler: str = ""

    def facts(self, *, stepped: float = 0.0, not_holdable: str | None = None) -> admission.RuntimeFacts:
        """Return what admission wants to know; ``stepped`` is what ``clock_step`` says of this target."""
        exited = self.info.state is ContainerState.EXITED
        return admission.RuntimeFacts(
            state=self.info.state,
            exit_code=self.info.exit_code if exited else None,
            started_at=self.info.started_at * _NANOSECOND + stepped if self.info.started_at else None,
            sandbox_ready=self.sandbox_ready,
            not_cloneable=None if self.info.config is not None else "the runtime does not give the config back",
            not_holdable=not_holdable,
            unsupported=runtimes.unsupported(runtime_type=self.info.runtime_type, handler=self.runtime_handler),
        )


async def find(runtime: ports.Runtime, ref: ContainerRef) -> Target | None:
    """Return the target as the runtime shows it, or None when it shows none. Raises CriError.

    Kubelet takes the newest container of a name for the current one (pkg/kubelet/container/helpers.go); so do we.
    """
    siblings, sandboxes = await asyncio.gather(
        runtime.list_containers(pod_uid=ref.pod.uid, name=ref.name), runtime.list_sandboxes(pod_uid=ref.pod.uid)
    )
    if not siblings:
        return None
    newest = max(siblings, key=_age)
    mine = next((sandbox for sandbox in sandboxes if sandbox.id == newest.sandbox_id), None)
    info = await runtime.info_of(newest)
    return Target(
        info=info,
        siblings=siblings,
        view=newest,
        sandbox_ready=mine is not None and mine.ready,
        runtime_handler=mine.runtime_handler if mine is not None else "",
    )


def clock_step(info: ContainerInfo, *, processes: ProcFs, now: float, since_boot: float) -> float:
    """Return by how many seconds the wall clock was set (back: negative) since a container started.

    ``now`` and ``since_boot`` are the two clocks at one moment. The runtime notes a start by the wall clock, the kernel
    by its own; a clock set back would make every running container look as if it had started after the fault. 0.0
    where nothing can be told.
    """
    process = occupants.look(processes, info.pid) if info.pid is not None and info.started_at else None
    if process is None:
        return 0.0
    step = (now - since_boot) - (info.started_at * _NANOSECOND - process.started)
    return step if abs(step) >= _WORTH_A_STEP else 0.0


def not_holdable(info: ContainerInfo, *, processes: ProcFs) -> str | None:
    """Return why a container's successor cannot be held at its first instruction; None: nothing is known against it.

    Only a root that is a file system of its own can be marked (``agent.actuator.roots``).
    """
    kind = processes.root_kind(info.pid) if info.pid is not None else None
    return None if kind in (root_mounts.OVERLAY, None) else f"its root is {kind}, not an overlay"


async def plan(runtime: ports.Runtime, pod: PodView) -> tuple[intents.Planned, ...]:
    """Return every container of the pod's spec with what the runtime shows of it, in the spec's order.

    Raises CriError.
    """
    views = sorted(await runtime.list_containers(pod_uid=pod.ref.uid), key=_age)
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


async def material(
    runtime: ports.Runtime, info: ContainerInfo, *, intent: intents.Intent, pod: PodView | None, processes: ProcFs
) -> Material:
    """Return what a container's successor is made of. Raises CriError, or CloneRefusedError: it cannot be faithful."""
    hidden, resources = await asyncio.gather(runtime.sandbox_config(intent.sandbox_id), runtime.resources(info.id))
    sandbox = clone.sandbox_config(hidden)
    successor = clone.successor(
        info.config,
        intent=intent,
        runtime_env=info.runtime_env,
        resources=resources,
        live_cpuset=processes.cpuset(info.pid) if info.pid is not None else None,
    )
    spec = pod.container(intent.target.name) if pod is not None else None
    return Material(
        successor=successor,
        sandbox_config=sandbox,
        post_start=spec.post_start if spec is not None else None,
        last_wish=last_wishes(pod).get(intent.target.name),
        pod_ip=pod.pod_ip if pod is not None else None,
        shared_memory=shm.place(
            info.shm_source,
            pod_uid=intent.target.pod.uid,
            sandbox_id=intent.sandbox_id,
            cgroup_parent=sandbox.linux.cgroup_parent,
            shares_node_ipc=sandbox.linux.security_context.namespace_options.ipc == api_pb2.NODE,
        ),
    )


async def materials(
    runtime: ports.Runtime, intent: intents.PodIntent, *, pod: PodView, processes: ProcFs
) -> Mapping[str, Material]:
    """Return what each container of a pod is made of again. Raises CriError, or CloneRefusedError."""
    found = {}
    for planned in intent.plan:
        if not planned.old:
            raise clone.CloneRefusedError(
                clone.CloneRefusal.NO_CONFIG, f"the runtime shows no container {planned.name} to take the config from"
            )
        info = await runtime.container_info(planned.old[-1])
        found[planned.name] = await material(
            runtime, info, intent=intent.of_container(planned), pod=pod, processes=processes
        )
    return found


def last_wishes(pod: PodView | None) -> Mapping[str, LastWish]:
    """Return the preStop hooks of a pod's containers."""
    if pod is None:
        return {}
    return {spec.name: LastWish(spec.pre_stop, pod.pod_ip) for spec in pod.containers if spec.pre_stop is not None}


def _age(view: ContainerView) -> tuple[int, int]:
    return view.created_at, view.attempt
