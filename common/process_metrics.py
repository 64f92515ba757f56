"""What every long-running process of ours exports of itself: what it costs, and what work it has given up."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from common import contained
from common.contained import Part


def registry() -> CollectorRegistry:
    """Return a registry that has what the process itself costs."""
    made = CollectorRegistry()
    ProcessCollector(registry=made)
    PlatformCollector(registry=made)
    return made


class ContainedFailures(Collector):
    """How often work was given up (``common.contained``).

    ``always`` are shown at 0, too: what is watched for growth must be there before.
    """

    def __init__(self, always: Iterable[Part]) -> None:
        self._always = frozenset(always)

    def describe(self) -> Iterator[CounterMetricFamily]:
        """Yield the metric without values."""
        yield _family()

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the metric with what has been counted."""
        family = _family()
        for part in Part:
            count = contained.count([part])
            if count or part in self._always:
                family.add_metric([part.value], count)
        yield family


def _family() -> CounterMetricFamily:
    return CounterMetricFamily(
        "kubemend_contained_failures",
        "Work on one pod, container, device or gang that was given up for a defect of ours, by kind of work: "
        "must be 0.",
        labels=["part"],
    )
