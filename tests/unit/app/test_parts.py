"""Whether the agent is ready depends on the parts that it needs, and on no others."""

import pytest
from prometheus_client import CollectorRegistry

from agent.engine.metrics import Metrics
from common.parts import Parts, PartState, PartStatus


@pytest.fixture
def parts() -> Parts:
    return Parts(show=Metrics(CollectorRegistry()).show_part)


@pytest.mark.parametrize("state", list(PartState))
def test_a_part_that_is_needed_must_work_or_not_be_needed_here(parts: Parts, state: PartState) -> None:
    parts.reporter("nvml")(PartStatus(state))
    assert parts.ready() == (state in (PartState.READY, PartState.IDLE))


@pytest.mark.parametrize("state", list(PartState))
def test_a_part_that_can_be_done_without_holds_nothing_up(parts: Parts, state: PartState) -> None:
    parts.reporter("hub", needed=False)(PartStatus(state, "no hub answers", "start it"))
    assert parts.ready()
    assert parts.all()["hub"] == PartStatus(state, "no hub answers", "start it")
    parts.reporter("nvml")
    assert not parts.ready()
