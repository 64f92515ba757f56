"""A component of several sources has the state of the worst one."""

from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.joint_component import JointComponent


def test_it_is_as_good_as_its_worst_source() -> None:
    reports: list[ComponentStatus] = []
    part = JointComponent(reports.append)
    first, second = part.reporter(), part.reporter()
    away = ComponentStatus(ComponentState.DEGRADED, "away", "hint it")
    first(ComponentStatus(ComponentState.READY))
    second(ComponentStatus(ComponentState.IDLE, "nothing to do"))
    first(away)
    second(ComponentStatus(ComponentState.READY))
    first(ComponentStatus(ComponentState.READY))
    starting, idle, broken, still_broken, ready = reports
    assert (starting.state, idle.state, ready.state) == (
        ComponentState.STARTING,
        ComponentState.READY,
        ComponentState.READY,
    )
    assert broken == still_broken == away
