"""Counters at a round's end."""

import pytest
from prometheus_client import CollectorRegistry

from kubemend.controller.coordinator import round_metrics
from kubemend.controller.coordinator.round_metrics import Gpus
from kubemend.controller.metrics import Metrics
from kubemend.controller.model.members import PodUid, Sample
from kubemend.controller.rounds import status
from tests.unit.controller import builders
from tests.unit.controller.coordinator import test_spans
from tests.unit.controller.coordinator.env import CoordinatorEnv
from tests.unit.controller.coordinator.test_coordinator import round_of


def measured(index: int, *devices: str, generation: int = 0) -> list[Sample]:
    pod = builders.member(index, generation=generation).pod.uid
    return [Sample(pod, device, utilization=0.9, clock=0.9, power=0.9) for device in devices]


def counted(gpus: Gpus) -> CollectorRegistry:
    """Return the metrics after a round of two members that took 200 ms."""
    registry = CollectorRegistry()
    ended = test_spans.done()
    round_metrics.count_end(ended, status.render(ended), metrics=Metrics(registry), gpus=gpus)
    return registry


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"kubemend_{name}", labels)


def test_gpus_of_gang_and_idle_seconds_are_counted() -> None:
    gpus = Gpus()
    gpus.record(measured(0, "a", "b"))
    gpus.record(measured(1, "c"))
    gpus.record(measured(7, "of another gang"))
    registry = counted(gpus)
    assert value(registry, "round_gpus_total", phase="Done") == 3
    assert value(registry, "round_gpu_seconds_total", phase="Done") == pytest.approx(3 * 0.2)


def test_gpus_without_measurements_are_not_counted() -> None:
    registry = counted(Gpus())
    assert value(registry, "round_gpus_total", phase="Done") == 0
    assert value(registry, "rounds_total", phase="Done") == 1


def test_steps_and_total_are_observed() -> None:
    registry = counted(Gpus())
    steps = {step: value(registry, "round_step_seconds_sum", step=step) for step in ("decide", "stop", "release")}
    assert steps == {"decide": pytest.approx(0.1), "stop": pytest.approx(0.08), "release": pytest.approx(0.02)}
    assert value(registry, "round_seconds_sum", phase="Done") == pytest.approx(0.2)


def test_series_exist_before_the_first_round() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    for phase in ("Done", "Degraded", "Failed"):
        assert value(registry, "rounds_total", phase=phase) == 0
        assert value(registry, "round_gpus_total", phase=phase) == 0


def test_repeated_device_counts_once_and_deleted_pod_holds_none() -> None:
    gpus = Gpus()
    gpus.record([*measured(0, "a", "a"), *measured(1, "b")])
    state = test_spans.begun()
    assert gpus.of(state.members.values()) == 2
    gpus.forget(unless=lambda pod: pod == PodUid("uid-1-0"))
    assert gpus.of(state.members.values()) == 1


async def test_leader_counts_measurements_of_agents() -> None:
    env = CoordinatorEnv(builders.gang(3))
    env.dependencies.gpus.record(measured(0, "a", "b", "c"))
    async with env.leading() as coordinator:
        env.fails(coordinator, 1)
        await round_of(env, coordinator)
    assert env.dependencies.metrics.round_gpus.labels("Done")._value.get() == 3
