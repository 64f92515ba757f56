"""The judge of programs whose agent or launcher was killed, and the moments of the kills."""

import pytest

from bench import launched
from bench.launched import Blow, Fault, Now, Wrong

BEFORE = Now(uid="u", step=10, lives=[0], overlaps=0, programs=[7])
AFTER = Now(uid="u", step=30, lives=[0, 12], overlaps=0, programs=[9])
XID = Blow("first", Fault.XID, launcher_killed=None)
KILLED = Blow("first", Fault.XID, launcher_killed=0.1)


def after(**changes: object) -> Now:
    fields = {name: getattr(AFTER, name) for name in Now.__dataclass_fields__}
    return Now(**fields | changes)


@pytest.mark.parametrize(
    ("now", "blow", "wrong"),
    [
        (AFTER, XID, set()),
        (AFTER, KILLED, set()),
        (after(lives=[0, 12, 13]), KILLED, set()),
        (after(lives=[0, 12, 13]), XID, {Wrong.NOT_ONCE}),
        (AFTER, None, {Wrong.NOT_ONCE}),
        (after(lives=[0], programs=[7]), None, set()),
        (after(lives=[0], programs=[7]), XID, {Wrong.LOST}),
        (after(overlaps=1), XID, {Wrong.TWO_RAN}),
        (after(lives=[0, 9]), XID, {Wrong.STEPS_LOST}),
        (after(uid="other"), KILLED, {Wrong.MOVED}),
    ],
)
def test_each_violation_is_found(now: Now, blow: Blow | None, wrong: set[Wrong]) -> None:
    assert launched.judge(BEFORE, now, blow, hit=7 if blow else None) == wrong


def test_plans_repeat_with_their_seed_and_each_has_a_kill() -> None:
    plans = list(launched.draw(launched.PODS, count=200, seed=3))
    assert plans == list(launched.draw(launched.PODS, count=200, seed=3))
    assert all(
        plan.agent_killed is not None or all(blow.launcher_killed is not None for blow in plan.blows) for plan in plans
    )
    both = [plan for plan in plans if plan.agent_killed is not None and plan.blows[0].launcher_killed is not None]
    assert both
    assert {blow.fault for plan in plans for blow in plan.blows} == set(Fault)
    assert "launcher killed at" in str(both[0])
