"""The metrics of JobSets: how many series of ended JobSets are kept."""

import pytest
from prometheus_client import CollectorRegistry

from kubemend.controller.jobsets import metrics
from kubemend.controller.jobsets.metrics import JobSetMetrics


def kept(registry: CollectorRegistry, name: str) -> list[str]:
    """Return the names of the JobSets of which this counter has a series."""
    samples = (sample for family in registry.collect() for sample in family.samples)
    return [sample.labels["jobset_name"] for sample in samples if sample.name == name]


def test_metrics_of_more_jobsets_than_are_kept_lose_the_oldest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "MOST_SERIES", 3)
    registry = CollectorRegistry()
    counted = JobSetMetrics(registry)
    for name in ("a", "b", "c"):
        counted.count("completed", namespace="team", name=name)
    assert kept(registry, "jobset_completed_total") == ["a", "b", "c"]
    counted.count("completed", namespace="team", name="a")
    counted.count("failed", namespace="team", name="a")
    assert kept(registry, "jobset_completed_total") == ["a", "c"]
    assert kept(registry, "jobset_failed_total") == ["a"]
    assert registry.get_sample_value("jobset_completed_total", {"jobset_name": "a", "namespace": "team"}) == 2
    for number in range(10):
        counted.count("failed", namespace="team", name=f"generated-{number}")
    assert kept(registry, "jobset_completed_total") == []
    assert kept(registry, "jobset_failed_total") == [f"generated-{number}" for number in (7, 8, 9)]
