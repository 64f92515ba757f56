"""What a process exports of itself."""

from prometheus_client import CollectorRegistry

from common import contained, process_metrics
from common.contained import Part

_NAME = "kubemend_contained_failures_total"


def test_failures_are_exported_as_they_are_counted_and_what_is_watched_at_0_too() -> None:
    registry = CollectorRegistry()
    registry.register(process_metrics.ContainedFailures([Part.STRAGGLER, Part.RECREATION]))

    def exported(part: Part) -> float | None:
        return registry.get_sample_value(_NAME, {"part": part.value})

    before = contained.count([Part.STRAGGLER])
    assert exported(Part.STRAGGLER) == before
    contained.given_up(Part.STRAGGLER)
    assert exported(Part.STRAGGLER) == before + 1
    assert exported(Part.RECREATION) == contained.count([Part.RECREATION])


def test_what_this_process_never_does_is_exported_only_when_it_was_counted() -> None:
    registry = CollectorRegistry()
    registry.register(process_metrics.ContainedFailures([]))
    counted = {part.value for part in Part if contained.count([part])}
    samples = [sample for family in registry.collect() for sample in family.samples]
    assert {sample.labels["part"] for sample in samples} == counted
