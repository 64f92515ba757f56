"""Say on every pod that holds a device how its devices are; again whenever that may have changed."""

import asyncio
import contextlib
from collections import defaultdict

from agent.engine import conditions, ports
from agent.engine.ledger import HealthLedger
from agent.model.devices import GpuUuid
from agent.model.workloads import Allocations, ContainerRef, PodRef

_ANY_AGE = 3600.0
_FRESH = 0.5


class Publisher:
    """Turns verdicts into pod conditions. The reporter drops what is said already, so saying too much is free."""

    def __init__(
        self,
        *,
        ledger: HealthLedger,
        pods: ports.Pods,
        devices: ports.Devices,
        holders: ports.Holders,
        reporter: ports.Conditions,
        period: float = 10.0,
    ) -> None:
        self._ledger = ledger
        self._pods = pods
        self._devices = devices
        self._holders = holders
        self._reporter = reporter
        self._period = period
        self._wake = asyncio.Event()
        self._wake.set()  # what an earlier agent knew is said again at once
        self._holders_changed = True
        self._named: set[tuple[PodRef, str]] = set()

    def verdict_changed(self, *, device: str, named: PodRef | None = None) -> None:
        """A verdict may have changed: say so at once, by what is known of holders.

        ``named`` is the pod of the process that a finding named, which need not hold an allocation.
        """
        if named is not None:
            self._named.add((named, device))
        self._wake.set()

    def holders_changed(self) -> None:
        """A pod or the inventory changed: ask kubelet again, then say so."""
        self._holders_changed = True
        self._wake.set()

    async def run(self) -> None:
        """Publish for ever: when something changed, and every ``period`` seconds in any case."""
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._period):
                    await self._wake.wait()
            on_time = self._wake.is_set()
            self._wake.clear()
            fresh = self._holders_changed or not on_time
            self._holders_changed = False
            self.publish(await self._holders.current(max_age=_FRESH if fresh else _ANY_AGE))

    def publish(self, allocations: Allocations) -> None:
        """Say it once. Without an answer from kubelet nothing is said about holders: what was said before stays."""
        inventory = self._devices.inventory
        concerned: defaultdict[PodRef, set[str]] = defaultdict(set)
        for ref, held in held_devices(allocations, pods=self._pods).items():
            for uuid in held:
                gpu = inventory.by_uuid(uuid)
                concerned[ref.pod].add(gpu.uuid if gpu is not None else uuid)
        for pod, device in self._named:
            concerned[pod].add(self._ledger.name(device))
        for pod, names in concerned.items():
            verdicts = [self._ledger.verdict(name, inventory=inventory) for name in sorted(names)]
            for condition in conditions.for_devices(verdicts):
                self._reporter.set(pod, condition)
        self._named = {(pod, device) for pod, device in self._named if self._ledger.latches(device)}


def held_devices(allocations: Allocations, *, pods: ports.Pods) -> dict[ContainerRef, frozenset[GpuUuid]]:
    """Return which container holds which devices, by identity: kubelet's list has names only."""
    held = {}
    for item in allocations.items:
        pod = pods.by_name(item.namespace, item.pod_name)
        if pod is not None and item.devices:
            held[ContainerRef(pod=pod.ref, name=item.container)] = item.devices
    return held
