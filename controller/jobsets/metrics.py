"""Metrics of JobSets. Upstream's two have upstream's names; all are part of the API (docs/operations.md)."""

import contextlib
from collections.abc import Iterator
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from kubemend.common.kube import errors

_FROM_MILLISECONDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)

RESTARTED: Final = {"restarted": "Recreate", "restarted_job": "Job", "restarted_in_place": "InPlace"}
"""Kinds of restarts, by the key in ``Plan.counts``."""

MOST_SERIES: Final = 1000
"""Series of single JobSets that are kept, the newest ones: any number of JobSets with generated names end in time."""


class JobSetMetrics:
    """The metrics of JobSets; one instance per process."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.failed = Counter(
            "jobset_failed", "JobSets that have failed.", ["jobset_name", "namespace"], registry=registry
        )
        self.completed = Counter(
            "jobset_completed", "JobSets that have completed.", ["jobset_name", "namespace"], registry=registry
        )
        self.reconcile_seconds = Histogram(
            "kubemend_jobset_reconcile_seconds",
            "Seconds of each reconcile of a JobSet: decide (without any I/O), and whole (with its writes).",
            ["step"],
            buckets=_FROM_MILLISECONDS,
            registry=registry,
        )
        self.restarts = Counter(
            "kubemend_jobset_restarts",
            "Restarts of JobSets in their status, by kind.",
            ["kind"],
            registry=registry,
        )
        for kind in RESTARTED.values():
            self.restarts.labels(kind)
        self._series: dict[tuple[Counter, str, str], None] = {}  # the one that changed last comes last
        self.writes = Counter(
            "kubemend_jobset_writes",
            "Writes for JobSets, by kind and result.",
            ["write", "result"],
            registry=registry,
        )
        self.waiting = Gauge(
            "kubemend_jobset_queue_depth",
            "JobSets that wait for a reconcile or are being reconciled.",
            registry=registry,
        )

    def count(self, what: str, *, namespace: str, name: str) -> None:
        """Count an outcome of a plan."""
        if what == "failed":
            self._count_one(self.failed, namespace=namespace, name=name)
        elif what == "completed":
            self._count_one(self.completed, namespace=namespace, name=name)
        else:
            self.restarts.labels(RESTARTED[what]).inc()

    @contextlib.contextmanager
    def written(self, write: str) -> Iterator[None]:
        """Count the write in the block, with its result."""
        result = "failed"
        try:
            yield
            result = "done"
        except errors.ConflictError:
            result = "conflict"
            raise
        finally:
            self.writes.labels(write, result).inc()

    def _count_one(self, counter: Counter, *, namespace: str, name: str) -> None:
        """Count one JobSet, and remove the series that changed least recently if there are too many."""
        counter.labels(name, namespace).inc()
        series = counter, name, namespace
        self._series.pop(series, None)
        self._series[series] = None
        if len(self._series) > MOST_SERIES:
            oldest = next(iter(self._series))
            del self._series[oldest]
            oldest[0].remove(*oldest[1:])
