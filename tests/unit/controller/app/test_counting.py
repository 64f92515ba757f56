"""What is counted of a round's end."""

import pytest
from prometheus_client import CollectorRegistry

from controller.app import counting
from controller.app.counting import Gpus
from controller.app.metrics import Metrics
from controller.model.members import PodUid
from controller.model.samples import Sample
from controller.rounds import status
from tests.unit.controller import builders
from tests.unit.controller.app import test_spans
from tests.unit.controller.app.stage import Stage
from tests.unit.controller.app.test_conductor import round_of


def measured(index: int, *devices: str, generation: int = 0) -> list[Sample]:
    pod = builders.member(index, generation=generation).pod.uid
    return [Sample(pod, device, utilization=0.9, clock=0.9, power=0.9) for device in devices]


def counted(gpus: Gpus) -> CollectorRegistry:
    """Return what a round of two that took 200 ms leaves behind."""
    registry = CollectorRegistry()
    ended = test_spans.done()
    counting.count_end(ended, status.render(ended), metrics=Metrics(registry), gpus=gpus)
    return registry


def value(registry: CollectorRegistry, name: str, **labels: str) -> float | None:
    return registry.get_sample_value(f"kubemend_{name}", labels)


def test_gpus_of_a_gang_and_how_long_they_stood_still() -> None:
    gpus = Gpus()
    gpus.take(measured(0, "a", "b"))
    gpus.take(measured(1, "c"))
    gpus.take(measured(7, "of another gang"))
    registry = counted(gpus)
    assert value(registry, "round_gpus_total", phase="Done") == 3
    assert value(registry, "round_gpu_seconds_total", phase="Done") == pytest.approx(3 * 0.2)


def test_what_was_never_measured_is_not_counted() -> None:
    registry = counted(Gpus())
    assert value(registry, "round_gpus_total", phase="Done") == 0
    assert value(registry, "rounds_total", phase="Done") == 1


def test_steps_and_the_whole() -> None:
    registry = counted(Gpus())
    steps = {step: value(registry, "round_step_seconds_sum", step=step) for step in ("decide", "stop", "release")}
    assert steps == {"decide": pytest.approx(0.1), "stop": pytest.approx(0.08), "release": pytest.approx(0.02)}
    assert value(registry, "round_seconds_sum", phase="Done") == pytest.approx(0.2)


def test_what_grows_is_there_before() -> None:
    registry = CollectorRegistry()
    Metrics(registry)
    for phase in ("Done", "Degraded", "Failed"):
        assert value(registry, "rounds_total", phase=phase) == 0
        assert value(registry, "round_gpus_total", phase=phase) == 0


def test_a_device_that_is_told_twice_is_one_and_pods_that_are_gone_hold_none() -> None:
    gpus = Gpus()
    gpus.take([*measured(0, "a", "a"), *measured(1, "b")])
    state = test_spans.begun()
    assert gpus.of(state.members.values()) == 2
    gpus.forget(unless=lambda pod: pod == PodUid("uid-1-0"))
    assert gpus.of(state.members.values()) == 1


async def test_a_leader_counts_what_agents_have_measured() -> None:
    stage = Stage(builders.gang(3))
    stage.outside.gpus.take(measured(0, "a", "b", "c"))
    async with stage.leading() as conductor:
        stage.fails(conductor, 1)
        await round_of(stage, conductor)
    assert stage.outside.metrics.round_gpus.labels("Done")._value.get() == 3
