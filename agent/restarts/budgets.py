"""Count restarts for the budgets, in memory and on disk, so that concurrent decisions are exact."""

import bisect
import contextlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import structlog
from prometheus_client.metrics_core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from kubemend.agent import ports
from kubemend.agent.clients.journal.store import COUNT_SECONDS, JournalError, Store
from kubemend.agent.model.workloads import ContainerRef, PodUid, PodView
from kubemend.agent.restart import admission, counts, intents, options
from kubemend.agent.restart.budget import ON_DEVICE, left_of_storm
from kubemend.agent.restart.strategies import SPECS, Scope
from kubemend.common import budgets, contained

log = structlog.get_logger(__name__)

_MOST_LOGGED: Final = 10
"""Counts of a state file that cannot be read and are logged one by one."""


class Budgets:
    """Count restarts. ``storm`` is the node's own budget.

    A restart counts from its decision, before it is in the journal, so that concurrent decisions see it. A restart that
    does not start is removed again.
    """

    def __init__(self, *, store: Store, now: Callable[[], float], storm: budgets.Window) -> None:
        self._store = store
        self._now = now
        self.storm = storm
        self._begun: list[counts.Begun] = []
        self._about_to_begin: list[counts.Begun] = []
        self._forgotten: list[counts.Begun] = []  # in the journal still
        self._loaded = False

    async def load(self) -> None:
        """Load the restarts of previous agents, once. Raises JournalError: nothing may be decided then.

        One that cannot be read counts as far as its pod and its time are known.
        """
        if self._loaded:
            return
        since = self._now() - COUNT_SECONDS
        earlier, unreadable = await self._store.begun_since(since), await self._store.unreadable_counts(since)
        if not self._loaded:  # another request may have been faster
            self._begun += earlier
            self._loaded = True
            for reason in unreadable[:_MOST_LOGGED]:
                log.warning("budget.unreadable", unreadable=len(unreadable), reason=reason)
            for _ in unreadable:
                contained.given_up(contained.Part.RECORD)

    def history(self, target: ContainerRef, *, device: str | None) -> counts.History:
        """Return the counts for a restart of the container because of a device (None: no device)."""
        everything = (*self._begun, *self._about_to_begin)
        return counts.History.of(everything, target=target, device=device, now=self._now())

    @contextlib.contextmanager
    def counting(self, facts: admission.Facts, decision: admission.Decision) -> "Iterator[Counted]":
        """Count an admitted restart during the block; remove it at the end unless it started."""
        assert facts.pod is not None
        assert decision.strategy is not None
        match SPECS[decision.strategy].scope:
            case Scope.PROGRAM:
                names = frozenset({facts.target.name})
            case Scope.CONTAINERS:
                names = frozenset(decision.orders)
            case Scope.POD:
                names = frozenset(spec.name for spec in facts.pod.containers)
        counted = counts.Begun(
            pod=facts.pod.ref.uid,
            containers=names,
            at=self._now(),
            fault_at=facts.cause.happened_at,
            device=facts.cause.device,
            namespace=facts.pod.ref.namespace,
        )
        self._about_to_begin.append(counted)
        try:
            yield Counted(counted, self)
        finally:
            if counted in self._about_to_begin:
                self._about_to_begin.remove(counted)

    def keep(self, counted: counts.Begun) -> None:
        """Count a restart that is in the journal; drop those that no longer count."""
        self._about_to_begin.remove(counted)
        oldest = counted.at - COUNT_SECONDS
        replaced = self.replaced_by(counted)
        self._forgotten = [each for each in self._forgotten if each not in replaced and each.at > oldest]
        self._begun = [each for each in self._begun if each.at > oldest]
        self._begun.append(counted)

    def forget(self, counted: counts.Begun) -> None:
        """Stop counting a restart that was cancelled. It leaves the journal when the one that replaces it begins.

        If there is none, call ``erase``.
        """
        if counted in self._begun:  # one that took long may no longer count
            self._begun.remove(counted)
            self._forgotten.append(counted)

    async def erase(self, counted: counts.Begun) -> None:
        """Remove a forgotten restart from the journal, unless another one has replaced it. Never fails."""
        if counted not in self._forgotten:
            return
        self._forgotten.remove(counted)
        try:
            await self._store.uncount(counted)
        except JournalError as error:
            log.warning("restart.still_counted", pod=counted.pod, error=str(error))

    def recall(self, counted: counts.Begun) -> None:
        """Count a forgotten restart again. Nothing happens if it counts."""
        if counted in self._forgotten:
            self._forgotten.remove(counted)
        if counted not in self._begun:
            bisect.insort(self._begun, counted, key=lambda each: each.at)

    def replaced_by(self, counted: counts.Begun) -> tuple[counts.Begun, ...]:
        """Return the cancelled restarts that the journal still counts, and that this one replaces.

        They are of a container of it, and for the same fault.
        """
        return tuple(
            each
            for each in self._forgotten
            if (each.pod, each.fault_at) == (counted.pod, counted.fault_at) and each.containers & counted.containers
        )

    def of_previous(self, restart: Sequence[intents.AnyIntent]) -> "Counted | None":
        """Return the count of a restart that a previous agent has begun; None if it no longer counts. Load them first.

        It counts from its decision, a moment before its intents, and for the whole group, of which containers that did
        not run have none.
        """
        pod, at = restart[0].target.pod.uid, restart[0].created_at
        names = frozenset[str]().union(*(intent.names for intent in restart))
        mine = (each for each in self._begun if each.pod == pod and names <= each.containers and each.at <= at)
        latest = max(mine, key=lambda each: each.at, default=None)
        return Counted(latest, self) if latest is not None else None

    def all(self) -> tuple[counts.Begun, ...]:
        """Return every restart that was started and still counts."""
        return tuple(self._begun)


@dataclass(frozen=True, slots=True)
class Counted:
    """A restart that counts already, although it has not started."""

    restart: counts.Begun
    budgets: Budgets

    def has_begun(self) -> None:
        """Keep the count. Call this once the restart is in the journal."""
        self.budgets.keep(self.restart)

    def cancel(self) -> None:
        """Remove the count: the restart is tried in another way, which counts again."""
        self.budgets.forget(self.restart)

    async def erase(self) -> None:
        """Remove a cancelled count from the journal, too, if nothing has been tried in its place. Never fails."""
        await self.budgets.erase(self.restart)

    def replaced(self) -> tuple[counts.Begun, ...]:
        """Return the cancelled restarts that this one replaces in the journal."""
        return self.budgets.replaced_by(self.restart)

    def restore(self) -> None:
        """Take a ``cancel`` back, if there was one: the other way was not tried."""
        self.budgets.recall(self.restart)


class BudgetGauges(Collector):
    """Compute the remaining restarts of the budgets on each scrape.

    Only budgets that were used, and only pods that are on the node, get a series. This keeps the number of series low.
    """

    def __init__(self, budgets: Budgets, *, pods: ports.Pods, now: Callable[[], float]) -> None:
        self._budgets = budgets
        self._pods = pods
        self._now = now

    def describe(self) -> Iterator[Metric]:
        """Return the metrics' names without values (no value is known yet at registration)."""
        yield from self._families()

    def collect(self) -> Iterator[Metric]:
        """Yield the current values."""
        of_workload, of_device, of_node = self._families()
        now = self._now()
        begun = budgets.noted_by(self._budgets.all(), now=now)
        of_pods, on_devices = defaultdict[PodUid, list[counts.Begun]](list), defaultdict[str, list[counts.Begun]](list)
        for each in begun:  # once: a day may have had more than 20,000, and the event loop waits for this
            of_pods[each.pod].append(each)
            if each.device is not None:
                on_devices[each.device].append(each)
        for uid, past in of_pods.items():
            if (pod := self._pods.pods().get(uid)) is not None:
                with contained.within(contained.Part.RESTART, pod.ref):  # otherwise the whole scrape would fail
                    self._add_pod(of_workload, pod, past=past, now=now)
        for device, past in on_devices.items():
            left = ON_DEVICE.left(past, now=now)
            if left < ON_DEVICE.limit:
                of_device.add_metric([device], left)
        of_node.add_metric([], left_of_storm(begun, node=self._budgets.storm, now=now))
        yield from (of_workload, of_device, of_node)

    def _add_pod(self, family: GaugeMetricFamily, pod: PodView, *, past: Sequence[counts.Begun], now: float) -> None:
        try:
            allowance = options.parse(pod.annotations).budget()
        except options.BadAnnotationError:
            return  # a pod with invalid annotations is not restarted
        recent = [each for each in past if each.at + allowance.window > now]
        names = frozenset[str]().union(*(each.containers for each in recent))
        scopes = {name: (allowance.restarts, counts.of_container(recent, name)) for name in names}
        for name, (window, mine) in {"": (allowance.of_pod, recent), **scopes}.items():
            left = window.left(mine, now=now)
            if left < window.limit:
                family.add_metric([pod.ref.namespace, pod.ref.name, name], left)

    @staticmethod
    def _families() -> tuple[GaugeMetricFamily, GaugeMetricFamily, GaugeMetricFamily]:
        return (
            GaugeMetricFamily(
                "kubemend_restart_budget_left",
                "Restarts left in a container's budget, or its pod's if the container is empty; no series: unused.",
                labels=["namespace", "pod", "container"],
            ),
            GaugeMetricFamily(
                "kubemend_device_restart_budget_left",
                "Restarts because of that device that may still fail to last; no series: none has failed.",
                labels=["device"],
            ),
            GaugeMetricFamily(
                "kubemend_node_restart_budget_left",
                "Restarts that the node's storm guard still allows in the namespace that has had most; 0: a storm.",
            ),
        )
