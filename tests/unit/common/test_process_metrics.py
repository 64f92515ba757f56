"""The metrics of a process about itself."""

from prometheus_client import CollectorRegistry, Counter, generate_latest

from kubemend.common import contained, process_metrics
from kubemend.common.contained import Part

_NAME = "kubemend_contained_failures_total"


def test_failures_are_exported_also_at_zero_if_watched() -> None:
    registry = CollectorRegistry()
    registry.register(process_metrics.ContainedFailures([Part.STRAGGLER, Part.RECREATION]))

    def exported(part: Part) -> float | None:
        return registry.get_sample_value(_NAME, {"part": part.value})

    before = contained.count([Part.STRAGGLER])
    assert exported(Part.STRAGGLER) == before
    contained.given_up(Part.STRAGGLER)
    assert exported(Part.STRAGGLER) == before + 1
    assert exported(Part.RECREATION) == contained.count([Part.RECREATION])


def test_other_kinds_are_exported_only_once_counted() -> None:
    registry = CollectorRegistry()
    registry.register(process_metrics.ContainedFailures([]))
    counted = {part.value for part in Part if contained.count([part])}
    samples = [sample for family in registry.collect() for sample in family.samples]
    assert {sample.labels["part"] for sample in samples} == counted


def test_counters_have_no_series_with_the_time_of_their_creation() -> None:
    registry = process_metrics.registry()
    Counter("things", "Things.", ["kind"], registry=registry).labels("x").inc()
    page = generate_latest(registry).decode()
    assert 'things_total{kind="x"} 1.0' in page
    assert "_created" not in page
