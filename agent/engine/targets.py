"""Gather what the runtime and the API server show about a container that may be restarted."""

from dataclasses import dataclass

from agent.actuator import swap as swap_actuator
from agent.cri.answers import ContainerInfo
from agent.engine import ports
from agent.model.workloads import ContainerRef, ContainerState, ContainerView, PodView
from agent.restart import admission, clone, intents
from agent.sources.processes import ProcFs

_NANOSECOND = 1e-9


@dataclass(frozen=True, slots=True)
class Target:
    """The newest container of a name, its siblings of the same name, and whether its sandbox is ready."""

    info: ContainerInfo
    siblings: tuple[ContainerView, ...]
    view: ContainerView
    sandbox_ready: bool

    def facts(self) -> admission.RuntimeFacts:
        """Return what admission wants to know."""
        exited = self.info.state is ContainerState.EXITED
        return admission.RuntimeFacts(
            state=self.info.state,
            exit_code=self.info.exit_code if exited else None,
            started_at=self.info.started_at * _NANOSECOND if self.info.started_at else None,
            sandbox_ready=self.sandbox_ready,
            gives_config=self.info.config is not None,
        )


async def find(runtime: ports.Runtime, ref: ContainerRef) -> Target | None:
    """Return the target as the runtime shows it, or None when it shows none. Raises CriError.

    Kubelet takes the newest container of a name for the current one (pkg/kubelet/container/helpers.go); so do we.
    """
    siblings = await runtime.list_containers(pod_uid=ref.pod.uid, name=ref.name)
    if not siblings:
        return None
    newest = max(siblings, key=lambda view: (view.created_at, view.attempt))
    sandboxes = await runtime.list_sandboxes(pod_uid=ref.pod.uid)
    ready = any(sandbox.id == newest.sandbox_id and sandbox.ready for sandbox in sandboxes)
    info = await runtime.container_info(newest.id)
    return Target(info=info, siblings=siblings, view=newest, sandbox_ready=ready)


async def material(
    runtime: ports.Runtime, target: Target, *, intent: intents.Intent, pod: PodView | None, processes: ProcFs
) -> swap_actuator.Material:
    """Return what the successor is made of. Raises CriError, or CloneRefusedError when it cannot be faithful."""
    sandbox = clone.sandbox_config(await runtime.sandbox_config(target.view.sandbox_id))
    pid = target.info.pid
    successor = clone.successor(
        target.info.config,
        intent=intent,
        runtime_env=target.info.runtime_env,
        live_cpuset=processes.cpuset(pid) if pid is not None else None,
    )
    spec = pod.container(intent.target.name) if pod is not None else None
    return swap_actuator.Material(
        successor=successor,
        sandbox_config=sandbox,
        post_start=spec.post_start if spec is not None else None,
        pod_ip=pod.pod_ip if pod is not None else None,
    )
