"""Build restart plans: gather the strategy's inputs for a new restart, or for one of a previous agent."""

import contextlib
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from kubemend.agent import ports
from kubemend.agent.actuator.next_names import NameAhead
from kubemend.agent.clients.cri import errors as cri_errors
from kubemend.agent.clients.cri.convert import Admit, admit_all
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerState,
    ContainerSummary,
    PodView,
    RestartPolicy,
)
from kubemend.agent.restart import (
    admission,
    cache,
    clone,
    intents,
    keep,
    members,
    options,
    overlap,
    process,
    rules,
    shm,
)
from kubemend.agent.restart.strategies import SPECS, Scope
from kubemend.agent.restart.successor_spec import SuccessorSpec
from kubemend.agent.restarts import restart_plan, runtime_state
from kubemend.agent.restarts.dependencies import Dependencies

log = structlog.get_logger(__name__)


async def prepare(
    dependencies: Dependencies,
    decision: admission.Decision,
    *,
    target: runtime_state.RuntimeState,
    pod: PodView,
    reason: str,
    now: float,
    ended_too: bool = False,
    crashes: cache.Crashes = cache.Crashes(),  # noqa: B008 - frozen
    admit: Admit = admit_all,
) -> restart_plan.RestartPlan:
    """Build the plan for a decision. Raises CriError, CloneRefusedError, or what ``admit`` raises.

    ``ended_too``: also swap containers of the group that have exited, instead of leaving them to kubelet. ``crashes``
    are what has led to the restart. A whole pod is not restarted once kubelet has replaced the target since the
    decision: that container has started after the fault.
    """
    assert decision.strategy is not None
    spec = SPECS[decision.strategy]
    if spec.scope is Scope.CONTAINERS:
        return await _prepare_swap(
            dependencies,
            decision,
            target=target,
            pod=pod,
            reason=reason,
            now=now,
            ended_too=ended_too,
            crashes=crashes,
            admit=admit,
        )
    if spec.scope is Scope.PROGRAM:
        return _prepare_process(decision, target=target, reason=reason, now=now)
    ref = target.view.ref
    plan = await runtime_state.plan(dependencies.runtime, pod)
    if any(planned.name == ref.name and planned.old[-1:] != (target.view.id,) for planned in plan):
        raise cri_errors.NotFound(f"container {target.view.id} of {ref.name} is no longer its newest one")
    intent = intents.PodIntent(
        id=_new_id(),
        target=ref,
        sandbox_id=target.view.sandbox_id,
        strategy=decision.strategy,
        plan=plan,
        reason=reason,
        created_at=now,
        grace_seconds=0.0 if spec.kills else decision.grace_seconds,
        trigger=_trigger(pod, plan=plan, preferred=ref.name) if spec.kills else None,
        completes=pod.policy_of(ref.name) is not RestartPolicy.ALWAYS,
    )
    successor_specs: Mapping[str, SuccessorSpec] | None = None
    if spec.starts_containers:
        successor_specs = await runtime_state.successor_specs(
            dependencies.runtime, intent, pod=pod, processes=dependencies.processes, admit=admit
        )
    shm_cleanup = _shm_cleanup(pod.annotations, successor_specs=(successor_specs or {}).values())
    of_target = pod.container(ref.name)
    count = of_target.restart_count + 1 if of_target is not None else 1
    if successor_specs is not None:
        count = successor_specs[ref.name].successor.restart_count
        successor_specs = {
            name: replace(
                successor_spec,
                emptying=_emptying(
                    successor_spec, after=_early_failures(crashes, successor_spec, pod=pod, container=name)
                ),
                keeping=_keeping_in_rerun(successor_spec, pod=pod, intent=intent, container=name),
            )
            for name, successor_spec in successor_specs.items()
        }
    return restart_plan.PodRestartPlan(ref, count, intent, pod, successor_specs, shm_cleanup=shm_cleanup)


def name_ahead(runtime: ports.Runtime, target: runtime_state.RuntimeState) -> NameAhead | None:
    """Return the name to reserve for a container that has ended; None if its config is not cached, or not its own."""
    sandbox = runtime.remembered_sandbox(target.view.sandbox_id)
    if sandbox is None or target.info.is_rebuilt:
        return None
    try:
        return NameAhead(
            target.view,
            clone.identity(target.info.config, restart_id=_new_id()),
            attempt=max(view.attempt for view in target.siblings) + 2,
            sandbox_config=sandbox,
        )
    except clone.CloneRefusedError:
        return None  # the decision has the reason


async def resume(
    dependencies: Dependencies, intent: intents.AnyIntent, *, admit: Admit = admit_all
) -> restart_plan.RestartPlan:
    """Build the plan of a restart that a previous agent started. Raises CriError, or what ``admit`` raises."""
    pod = dependencies.pods.pods().get(intent.target.pod.uid)
    if isinstance(intent, intents.PodIntent):
        return restart_plan.PodRestartPlan(intent.target, 0, intent, pod)
    if isinstance(intent, intents.ProcessIntent):
        return bare(intent)
    views = await dependencies.runtime.list_containers(pod_uid=intent.target.pod.uid, name=intent.target.name)
    if all(view.id != intent.old for view in views):  # kubelet's GC removed it, and its config
        return bare(intent)
    info = await dependencies.runtime.container_status(intent.old, admit=admit)
    try:
        successor_spec = await runtime_state.successor_spec(
            dependencies.runtime,
            info,
            intent=intent,
            pod=pod,
            processes=dependencies.processes,
            holders=dependencies.holders,
            admit=admit,
        )
    except clone.CloneRefusedError as error:
        log.warning("restart.not_cloneable", restart=intent.id, error=str(error))
        return bare(intent)
    annotations = pod.annotations if pod is not None else successor_spec.sandbox_config.annotations
    shm_cleanup = keeping = None
    with contextlib.suppress(options.BadAnnotationError):  # the annotations have changed since the start
        keeping = _keeping_in_swap(successor_spec, annotations, intent=intent)
    with contextlib.suppress(options.BadAnnotationError):
        if len(options.parse(annotations).containers) <= 1:  # the state of others is unknown
            shm_cleanup = _shm_cleanup(annotations, successor_specs=[successor_spec])
    emptying = _emptying(successor_spec, after=intent.empty_cache_after)
    swap = restart_plan.Swap(intent, replace(successor_spec, emptying=emptying, keeping=keeping))
    count = successor_spec.successor.restart_count
    return restart_plan.SwapPlan(intent.target, count, (swap,), shm_cleanup=shm_cleanup)


async def plan_from_journal(
    dependencies: Dependencies, opened: Sequence[intents.AnyIntent], *, admit: Admit = admit_all
) -> restart_plan.RestartPlan:
    """Build one plan from all intents that a previous agent opened for a pod's restart.

    Raises as ``resume`` does.
    """
    return together([await resume(dependencies, intent, admit=admit) for intent in opened])


def together(plans: Iterable[restart_plan.RestartPlan]) -> restart_plan.RestartPlan:
    """Return the one plan of a restart whose swaps were resumed each by itself."""
    made = tuple(plans)
    first, parts = made[0], [plan for plan in made if isinstance(plan, restart_plan.SwapPlan)]
    if not isinstance(first, restart_plan.SwapPlan):
        return first
    swaps = tuple(swap for part in parts for swap in part.swaps)
    places = tuple(place for part in parts if part.shm_cleanup is not None for place in part.shm_cleanup.places)
    shm_cleanup = shm.Request(places, tuple(swap.intent.target.name for swap in swaps)) if places else None
    return replace(first, swaps=swaps, shm_cleanup=shm_cleanup)


def bare(intent: intents.AnyIntent) -> restart_plan.RestartPlan:
    """Build a plan from the intent alone, without a call to the runtime: it creates nothing."""
    if isinstance(intent, intents.PodIntent):
        return restart_plan.PodRestartPlan(intent.target, 0, intent)
    if isinstance(intent, intents.ProcessIntent):
        return restart_plan.ProcessPlan(intent.target, 0, intent)
    return restart_plan.SwapPlan(intent.target, 0, (restart_plan.Swap(intent, None),))


def _prepare_process(
    decision: admission.Decision, *, target: runtime_state.RuntimeState, reason: str, now: float
) -> restart_plan.RestartPlan:
    launcher = target.launcher
    assert isinstance(launcher, process.Launcher), "admission has found one"
    intent = intents.ProcessIntent(
        id=_new_id(),
        target=target.view.ref,
        sandbox_id=target.view.sandbox_id,
        container=target.view.id,
        program=launcher.program,
        reason=reason,
        created_at=now,
        grace_seconds=decision.grace_seconds,
    )
    return restart_plan.ProcessPlan(target.view.ref, launcher.restarts + 1, intent)


async def _prepare_swap(
    dependencies: Dependencies,
    decision: admission.Decision,
    *,
    target: runtime_state.RuntimeState,
    pod: PodView,
    reason: str,
    now: float,
    ended_too: bool,
    crashes: cache.Crashes,
    admit: Admit,
) -> restart_plan.RestartPlan:
    made: list[tuple[intents.Intent, SuccessorSpec, Sequence[ContainerSummary]]] = []
    count = 1
    for name, order in decision.orders.items():
        found = target
        if name != target.view.ref.name:
            sibling = await runtime_state.find(dependencies.runtime, ContainerRef(pod=pod.ref, name=name), admit=admit)
            if sibling is None or (sibling.info.state is not ContainerState.RUNNING and not ended_too):
                continue  # the fault did not hit it, and kubelet starts what does not run
            exited = sibling.info.state is ContainerState.EXITED
            if exited and members.has_ended_for_good(pod, name, exit_code=sibling.info.exit_code):
                continue  # it ended while this was decided
            found = sibling
        intent = intents.Intent(
            id=_new_id(),
            target=found.view.ref,
            sandbox_id=found.view.sandbox_id,
            old=found.view.id,
            old_attempt=max(view.attempt for view in found.siblings),
            order=order,
            reason=reason,
            created_at=now,
            grace_seconds=decision.grace_seconds,
            completes=pod.policy_of(name) is not RestartPolicy.ALWAYS,
        )
        successor_spec = await runtime_state.successor_spec(
            dependencies.runtime,
            found.info,
            intent=intent,
            pod=pod,
            processes=dependencies.processes,
            holders=dependencies.holders,
            admit=admit,
        )
        after = _early_failures(crashes, successor_spec, pod=pod, container=name)
        intent = replace(intent, empty_cache_after=after)
        successor_spec = replace(
            successor_spec,
            emptying=_emptying(successor_spec, after=after),
            keeping=_keeping_in_swap(successor_spec, pod.annotations, intent=intent),
            overlap_request=_overlap(pod, several=len(decision.orders) > 1),
        )
        made.append((intent, successor_spec, found.siblings))
        if found is target:
            count = successor_spec.successor.restart_count
    shm_cleanup = _shm_cleanup(
        pod.annotations,
        successor_specs=[successor_spec for _, successor_spec, _ in made],
        waits_for=[intent.target.name for intent, _, _ in made],
    )
    swaps = tuple(restart_plan.Swap(intent, successor_spec, siblings) for intent, successor_spec, siblings in made)
    return restart_plan.SwapPlan(target.view.ref, count, swaps, shm_cleanup=shm_cleanup)


def _shm_cleanup(
    annotations: Mapping[str, str], *, successor_specs: Iterable[SuccessorSpec], waits_for: Iterable[str] = ()
) -> shm.Request | None:
    """Return the cleanup before the start; None if the pod's annotations do not request one."""
    if options.Clean.SHM not in options.clean(annotations):
        return None
    return shm.Request(tuple(successor_spec.shared_memory for successor_spec in successor_specs), tuple(waits_for))


def _early_failures(crashes: cache.Crashes, successor_spec: SuccessorSpec, *, pod: PodView, container: str) -> int:
    """Return the number of early failures because of which a container's cache is emptied; 0: it is kept."""
    decision = cache.decide(
        crashes, container=container, found=successor_spec.compile_cache, pod_options=options.parse(pod.annotations)
    )
    log.debug("cache.decided", pod=str(pod.ref), container=container, reason=decision.reason.value)
    return decision.early_failures if decision.empties else 0


def _emptying(successor_spec: SuccessorSpec, *, after: int) -> cache.Request | None:
    if not after or isinstance(successor_spec.compile_cache, cache.NotOurs):
        return None
    return cache.Request(successor_spec.compile_cache, early_failures=after)


def _overlap(pod: PodView, *, several: bool) -> overlap.Request | None:
    """Return the pod's wish that a successor imports early; None if it has none. Raises BadAnnotationError."""
    wanted = options.parse(pod.annotations).overlap
    return overlap.Request(several) if wanted is overlap.Overlap.IMPORTS else None


def _keeping(
    successor_spec: SuccessorSpec,
    annotations: Mapping[str, str],
    *,
    container: str,
    old: ContainerId,
    refused: str = "",
) -> keep.Request | None:
    """Return the paths that a successor keeps; None if the pod requests none. Raises BadAnnotationError."""
    paths = options.kept_paths(annotations)
    return keep.Request(container, paths, old, successor_spec.mount_points, refused=refused) if paths else None


def _keeping_in_swap(
    successor_spec: SuccessorSpec, annotations: Mapping[str, str], *, intent: intents.Intent
) -> keep.Request | None:
    """Return the paths that a container's successor keeps in a swap."""
    return _keeping(successor_spec, annotations, container=intent.target.name, old=intent.old)


def _keeping_in_rerun(
    successor_spec: SuccessorSpec, *, pod: PodView, intent: intents.PodIntent, container: str
) -> keep.Request | None:
    """Return the paths that a container's successor keeps in a rerun."""
    planned = next(each for each in intent.plan if each.name == container)
    spec = pod.container(container)
    order = intents.SwapOrder.of(policy=pod.policy_of(container), grace_seconds=intent.grace_seconds)
    is_restarted = order.exit_is_restarted and spec is not None and not spec.restart_rules
    refused = keep.obstacle_of_rerun(role=planned.role, exit_is_restarted=is_restarted)
    return _keeping(successor_spec, pod.annotations, container=container, old=planned.old[-1], refused=refused)


def _trigger(pod: PodView, *, plan: Sequence[intents.Planned], preferred: str) -> ContainerId:
    chosen = rules.trigger(pod, preferred=preferred)
    assert chosen is not None, "admission has found one"
    for planned in plan:
        if planned.name == chosen.name and planned.old:
            return planned.old[-1]
    raise cri_errors.NotFound(f"the runtime has no container {chosen.name}, whose kill would restart the pod")


def _new_id() -> str:
    return uuid.uuid4().hex[:12]
