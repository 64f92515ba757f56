"""Make an act ready: gather what its strategy needs, for a new restart or one that an earlier agent has begun."""

import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import structlog

from agent.actuator.sweep import Sweep
from agent.actuator.tools import Material
from agent.engine import acts, ports, targets
from agent.model.workloads import ContainerId, ContainerRef, ContainerState, ContainerView, PodView
from agent.restart import admission, clone, intents, members, options, rules
from agent.restart.intents import Strategy

log = structlog.get_logger(__name__)


async def prepare(
    outside: ports.Outside,
    decision: admission.Decision,
    *,
    target: targets.Target,
    pod: PodView,
    reason: str,
    now: float,
    ended_too: bool = False,
) -> acts.Act:
    """Make ready what the decision asks for. Raises CriError, or CloneRefusedError.

    ``ended_too``: of the containers that are swapped together those are not left to kubelet that have ended already.
    """
    if decision.strategy is Strategy.SWAP:
        return await _prepare_swap(
            outside, decision, target=target, pod=pod, reason=reason, now=now, ended_too=ended_too
        )
    assert decision.strategy is not None
    ref = target.view.ref
    plan = await targets.plan(outside.runtime, pod)
    rules_grace = decision.strategy is Strategy.RULES  # only SIGKILL gives the exit code that the rule is for
    intent = intents.PodIntent(
        id=_new_id(),
        target=ref,
        sandbox_id=target.view.sandbox_id,
        strategy=decision.strategy,
        plan=plan,
        reason=reason,
        created_at=now,
        grace_seconds=0.0 if rules_grace else decision.grace_seconds,
        trigger=_trigger(pod, plan=plan, preferred=ref.name) if rules_grace else None,
    )
    materials: Mapping[str, Material] | None = None
    if decision.strategy is Strategy.RERUN:
        materials = await targets.materials(outside.runtime, intent, pod=pod, processes=outside.processes)
    sweep = _sweep(outside, pod.annotations, materials=(materials or {}).values())
    spec = pod.container(ref.name)
    count = spec.restart_count + 1 if spec is not None else 1
    if materials is not None:
        count = materials[ref.name].successor.restart_count
        materials = {name: replace(material, sweep=sweep) for name, material in materials.items()}
    return acts.PodAct(
        outside=outside, target=ref, restart_count=count, intent=intent, pod=pod, materials=materials, sweep=sweep
    )


async def resume(outside: ports.Outside, intent: intents.AnyIntent) -> acts.Act:
    """Make ready what an earlier agent has begun. Raises CriError, or CloneRefusedError."""
    pod = outside.pods.pods().get(intent.target.pod.uid)
    if isinstance(intent, intents.PodIntent):
        return acts.PodAct(outside=outside, target=intent.target, restart_count=0, intent=intent, pod=pod)
    views = await outside.runtime.list_containers(pod_uid=intent.target.pod.uid, name=intent.target.name)
    material = None
    if any(view.id == intent.old for view in views):  # it still knows its config, unless kubelet's GC took it
        info = await outside.runtime.container_info(intent.old)
        material = await targets.material(outside.runtime, info, intent=intent, pod=pod, processes=outside.processes)
        material = replace(material, sweep=_sweep_again(outside, material, pod=pod))
    return acts.SwapAct(outside=outside, target=intent.target, restart_count=0, swaps=(acts.Swap(intent, material),))


async def resume_all(outside: ports.Outside, opened: Sequence[intents.AnyIntent]) -> acts.Act:
    """Make ready one pod's restart that an earlier agent has begun, with all that was to go side by side.

    Raises CriError.
    """
    made = []
    for intent in opened:
        try:
            made.append(await resume(outside, intent))
        except clone.CloneRefusedError as error:
            assert isinstance(intent, intents.Intent), "nothing is copied for a whole pod that is taken up"
            log.warning("restart.not_cloneable", restart=intent.id, error=str(error))
            made.append(without_material(outside, intent))
    first = made[0]
    if not isinstance(first, acts.SwapAct):
        return first
    return replace(first, swaps=tuple(swap for act in made if isinstance(act, acts.SwapAct) for swap in act.swaps))


def without_material(outside: ports.Outside, intent: intents.Intent) -> acts.Act:
    """Return what can be done about a swap whose old config cannot be copied."""
    return acts.SwapAct(outside=outside, target=intent.target, restart_count=0, swaps=(acts.Swap(intent, None),))


def bare(outside: ports.Outside, intent: intents.AnyIntent) -> acts.Act:
    """Return what can be done about a restart without looking at anything that it was made from."""
    if isinstance(intent, intents.PodIntent):
        return acts.PodAct(outside=outside, target=intent.target, restart_count=0, intent=intent)
    return without_material(outside, intent)


async def _prepare_swap(
    outside: ports.Outside,
    decision: admission.Decision,
    *,
    target: targets.Target,
    pod: PodView,
    reason: str,
    now: float,
    ended_too: bool,
) -> acts.Act:
    made: list[tuple[intents.Intent, Material, Sequence[ContainerView]]] = []
    count = 1
    for name, order in decision.orders.items():
        found = target
        if name != target.view.ref.name:
            sibling = await targets.find(outside.runtime, ContainerRef(pod=pod.ref, name=name))
            if sibling is None or (sibling.info.state is not ContainerState.RUNNING and not ended_too):
                continue  # it was not hit, and what does not run is kubelet's to start
            exited = sibling.info.state is ContainerState.EXITED
            if exited and members.has_ended_for_good(pod, name, exit_code=sibling.info.exit_code):
                continue  # while this was decided
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
        )
        material = await targets.material(
            outside.runtime, found.info, intent=intent, pod=pod, processes=outside.processes
        )
        made.append((intent, material, found.siblings))
        if found is target:
            count = material.successor.restart_count
    sweep = _sweep(
        outside,
        pod.annotations,
        materials=[material for _, material, _ in made],
        waits_for=[intent.target.name for intent, _, _ in made],
    )
    swaps = tuple(acts.Swap(intent, replace(material, sweep=sweep), siblings) for intent, material, siblings in made)
    return acts.SwapAct(outside=outside, target=target.view.ref, restart_count=count, swaps=swaps, sweep=sweep)


def _sweep(
    outside: ports.Outside,
    annotations: Mapping[str, str],
    *,
    materials: Iterable[Material],
    waits_for: Iterable[str] = (),
) -> Sweep | None:
    """Return what is to be cleaned before anything new runs; None when the pod does not ask for that."""
    if options.Clean.SHM not in options.clean(annotations):
        return None
    return Sweep(
        outside.actuators.broom, places=[material.shared_memory for material in materials], waits_for=waits_for
    )


def _sweep_again(outside: ports.Outside, material: Material, *, pod: PodView | None) -> Sweep | None:
    """Return what a restart that an earlier agent has begun is to clean.

    None also where it may have been one of several containers: what of the others runs now is not known.
    """
    annotations = pod.annotations if pod is not None else material.sandbox_config.annotations
    try:
        several = len(options.parse(annotations).containers) > 1
    except options.BadAnnotationError:
        return None  # changed since it was begun
    return None if several else _sweep(outside, annotations, materials=[material])


def _trigger(pod: PodView, *, plan: Sequence[intents.Planned], preferred: str) -> ContainerId | None:
    chosen = rules.trigger(pod, preferred=preferred)
    assert chosen is not None, "admission has found one"
    return next((planned.old[-1] for planned in plan if planned.name == chosen.name and planned.old), None)


def _new_id() -> str:
    return uuid.uuid4().hex[:12]
