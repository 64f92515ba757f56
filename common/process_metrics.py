"""Export metrics of the process itself: its resource usage, and abandoned work."""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, disable_created_metrics
from prometheus_client.metrics_core import CounterMetricFamily
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from kubemend.common import contained
from kubemend.common.contained import Part


def registry() -> CollectorRegistry:
    """Return a registry with the resource usage of the process.

    Counters and histograms are exported without the time of their creation: that would be a series more for each.
    """
    disable_created_metrics()  # type: ignore[no-untyped-call]  # it has no annotations
    made = CollectorRegistry()
    ProcessCollector(registry=made)
    PlatformCollector(registry=made)
    return made


class ContainedFailures(Collector):
    """Export how often work was abandoned (``common.contained``).

    ``always`` are exported at 0, too: a metric that is watched for growth must exist before.
    """

    def __init__(self, always: Iterable[Part]) -> None:
        self._always = frozenset(always)

    def describe(self) -> Iterator[CounterMetricFamily]:
        """Yield the metric without values."""
        yield _family()

    def collect(self) -> Iterator[CounterMetricFamily]:
        """Yield the metric with the counts."""
        family = _family()
        for part in Part:
            count = contained.count([part])
            if count or part in self._always:
                family.add_metric([part.value], count)
        yield family


def _family() -> CounterMetricFamily:
    return CounterMetricFamily(
        "kubemend_contained_failures",
        "Work on one pod, container, device or gang that was abandoned because of an internal error, by kind of work. "
        "Alert if greater than 0.",
        labels=["part"],
    )
