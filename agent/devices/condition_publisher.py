"""Publish the health of a pod's devices on the pod, again whenever it may have changed."""

import asyncio
import contextlib
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from kubemend.agent import ports
from kubemend.agent.devices import pod_conditions
from kubemend.agent.devices.steady_times import SteadyTimes
from kubemend.agent.devices.verdict_store import VerdictStore, gpu_keys
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.verdicts import Health, Verdict
from kubemend.agent.model.workloads import Allocations, ContainerRef, PodRef
from kubemend.common import contained
from kubemend.common.contained import Part

_ANY_AGE = 3600.0
_FRESH = 0.5


class Node(Protocol):
    """Publish the node's health (``agent.devices.node_health``)."""

    def publish(self, holders: Mapping[str, Collection[PodRef]] | None) -> None: ...


@dataclass(frozen=True, slots=True)
class PodVerdicts:
    """The verdicts of a pod's own devices, and of the NICs near its GPUs.

    ``returning`` are those of its own that may come back by themselves (``pod_conditions.may_come_back``).
    """

    own: Sequence[Verdict]
    near: Sequence[Verdict]
    returning: frozenset[str]


class ConditionPublisher:
    """Turn verdicts into pod conditions. The reporter drops unchanged conditions, so repeats cost nothing."""

    def __init__(
        self,
        *,
        verdict_store: VerdictStore,
        pods: ports.Pods,
        devices: ports.Devices,
        holders: ports.Holders,
        reporter: ports.Conditions,
        nics: ports.Nics = ports.NO_NICS,
        node: Node | None = None,
        period: float = 10.0,
        now: Callable[[], float] = time.time,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``now`` is Unix time; ``clock`` counts the time for which a verdict has held, however that is set."""
        self._nics = nics
        self._node = node
        self._verdict_store = verdict_store
        self._pods = pods
        self._devices = devices
        self._holders = holders
        self._reporter = reporter
        self._period = period
        self._clock = clock
        self._times = SteadyTimes(now=now, clock=clock)
        self._verdict_changed = asyncio.Event()
        self._verdict_changed.set()  # publish the verdicts of a previous agent at once
        self._holders_changed = asyncio.Event()
        self._held: dict[PodRef, set[str]] = {}
        """The devices of each pod by kubelet's last answer. A pod keeps its devices until it ends."""
        self._named: dict[tuple[PodRef, str], bool] = {}
        """Pods whose processes were found on a device, and whether the API server has listed them yet."""

    def verdict_changed(self, *, device: str, named: PodRef | None = None) -> None:
        """Publish at once with the known holders, because a verdict may have changed.

        ``named`` is the pod of the process that a finding named. It need not hold an allocation.
        """
        if named is not None:
            self._named.setdefault((named, device), False)
        self._verdict_changed.set()

    def holders_changed(self) -> None:
        """Query kubelet again and publish, because a pod or the inventory changed."""
        self._holders_changed.set()

    async def run(self) -> None:
        """Publish on each change, and at least every ``period`` seconds. A change of a verdict never awaits kubelet."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._publish_verdicts(), name="conditions by verdicts")
            tasks.create_task(self._publish_holders(), name="conditions by holders")

    async def _publish_verdicts(self) -> None:
        while True:
            await self._verdict_changed.wait()
            self._verdict_changed.clear()
            with contained.within(Part.CONDITION, "all pods"):
                self.publish(await self._holders.current(max_age=_ANY_AGE))

    async def _publish_holders(self) -> None:
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period):
                    await self._holders_changed.wait()
            self._holders_changed.clear()
            with contained.within(Part.CONDITION, "all pods"):
                self.publish(await self._holders.current(max_age=_FRESH))

    def publish(self, allocations: Allocations) -> None:
        """Publish once. Without an answer from kubelet, the last one counts for the pods that are still there."""
        self._forget_gone()
        if allocations.known:
            self._held = self._holdings(allocations)
            self._adopt_named(allocations)
        else:
            there = self._pods.pods()
            self._held = {pod: names for pod, names in self._held.items() if pod.uid in there}
        concerned = self._concerned(self._held)
        for pod, names in concerned.items():
            with contained.within(Part.CONDITION, pod):
                self._publish_of(pod, names)
        self._forget_recovered()
        if self._node is not None:
            self._node.publish(_by_device(concerned) if allocations.known else None)

    def verdicts_of(self, pod: PodRef, allocations: Allocations) -> PodVerdicts:
        """Return the verdicts on which the pod's conditions are based."""
        return self._pod_verdicts(self._concerned(self._holdings(allocations)).get(pod, set()))

    def _publish_of(self, pod: PodRef, names: set[str]) -> None:
        verdicts = self._pod_verdicts(names)
        for condition in pod_conditions.for_devices(verdicts.own, near=verdicts.near, returning=verdicts.returning):
            self._reporter.set(pod, condition)

    def _pod_verdicts(self, names: set[str]) -> PodVerdicts:
        own = self._verdicts(names)
        return PodVerdicts(
            own=own,
            near=self._verdicts(self._nics.nics_for_gpus(names) - names),
            returning=frozenset(each.device for each in own if self._may_come_back(each)),
        )

    def _may_come_back(self, verdict: Verdict) -> bool:
        age = self._clock() - self._times.of(verdict.device, last_seen=verdict.since)
        return pod_conditions.may_come_back(self._verdict_store.active_faults(verdict.device), age=age)

    def _adopt_named(self, allocations: Allocations) -> None:
        """Add the pods that hold no device and on which a previous agent has published that a GPU is not healthy."""
        holding = {
            (item.namespace, item.pod_name)
            for item in allocations.items
            if item.devices or item.claims or item.plugin_devices
        }
        inventory = self._devices.inventory
        for pod in self._pods.pods().values():
            faulty = next(filter(None, map(pod_conditions.faulty_device, pod.conditions)), "")
            is_known = inventory.by_id(DeviceId(faulty)) is not None  # another client may have written any text
            if is_known and not pod.is_over and (pod.ref.namespace, pod.ref.name) not in holding:
                self._named.setdefault((pod.ref, faulty), True)

    def _forget_gone(self) -> None:
        """Drop pods that have ended and whose processes were found on a device."""
        there = {uid for uid, pod in self._pods.pods().items() if not pod.is_over}
        self._named = {
            (pod, device): pod.uid in there
            for (pod, device), was_there in self._named.items()
            if pod.uid in there or not was_there
        }

    def _forget_recovered(self) -> None:
        """Drop pods whose processes were found on a device, once the recovery of that has been published on them."""
        self._named = {
            (pod, device): was_there
            for (pod, device), was_there in self._named.items()
            if any(each.health is not Health.HEALTHY for each in self._verdicts([device]))
        }

    def _holdings(self, allocations: Allocations) -> dict[PodRef, set[str]]:
        """Return the devices that each pod holds."""
        holdings: defaultdict[PodRef, set[str]] = defaultdict(set)
        for ref, held in held_devices(allocations, pods=self._pods).items():
            holdings[ref.pod] |= gpu_keys(held, inventory=self._devices.inventory)
        for item in allocations.items:
            with contained.within(Part.CONDITION, f"{item.namespace}/{item.pod_name}"):
                pod = self._pods.by_name(item.namespace, item.pod_name)
                nics = {
                    nic for held in item.plugin_devices if (nic := self._nics.nic_for_plugin_id(held.id)) is not None
                }
                if pod is not None and nics:
                    holdings[pod.ref] |= nics
        return dict(holdings)

    def _concerned(self, holdings: Mapping[PodRef, set[str]]) -> dict[PodRef, set[str]]:
        """Return the devices of each pod: those that it holds, and those on which its processes were found."""
        concerned = defaultdict(set, {pod: set(names) for pod, names in holdings.items()})
        for pod_ref, device in self._named:
            concerned[pod_ref].add(self._verdict_store.name(device))
        return dict(concerned)

    def _verdicts(self, names: Iterable[str]) -> list[Verdict]:
        inventory = self._devices.inventory
        return [self._verdict_store.verdict(name, inventory=inventory) for name in sorted(names)]


def _by_device(concerned: Mapping[PodRef, Collection[str]]) -> dict[str, set[PodRef]]:
    holders: defaultdict[str, set[PodRef]] = defaultdict(set)
    for pod, names in concerned.items():
        for name in names:
            holders[name].add(pod)
    return holders


def held_devices(allocations: Allocations, *, pods: ports.Pods) -> dict[ContainerRef, frozenset[DeviceId]]:
    """Return which container holds which devices, by identity, because kubelet's list has names only."""
    held = {}
    for item in allocations.items:
        pod = pods.by_name(item.namespace, item.pod_name)
        if pod is not None and item.devices:
            held[ContainerRef(pod=pod.ref, name=item.container)] = item.devices
    return held
