"""A part of several sources does as well as the one that does worst."""

from common.joint_part import JointPart
from common.parts import PartState, PartStatus


def test_it_is_as_good_as_its_worst_source() -> None:
    reports: list[PartStatus] = []
    part = JointPart(reports.append)
    first, second = part.reporter(), part.reporter()
    away = PartStatus(PartState.DEGRADED, "away", "mend it")
    first(PartStatus(PartState.READY))
    second(PartStatus(PartState.IDLE, "nothing to do"))
    first(away)
    second(PartStatus(PartState.READY))
    first(PartStatus(PartState.READY))
    starting, idle, broken, still_broken, ready = reports
    assert (starting.state, idle.state, ready.state) == (PartState.STARTING, PartState.READY, PartState.READY)
    assert broken == still_broken == away
