"""Check a cell that was played, seen from outside. Each check yields the lines of its failures."""

from collections.abc import Callable, Iterator
from pathlib import Path

from kubemend.agent.model.workloads import ContainerState
from kubemend.agent.restart import admission, host_files
from kubemend.agent.restart.intents import Strategy, SwapOrder
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restart.verification import CheckState
from tests.scenarios.matrix import cells, pods
from tests.scenarios.matrix.cells import INIT, MAIN, Acts, Look, Shape
from tests.scenarios.matrix.env import Played
from tests.scenarios.matrix.eyes import Snapshot, container_id

Check = Callable[[Played, Snapshot, Snapshot], Iterator[str]]


def violations(scene: Played, *, can_hold: bool) -> list[str]:
    """Return all failures of the cell, each with the cell's name before it."""
    assert scene.after is not None
    assert scene.later is not None
    reason = cells.refusal(scene.cell, can_hold=can_hold)
    found = list(_refused(scene, reason)) if reason is not None else _restarted(scene, scene.after, scene.later)
    return [f"{scene.cell}: {line}" for line in found]


def _refused(scene: Played, reason: Reason) -> Iterator[str]:
    decision = scene.progress.decision
    if decision is None or (decision.verb, decision.reason) != (admission.Verb.REFUSE, reason):
        yield f"should be refused for {reason.value}, but: {decision}"
    if scene.calls:
        yield f"refused, and yet these calls were made: {', '.join(scene.calls)}"


def _restarted(scene: Played, after: Snapshot, later: Snapshot) -> list[str]:
    decision = scene.progress.decision
    if _kubelet_was_first(scene):
        return [line for check in _KUBELETS_CHECKS for line in check(scene, scene.before, later)]
    if decision is None or decision.verb is not admission.Verb.ACT:
        return [f"should be restarted, but: {decision}"]
    found = list(_place(scene))
    for check in _CHECKS:
        found += check(scene, scene.before, after)
    found += _one_of_each(scene, scene.before, later)
    found += _previous(scene, later)
    if _present(later) != _present(after):
        found.append(f"kubelet was not at rest: {_states(after)} became {_states(later)}")
    return found


def _kubelet_was_first(scene: Played) -> bool:
    """Return whether kubelet had replaced a container, which had ended by itself, before the agent removed any."""
    decision, by_itself = scene.progress.decision, scene.cell.end.by_itself and scene.cell.look is Look.ANY
    return by_itself and decision is not None and decision.reason is Reason.ALREADY_REPLACED


def _whole_pod(scene: Played) -> bool:
    """Return whether all containers of the pod are replaced: kubelet replaces only the ended one, except by a rule."""
    strategy = scene.cell.strategy
    return pods.whole(strategy) and (strategy is Strategy.RULES or not _kubelet_was_first(scene))


def _place(scene: Played) -> Iterator[str]:
    if scene.cell.look is not Look.ANY and not scene.held:
        yield f"never came to its place {cells.place(scene.cell)}; calls: {', '.join(scene.calls)}"


def _never_ended(scene: Played, _before: Snapshot, _after: Snapshot) -> Iterator[str]:
    phases = [status.get("phase", "") for status in scene.statuses]
    if ended := {"Failed", "Succeeded"} & set(phases):
        yield f"the pod's phase was {', '.join(ended)}: {' '.join(phases)}"


def _verified(scene: Played, _before: Snapshot, _after: Snapshot) -> Iterator[str]:
    if not scene.progress.checks:
        yield f"was not settled: {scene.progress.report}"
    for check in scene.progress.checks:
        if check.state is not CheckState.PASSED:
            yield f"its own check {check.name} {check.state.value}: {check.detail}"


def _one_of_each(scene: Played, _before: Snapshot, after: Snapshot) -> Iterator[str]:
    for name in scene.cell.shape.lasting:
        running = after.running(name)
        if len(running) != 1:
            yield f"{len(running)} containers {name} run: {_states(after)}"
        elif after.shown(name) != running[0]:
            yield f"kubelet shows {after.shown(name)} for {name}, not {running[0]}"
    if waiting := [view.id for view in after.views if view.state is ContainerState.CREATED]:
        yield f"left behind CREATED: {waiting}"


def _same_pod(_scene: Played, before: Snapshot, after: Snapshot) -> Iterator[str]:
    for what, key in (("UID", "uid"), ("name", "name")):
        if before.pod["metadata"][key] != after.pod["metadata"][key]:
            yield f"{what} changed"
    if before.pod["status"].get("podIP") != after.pod["status"].get("podIP"):
        yield f"IP {before.pod['status'].get('podIP')} became {after.pod['status'].get('podIP')}"
    if {view.sandbox_id for view in before.views} != {view.sandbox_id for view in after.views}:
        yield "the sandbox changed"


def _counted(scene: Played, before: Snapshot, after: Snapshot) -> Iterator[str]:
    for name in scene.cell.shape.names:
        grown = after.restarts(name) - before.restarts(name)
        allowed = counts(scene, name)
        if grown not in allowed:
            yield f"restartCount of {name} grew by {grown}, not by {' or '.join(map(str, allowed))}"


def counts(scene: Played, name: str) -> tuple[int, ...]:
    """Return the allowed growth of a container's restartCount: one, and one more where kubelet has stepped in."""
    cell, disturbed = scene.cell, scene.cell.look in (Look.FIRST_GAP, Look.SECOND_GAP, Look.ANY)
    if _whole_pod(scene):
        # By its rules kubelet counts once or twice; containers that it starts too early are removed, to be started
        # again; and it restarts a container by itself that has ended by itself.
        steps_in = (cell.strategy is Strategy.RULES or disturbed) + cell.end.by_itself
        return tuple(range(1, 2 + 2 * steps_in))
    if name != MAIN:
        return (0,)
    if cell.look is Look.ANY:
        return (1, 2)
    # Kubelet creates a copy of a successor that it finds in CREATED. The copy's name is reserved, except on CRI-O, and
    # where the successor is started at once next to the old container.
    is_reserved = not cell.on_crio and not cell.order.starts_first
    found_created = (cell.look is Look.SECOND_GAP and not cell.order.starts_first) or cell.acts is Acts.BY_TIMER
    return (2,) if found_created and not is_reserved else (1,)


def _replaced(scene: Played, before: Snapshot, after: Snapshot) -> Iterator[str]:
    for name in scene.cell.shape.names:
        old, new = before.shown(name), after.shown(name)
        affected = name == MAIN or _whole_pod(scene)
        if affected and old == new:
            yield f"{name} is still the old one"
        if not affected and old != new:
            yield f"{name} was none of its business, and is another one now"
    if INIT in scene.cell.shape.names:
        runs = after.lines("init-runs") - before.lines("init-runs")
        if runs not in (_init_runs(scene.cell) if _whole_pod(scene) else (0,)):
            yield f"the init container ran {runs} times"


def _init_runs(cell: cells.Cell) -> tuple[int, ...]:
    """Return how often the init container may run in a restart.

    Known gap: kubelet takes one of ours that it finds CREATED for one that it must start, and runs another one.
    """
    seen_created = cell.strategy is Strategy.RERUN and (cell.look in (Look.SECOND_GAP, Look.ANY) or cell.needs_kubelet)
    return (1, 2) if seen_created else (1,)


def _never_two_at_once(scene: Played, before: Snapshot, after: Snapshot) -> Iterator[str]:
    """Check that the old one ended before its successor's first instruction; a held one counts from its release.

    Known gap on CRI-O: a container that kubelet starts by its timer while the successor waits CREATED runs next to the
    old container until that has been stopped, which takes its grace period.
    """
    cell, old = scene.cell, after.infos.get(before.shown(MAIN))
    by_timer = cell.on_crio and (cell.acts is Acts.BY_TIMER or cell.look is Look.ANY)
    known = cell.order.starts_first or (cell.order is SwapOrder.CREATE_FIRST and by_timer)
    for new in after.running(MAIN):
        if old is not None and not known:
            late = (old.finished_at - after.infos[new].started_at) / 1e6
            if late > 0:
                yield f"the successor began {late:.1f} ms before the old one had ended"


def _logs(scene: Played, _before: Snapshot, after: Snapshot) -> Iterator[str]:
    for name in scene.cell.shape.lasting:
        for container in after.running(name):
            info = after.infos[container]
            log = Path(info.log_path)
            if not log.exists() or "speaks" not in log.read_text():
                yield f"kubectl logs of {name} has nothing to read at {log}"
            # A whole pod's restartCount may be ahead: kubelet has counted a container that it found missing.
            if log.name != f"{after.restarts(name)}.log" and not pods.whole(scene.cell.strategy):
                yield f"the log of {name} is {log.name} at restartCount {after.restarts(name)}"
            link = after.links / host_files.log_symlink_name(info.ref, container)
            if not link.is_symlink() or link.resolve() != log.resolve():
                yield f"no link to the log of {name} at {link.name}"


def _previous(scene: Played, later: Snapshot) -> Iterator[str]:
    """Check that the old container stays readable.

    Known gaps: a whole pod is removed with its old containers; where ours has given way to kubelet's after it ran,
    kubelet may have collected the old one in favour of ours.
    """
    running = later.running(MAIN)
    is_ours = any(view.id in running and view.restart_id is not None for view in later.views)
    if not pods.whole(scene.cell.strategy) and is_ours and not previous_is_readable(later):
        last = later.status(MAIN).get("lastState")
        yield f"kubectl logs --previous has nothing to read: lastState {last}, {_states(later)}"


def previous_is_readable(seen: Snapshot) -> bool:
    """kubectl logs --previous reads the log of the container in lastState, from the runtime."""
    ended = container_id((seen.status(MAIN).get("lastState") or {}).get("terminated") or {})
    info = seen.infos.get(ended)
    return info is not None and Path(info.log_path).exists() and "speaks" in Path(info.log_path).read_text()


def _messages(_scene: Played, _before: Snapshot, after: Snapshot) -> Iterator[str]:
    for container in after.running(MAIN):
        if words := after.last_words(container):
            yield f"its termination message is stale: {words!r}"


def _hooks(scene: Played, before: Snapshot, after: Snapshot) -> Iterator[str]:
    if scene.cell.shape is Shape.PRE_STOP:
        wanted = int(scene.cell.end.with_grace and scene.cell.strategy is not Strategy.RULES)
        if (ran := after.lines("pre-stop") - before.lines("pre-stop")) != wanted:
            yield f"preStop ran {ran} times, not {wanted}"
    if scene.cell.shape is Shape.POST_START and scene.hooked != 1:
        yield f"postStart ran {scene.hooked} times in the container that runs now"


_KUBELETS_CHECKS: tuple[Check, ...] = (_never_ended, _one_of_each, _same_pod, _counted, _replaced)
_CHECKS: tuple[Check, ...] = (
    _never_ended,
    _verified,
    _one_of_each,
    _same_pod,
    _counted,
    _replaced,
    _never_two_at_once,
    _logs,
    _messages,
    _hooks,
)


def _present(seen: Snapshot) -> dict[str, ContainerState]:
    """Return the containers that run or may run: kubelet collects ended ones at any time."""
    return {view.id: view.state for view in seen.views if view.state is not ContainerState.EXITED}


def _states(seen: Snapshot) -> str:
    return ", ".join(
        f"{view.ref.name}/{view.attempt} {view.state.value}{' (ours)' if view.restart_id else ''}"
        for view in seen.views
    )
