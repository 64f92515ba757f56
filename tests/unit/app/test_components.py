"""The agent's readiness depends on its required components, and on no others."""

import pytest
from prometheus_client import CollectorRegistry

from kubemend.agent.metrics import Metrics
from kubemend.common.components import ComponentRegistry, ComponentState, ComponentStatus


@pytest.fixture
def parts() -> ComponentRegistry:
    return ComponentRegistry(show=Metrics(CollectorRegistry()).show_part)


@pytest.mark.parametrize("state", list(ComponentState))
def test_required_component_must_be_ready_or_idle(parts: ComponentRegistry, state: ComponentState) -> None:
    parts.reporter("nvml")(ComponentStatus(state))
    assert parts.ready() == (state in (ComponentState.READY, ComponentState.IDLE))


@pytest.mark.parametrize("state", list(ComponentState))
def test_optional_component_does_not_block_readiness(parts: ComponentRegistry, state: ComponentState) -> None:
    parts.reporter("hub", needed=False)(ComponentStatus(state, "no hub answers", "start it"))
    assert parts.ready()
    assert parts.all()["hub"] == ComponentStatus(state, "no hub answers", "start it")
    parts.reporter("nvml")
    assert not parts.ready()
