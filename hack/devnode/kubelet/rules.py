"""Decide what to do with one pod. Pure: what the spec asks for and what the relist saw in, actions out.

The rules are those of kubelet 1.36 (``kuberuntime_manager.computePodActions``, ``computeInitContainerActions``,
``container/helpers.ShouldContainerBeRestarted``). Three of them make restarts from outside delicate:

- only the newest container of each name counts; a running older one is never killed beside it;
- a newest container that is CREATED or UNKNOWN "should be restarted", whatever the restart policy;
- a container whose hash annotation does not fit the spec is killed and started anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from agent.model.workloads import ContainerRole, ContainerState, RestartPolicy
from hack.devnode.kubelet import hashing
from hack.devnode.kubelet.observed import Observed, Runtime
from hack.devnode.kubelet.spec import RESTART_ALL, Container, Pod


@dataclass(frozen=True, slots=True)
class ProbeResults:
    """Latest results by container id; an id that is missing has not been probed yet."""

    startup: Mapping[str, bool] = field(default_factory=dict)
    liveness: Mapping[str, bool] = field(default_factory=dict)
    readiness: Mapping[str, bool] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Kill:
    """One container to stop, and why."""

    id: str
    name: str
    why: str


@dataclass(frozen=True, slots=True)
class Actions:
    """What one sync does, in this order: kill pod or kills, reset, sandbox, init starts, main starts."""

    kill_pod: bool = False
    create_sandbox: bool = False
    sandbox_id: str | None = None
    sandbox_attempt: int = 0
    kills: tuple[Kill, ...] = ()
    reset: tuple[Observed, ...] = ()
    start_inits: tuple[str, ...] = ()
    start_mains: tuple[str, ...] = ()


def restarts_after(exit_code: int, *, container: Container, pod: Pod) -> bool:
    """Whether a container that exited so is started again: its rules, then its policy, then the pod's (KEP-5307)."""
    policy = pod.restart_policy
    if container.restart_policy is not None:
        if container.rule_for(exit_code) is not None:
            return True
        policy = container.restart_policy
    if policy is RestartPolicy.ON_FAILURE:
        return exit_code != 0
    return policy is RestartPolicy.ALWAYS


def should_start(container: Container, *, pod: Pod, runtime: Runtime) -> bool:
    """Whether kubelet wants to start this container (again)."""
    if pod.deleting:
        return False
    newest = runtime.newest(container.name)
    if newest is None:
        return True
    if newest.state is ContainerState.RUNNING:
        return False
    if newest.state in (ContainerState.CREATED, ContainerState.UNKNOWN):
        return True
    return restarts_after(newest.exit_code, container=container, pod=pod)


def triggers_restart_all(container: Container, exit_code: int) -> bool:
    """Whether this exit asks for all containers of the pod to be restarted (KEP-5532)."""
    rule = container.rule_for(exit_code)
    return rule is not None and rule.action == RESTART_ALL


def wants_restart_all(*, pod: Pod, runtime: Runtime, reported_exits: Mapping[str, int]) -> bool:
    """Whether the pod is in the middle of a RestartAllContainers.

    ``reported_exits`` are exit codes that the API status still shows as terminated, by container name; they
    count only while the runtime shows the container as exited.
    """
    for container in pod.containers():
        newest = runtime.newest(container.name)
        if newest is None or newest.state is not ContainerState.EXITED:
            continue
        codes = [newest.exit_code]
        if container.name in reported_exits:
            codes.append(reported_exits[container.name])
        if any(triggers_restart_all(container, code) for code in codes):
            return True
    return False


def compute_actions(*, pod: Pod, runtime: Runtime, probes: ProbeResults, restart_all: bool) -> Actions:
    """Return what one sync of the pod does."""
    needs_sandbox, base = _sandbox(pod, runtime)
    if restart_all:
        return replace(base, kill_pod=False, create_sandbox=False, reset=_reset_order(pod, runtime))
    if needs_sandbox:
        return _start_over(pod=pod, runtime=runtime, base=base)
    initialized, actions = _init_actions(pod=pod, runtime=runtime, probes=probes, base=base)
    if actions.kill_pod or not initialized:
        return actions
    return _main_actions(pod=pod, runtime=runtime, probes=probes, base=actions)


def sandbox_ready(pod: Pod, runtime: Runtime) -> bool:
    """Whether the pod has one ready sandbox with an IP: what PodReadyToStartContainers says."""
    needs_sandbox, _ = _sandbox(pod, runtime)
    return not needs_sandbox


def _sandbox(pod: Pod, runtime: Runtime) -> tuple[bool, Actions]:
    """Whether a new sandbox is needed (``runtime/util.PodSandboxChanged``)."""
    if not runtime.sandboxes:
        return True, Actions(kill_pod=True, create_sandbox=True)
    latest = runtime.sandboxes[0]
    several = sum(sandbox.ready for sandbox in runtime.sandboxes) > 1
    changed = latest.host_network != pod.host_network
    if several or changed or not latest.ready or (not pod.host_network and latest.ip == ""):
        return True, Actions(
            kill_pod=True, create_sandbox=True, sandbox_id=latest.id, sandbox_attempt=latest.attempt + 1
        )
    return False, Actions(sandbox_id=latest.id, sandbox_attempt=latest.attempt)


def _start_over(*, pod: Pod, runtime: Runtime, base: Actions) -> Actions:
    """A new sandbox starts the pod from its first init container, unless it has nothing left to run."""
    if pod.restart_policy is RestartPolicy.NEVER and base.sandbox_attempt and runtime.containers:
        return replace(base, create_sandbox=False)
    starts = tuple(item.name for item in pod.mains if not _done_for_good(item, pod=pod, runtime=runtime))
    if not starts and any_main_created(pod, runtime):
        return replace(base, create_sandbox=False)
    if pod.inits:
        return replace(base, start_inits=(pod.inits[0].name,))
    return replace(base, start_mains=starts)


def _done_for_good(container: Container, *, pod: Pod, runtime: Runtime) -> bool:
    """Whether the container has succeeded under OnFailure and need not run in a new sandbox."""
    newest = runtime.newest(container.name)
    succeeded = newest is not None and newest.state is ContainerState.EXITED and newest.exit_code == 0
    return succeeded and (container.restart_policy or pod.restart_policy) is RestartPolicy.ON_FAILURE


def any_main_created(pod: Pod, runtime: Runtime) -> bool:
    """Whether a main container has left a trace: the pod was initialized once."""
    known = (runtime.newest(container.name) for container in pod.mains)
    return any(item is not None and item.state is not ContainerState.UNKNOWN for item in known)


def _reset_order(pod: Pod, runtime: Runtime) -> tuple[Observed, ...]:
    """Every container of the pod, older attempts too; those whose exit asked for the restart come last."""
    sources: dict[ContainerRole, list[Observed]] = {role: [] for role in ContainerRole}
    targets: dict[ContainerRole, list[Observed]] = {role: [] for role in ContainerRole}
    for container in pod.containers():
        for item in runtime.containers:
            if item.name == container.name:
                exited = item.state is ContainerState.EXITED
                asked = exited and triggers_restart_all(container, item.exit_code)
                (sources if asked else targets)[container.role].append(item)
    inits = (ContainerRole.INIT, ContainerRole.SIDECAR)
    return (
        *targets[ContainerRole.MAIN],
        *(item for role in inits for item in targets[role]),
        *sources[ContainerRole.MAIN],
        *(item for role in inits for item in sources[role]),
    )


def _init_actions(*, pod: Pod, runtime: Runtime, probes: ProbeResults, base: Actions) -> tuple[bool, Actions]:
    """Walk the init containers from the last to the first; return whether the pod is initialized.

    The last one that left a trace decides: everything before it has run. Sidecars are kept running either way.
    """
    if not pod.inits:
        return True, base
    initialized = any(
        item is not None and item.state in (ContainerState.CREATED, ContainerState.RUNNING)
        for item in (runtime.newest(container.name) for container in pod.mains)
    )
    walk = _InitWalk(pod=pod, probes=probes, initialized=initialized, passed=initialized)
    for index in reversed(range(len(pod.inits))):
        if not walk.visit(index, runtime.newest(pod.inits[index].name)):
            return False, replace(base, kill_pod=True, kills=tuple(walk.kills))
    if not walk.passed:
        walk.starts.append(0)
    names = tuple(pod.inits[index].name for index in reversed(walk.starts))
    return walk.initialized, replace(base, start_inits=names, kills=tuple(walk.kills))


@dataclass(slots=True)
class _InitWalk:
    """The state of one walk. ``passed`` turns true at the first container that left a trace."""

    pod: Pod
    probes: ProbeResults
    initialized: bool
    passed: bool
    starts: list[int] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)

    def visit(self, index: int, newest: Observed | None) -> bool:
        """Look at one init container; False means that the pod has failed for good."""
        container = self.pod.inits[index]
        sidecar = container.role is ContainerRole.SIDECAR
        if newest is None:
            if self.passed and sidecar:
                self.starts.append(index)
            return True
        if self.passed and not sidecar:
            return True
        alive = self._sidecar(index, newest) if sidecar else self._plain(index, newest)
        self.passed = True
        return alive

    def _plain(self, index: int, newest: Observed) -> bool:
        container = self.pod.inits[index]
        if newest.state is ContainerState.CREATED:
            self.starts.append(index)
        elif newest.state is ContainerState.EXITED and newest.exit_code == 0:
            self._done(index)
        elif newest.state is ContainerState.EXITED:
            if not restarts_after(newest.exit_code, container=container, pod=self.pod):
                return False
            self.starts.append(index)
        elif newest.state is ContainerState.UNKNOWN:
            if (container.restart_policy or self.pod.restart_policy) is RestartPolicy.NEVER:
                return False
            self._replace(index, newest, why="its state is unknown")
        return True

    def _sidecar(self, index: int, newest: Observed) -> bool:
        if newest.state is ContainerState.UNKNOWN:
            self._replace(index, newest, why="its state is unknown")
        elif newest.state is not ContainerState.RUNNING:
            self.starts.append(index)
        else:
            self._running_sidecar(index, newest)
        return True

    def _running_sidecar(self, index: int, newest: Observed) -> None:
        container = self.pod.inits[index]
        if container.probe("startupProbe") is not None:
            started = self.probes.startup.get(newest.id)
            if started is False:
                self._replace(index, newest, why="its startup probe failed")
            if started is not True:
                return
        self._done(index)
        if newest.hash != hashing.container_hash(container):
            self._replace(index, newest, why="its definition changed")
        elif self.probes.liveness.get(newest.id) is False:
            self._replace(index, newest, why="its liveness probe failed")

    def _done(self, index: int) -> None:
        if index == len(self.pod.inits) - 1:
            self.initialized = True
        elif not self.passed:
            self.starts.append(index + 1)

    def _replace(self, index: int, newest: Observed, *, why: str) -> None:
        self.kills.append(Kill(id=newest.id, name=newest.name, why=why))
        self.starts.append(index)


def _main_actions(*, pod: Pod, runtime: Runtime, probes: ProbeResults, base: Actions) -> Actions:
    kills, starts, kept = list(base.kills), [], 0
    for container in pod.mains:
        newest = runtime.newest(container.name)
        if newest is None or newest.state is not ContainerState.RUNNING:
            if should_start(container, pod=pod, runtime=runtime):
                starts.append(container.name)
                if newest is not None and newest.state is ContainerState.UNKNOWN:
                    kills.append(Kill(id=newest.id, name=newest.name, why="its state is unknown"))
            continue
        verdict = _why_kill(container, newest=newest, pod=pod, probes=probes)
        if verdict is None:
            kept += 1
            continue
        why, again = verdict
        kills.append(Kill(id=newest.id, name=newest.name, why=why))
        if again:
            starts.append(container.name)
    if not kept and not starts:
        return replace(base, kill_pod=True, kills=tuple(kills), start_inits=())
    return replace(base, kills=tuple(kills), start_mains=tuple(starts))


def _why_kill(container: Container, *, newest: Observed, pod: Pod, probes: ProbeResults) -> tuple[str, bool] | None:
    """Why a running container must die, and whether it is started again; None keeps it."""
    if newest.hash != hashing.container_hash(container):
        return "its definition changed", True
    again = (container.restart_policy or pod.restart_policy) is not RestartPolicy.NEVER
    if probes.liveness.get(newest.id) is False:
        return "its liveness probe failed", again
    if probes.startup.get(newest.id) is False:
        return "its startup probe failed", again
    return None
