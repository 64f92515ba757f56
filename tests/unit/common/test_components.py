"""Readiness depends on required components, and on no others; one of several sources is as good as its worst."""

import pytest

from kubemend.common import contained
from kubemend.common.components import ComponentRegistry, ComponentState, ComponentStatus, JointComponent
from tests.environments import node


@pytest.fixture
def parts() -> ComponentRegistry:
    return ComponentRegistry(show=node.metrics().show_part)


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


@pytest.mark.parametrize("state", list(ComponentState))
def test_metric_of_a_component_that_is_not_needed_is_that_of_one_that_works(state: ComponentState) -> None:
    """An alert could not tell it from one that fails."""
    metrics = node.metrics()
    ComponentRegistry(show=metrics.show_part).reporter("nvml")(ComponentStatus(state))
    ((sample,),) = [each.samples for each in metrics.part_ready.collect()]
    assert sample.value == (state in (ComponentState.READY, ComponentState.IDLE))


def test_failing_subscriber_ends_neither_the_component_nor_other_subscribers(parts: ComponentRegistry) -> None:
    """A subscriber looks at all pods, and a component that ends takes the process with it."""
    said: list[ComponentStatus] = []

    def failing(_: ComponentStatus) -> None:
        raise IndexError("about one of many pods")

    report = parts.reporter("kubernetes-api")
    for subscriber in (failing, said.append):
        parts.subscribe("kubernetes-api", subscriber)
    before = contained.count([contained.Part.LISTENER])
    report(ComponentStatus(ComponentState.READY))
    assert said == [ComponentStatus(ComponentState.READY)]
    assert contained.count([contained.Part.LISTENER]) == before + 1


def test_component_of_several_sources_has_worst_state() -> None:
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
