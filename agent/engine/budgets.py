"""The restarts that were begun, for the budgets: in memory as on disk, so that decisions side by side stay exact."""

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from agent.engine import ports
from agent.history.store import COUNT_SECONDS, Store
from agent.model.workloads import ContainerRef, PodView
from agent.restart import admission, counts, intents, options
from agent.restart.device_budget import ON_DEVICE
from common import budgets, contained


class Budgets:
    """Counts restarts. ``storm`` is the node's own budget.

    A restart counts from the moment in which it was decided on, which is before it is in the journal: another one that
    is decided on meanwhile must know of it. What is not begun after all is taken back.
    """

    def __init__(self, *, store: Store, now: Callable[[], float], storm: budgets.Window) -> None:
        self._store = store
        self._now = now
        self.storm = storm
        self._begun: list[counts.Begun] = []
        self._about_to_begin: list[counts.Begun] = []
        self._loaded = False

    async def load(self) -> None:
        """Take up what earlier agents have begun; does so once. Raises HistoryError: then nothing may be decided."""
        if self._loaded:
            return
        earlier = await self._store.begun_since(self._now() - COUNT_SECONDS)
        if not self._loaded:  # another request may have been faster
            self._begun[:0] = earlier
            self._loaded = True

    def history(self, target: ContainerRef, *, device: str | None) -> counts.History:
        """Return what counts for a restart of the container because of a device (None: of no device)."""
        everything = (*self._begun, *self._about_to_begin)
        return counts.History.of(everything, target=target, device=device, now=self._now())

    @contextlib.contextmanager
    def counting(self, facts: admission.Facts, decision: admission.Decision) -> "Iterator[Counted]":
        """Count a restart that has been admitted. It is taken back at the end of the block, unless it was begun."""
        assert facts.pod is not None
        whole_pod = decision.strategy is not intents.Strategy.SWAP
        names = (spec.name for spec in facts.pod.containers) if whole_pod else decision.orders
        counted = counts.Begun(
            pod=facts.pod.ref.uid,
            containers=frozenset(names),
            at=self._now(),
            fault_at=facts.cause.happened_at,
            device=facts.cause.device,
        )
        self._about_to_begin.append(counted)
        try:
            yield Counted(counted, self)
        finally:
            if counted in self._about_to_begin:
                self._about_to_begin.remove(counted)

    def keep(self, counted: counts.Begun) -> None:
        """Count a restart for good, for it is in the journal; what no longer counts is forgotten."""
        self._about_to_begin.remove(counted)
        self._begun = [each for each in self._begun if each.at > counted.at - COUNT_SECONDS]
        self._begun.append(counted)

    def all(self) -> tuple[counts.Begun, ...]:
        """Return everything that has been begun."""
        return tuple(self._begun)


@dataclass(frozen=True, slots=True)
class Counted:
    """A restart that counts already, though it has not been begun."""

    restart: counts.Begun
    budgets: Budgets

    def has_begun(self) -> None:
        """Call once it is in the journal."""
        self.budgets.keep(self.restart)


class BudgetGauges(Collector):
    """What is left of the budgets, worked out when it is asked for.

    Only budgets that something was taken from are told, and only of pods that are on the node: the series stay few.
    """

    def __init__(self, budgets: Budgets, *, pods: ports.Pods, now: Callable[[], float]) -> None:
        self._budgets = budgets
        self._pods = pods
        self._now = now

    def describe(self) -> Iterator[Metric]:
        """Name the metrics without working anything out (nothing is known yet when this is registered)."""
        yield from self._families()

    def collect(self) -> Iterator[Metric]:
        """Yield what is left now."""
        of_workload, of_device, of_node = self._families()
        now = self._now()
        begun = budgets.noted_by(self._budgets.all(), now=now)
        for uid in {each.pod for each in begun}:
            if (pod := self._pods.pods().get(uid)) is not None:
                with contained.within(contained.Part.RESTART, pod.ref):  # else nothing at all could be scraped
                    self._add_pod(of_workload, pod, past=counts.of_pod(begun, uid), now=now)
        for device in {each.device for each in begun if each.device is not None}:
            left = ON_DEVICE.left(counts.on_device(begun, device), now=now)
            if left < ON_DEVICE.limit:
                of_device.add_metric([device], left)
        of_node.add_metric([], self._budgets.storm.left(begun, now=now))
        yield from (of_workload, of_device, of_node)

    def _add_pod(self, family: GaugeMetricFamily, pod: PodView, *, past: Sequence[counts.Begun], now: float) -> None:
        try:
            allowance = options.parse(pod.annotations).budget()
        except options.BadAnnotationError:
            return  # nothing of it is restarted
        scopes = {
            name: (allowance.restarts, counts.of_container(past, name)) for each in past for name in each.containers
        }
        for name, (window, mine) in {"": (allowance.of_pod, past), **scopes}.items():
            left = window.left(mine, now=now)
            if left < window.limit:
                family.add_metric([pod.ref.namespace, pod.ref.name, name], left)

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
        return (
            GaugeMetricFamily(
                "kubemend_restart_budget_left",
                "Restarts that a container's budget still allows, or with an empty container its pod's; none: all.",
                labels=["namespace", "pod", "container"],
            ),
            GaugeMetricFamily(
                "kubemend_device_restart_budget_left",
                "Restarts because of that device that may still fail to last; none: all.",
                labels=["device"],
            ),
            GaugeMetricFamily(
                "kubemend_node_restart_budget_left",
                "Restarts that the node's storm guard still lets begin; 0: a storm.",
            ),
        )
