"""Health reports of device plugins and DRA drivers as a source of findings, from the pods in the API server.

The result is recomputed from all pods at each change. A device that several containers share is reported while one of
them shows it Unhealthy. The end of the last of these pods proves nothing about the device: its fault is over when a
container shows it Healthy, and none Unhealthy or Unknown, or when kubelet would allocate it
(``GetAllocatableResources``: the devices that their plugins report as healthy now, without those of DRA drivers).
"""

import itertools
import re
import time
from collections.abc import Awaitable, Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Final

import structlog

from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, DeviceLocator, Gpu
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.workloads import PodChange, PodChangeKind, PodUid, PodView, ReportedHealth, ResourceHealth
from kubemend.common import aio, contained

log = structlog.get_logger(__name__)

_HEX = "[0-9a-f]"
_UUID: Final = re.compile(
    rf"(?P<uuid>(?:MIG-GPU|MIG|GPU)-{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}(?:/\d+/\d+)?)", re.IGNORECASE
)
"""As an id (the device plugin's, with ``::n`` for a replica) or within one (``nvidia.com/gpu=GPU-…``, CDI)."""

_RANK: Final = {ReportedHealth.HEALTHY: 0, ReportedHealth.UNKNOWN: 1, ReportedHealth.UNHEALTHY: 2}


class PluginReports:
    """Emits ``ReportedUnhealthy``, and its end. Pass it every change of the pods."""

    def __init__(
        self,
        *,
        emit: Callable[[Finding], None],
        classify: Callable[[FindingKind, str], ActionClass],
        locate: Callable[[DeviceId], Gpu | None],
        held: Callable[[], Iterable[DeviceId]],
        allocatable: Callable[[], Awaitable[AbstractSet[str]]],
        now: Callable[[], float] = time.time,
        period: float = 30.0,
    ) -> None:
        """Create it; ``now`` returns Unix seconds.

        ``locate`` returns the GPU of a UUID, or of a MIG instance's UUID: health is kept per GPU. ``held`` returns the
        GPUs for which a previous agent recorded such a report; called once. ``allocatable`` returns the plugins' ids of
        the devices that kubelet would allocate, empty if kubelet does not answer; it is called every ``period`` seconds
        while a fault holds.
        """
        self._emit = emit
        self._classify = classify
        self._locate = locate
        self._held = held
        self._allocatable = allocatable
        self._now = now
        self._period = period
        self._pods: dict[PodUid, dict[tuple[str, str], ResourceHealth]] = {}
        self._raised: dict[DeviceId, str] = {}
        self._accused: dict[DeviceId, set[DeviceId]] = {}
        """By GPU: its own UUID or those of its MIG instances that were Unhealthy, and not shown Healthy since."""
        self._gpu_of: dict[DeviceId, DeviceId] = {}
        self._foreign: frozenset[tuple[str, str]] = frozenset()
        self._listed = False
        self._serials = itertools.count(1)
        self._key_prefix = f"kubelet:{time.time_ns():x}"  # unique among all agents of one boot

    def apply(self, change: PodChange) -> None:
        """Apply a change of a pod; ``PodWatch.subscribe`` calls it."""
        pod = change.pod
        before = self._pods.get(pod.ref.uid, {})
        # The devices of a finished pod now belong to others, and its status is no longer updated.
        gone = change.kind is PodChangeKind.GONE or pod.is_over
        # A device that is missing in a pod's new status is not healthy for that reason.
        after = {} if gone else before | _by_id(pod)
        if after:
            self._pods[pod.ref.uid] = after
        else:
            self._pods.pop(pod.ref.uid, None)
        if before != after:
            self.update()

    def listed(self) -> None:
        """Note that all pods are listed: faults recorded by a previous agent now need evidence like all others."""
        if not self._listed:
            self._listed = True
            held = dict.fromkeys(self._held(), "")
            self._raised = held | self._raised
            for device in held:
                self._accused.setdefault(device, {device})
            self.update()

    def forget(self, device: str) -> None:
        """Forget the report of a GPU that an operator has cleared; one that still holds is emitted again."""
        self._raised.pop(DeviceId(device), None)
        self._accused.pop(DeviceId(device), None)

    async def run(self) -> None:
        """Ask kubelet periodically whether it would allocate the reported devices."""
        async for _ in aio.ticks(period=self._period):
            with contained.within(contained.Part.DEVICE, "those that a plugin reports"):
                await self.check()

    async def check(self) -> None:
        """Ask kubelet once, if a fault holds."""
        self.update(allocatable=await self._allocatable() if self._raised else frozenset())

    def update(self, *, allocatable: AbstractSet[str] = frozenset()) -> None:
        """Compare the pods' reports with the emitted findings; also call it when the GPUs of the node change."""
        reports = [report for pod in self._pods.values() for report in pod.values()]
        named = {_uuid(report.id) for report in reports}
        self._gpu_of = {uuid: gpu for uuid, gpu in self._gpu_of.items() if uuid in named}
        unhealthy = self._texts(reports)
        for device, text in unhealthy.items():
            if self._raised.get(device) != text:
                self._raised[device] = text
                self._emit_finding(device, FindingKind.REPORTED_UNHEALTHY, text=text)
        for device in self._over(reports, allocatable=allocatable):
            del self._raised[device], self._accused[device]
            self._emit_finding(device, FindingKind.FAULT_OVER, text="its plugin reports it as healthy")
        self._name_foreign(reports)

    def _over(self, reports: Iterable[ResourceHealth], *, allocatable: AbstractSet[str]) -> list[DeviceId]:
        """Return the GPUs whose fault is over; note which of their instances have been shown healthy so far."""
        by_health: dict[ReportedHealth, set[DeviceId]] = {health: set() for health in ReportedHealth}
        for report in reports:
            if (uuid := _uuid(report.id)) is not None:
                by_health[report.health].add(uuid)
        not_well = by_health[ReportedHealth.UNHEALTHY] | by_health[ReportedHealth.UNKNOWN]
        ready = {uuid for each in allocatable if (uuid := _uuid(each)) is not None}
        well = (by_health[ReportedHealth.HEALTHY] | ready) - not_well
        for device, accused in self._accused.items():
            accused -= {uuid for uuid in accused if self._is_well(uuid, gpu=self._locate(device), well=well)}
        if not all(uuid in self._gpu_of for uuid in not_well):
            return []  # an unknown GPU's instance: it may be of any of them
        doubted = {self._gpu_of[uuid] for uuid in not_well}
        return [device for device, accused in self._accused.items() if not accused and device not in doubted]

    def _is_well(self, uuid: DeviceId, *, gpu: Gpu | None, well: AbstractSet[DeviceId]) -> bool:
        """Return whether a GPU or instance has been shown healthy. For one that no longer exists, its GPU counts."""
        if uuid in well or gpu is None or gpu.remembered:
            return uuid in well
        parts = {part.uuid for part in gpu.partitions}
        return uuid not in parts and (parts or {gpu.uuid}) <= well

    def _texts(self, reports: Iterable[ResourceHealth]) -> dict[DeviceId, str]:
        """Return the text for each unhealthy GPU, independent of the order of pods; note what is unhealthy of it."""
        texts: dict[DeviceId, set[str]] = {}
        for report in reports:
            gpu = self._gpu(report)
            if report.health is ReportedHealth.UNHEALTHY and gpu is not None and (uuid := _uuid(report.id)) is not None:
                self._accused.setdefault(gpu, set()).add(uuid)
                texts.setdefault(gpu, set()).add(f"{report.resource}: {report.message or 'no reason given'}")
        return {gpu: f"its plugin reports Unhealthy ({'; '.join(sorted(found))})" for gpu, found in texts.items()}

    def _gpu(self, report: ResourceHealth) -> DeviceId | None:
        """Return the GPU of a report, None if it is unknown.

        Only the driver knows the GPU of a MIG instance; its last answer is used while it is unavailable.
        """
        uuid = _uuid(report.id)
        if uuid is None:
            return None
        if (gpu := self._locate(uuid)) is not None:
            self._gpu_of[uuid] = gpu.uuid
        elif uuid.startswith("GPU-"):
            self._gpu_of.setdefault(uuid, uuid)
        return self._gpu_of.get(uuid)

    def _name_foreign(self, reports: Iterable[ResourceHealth]) -> None:
        """Log, once, unhealthy devices that are not GPUs."""
        found = frozenset(
            (report.resource, report.id)
            for report in reports
            if report.health is ReportedHealth.UNHEALTHY and _uuid(report.id) is None
        )
        for resource, name in sorted(found - self._foreign):
            log.warning("plugin_report.not_a_gpu", resource=resource, id=name)
        self._foreign = found

    def _emit_finding(self, device: DeviceId, kind: FindingKind, *, text: str) -> None:
        over = kind is FindingKind.FAULT_OVER
        self._emit(
            Finding(
                source=Source.KUBELET,
                kind=kind,
                code=FindingKind.REPORTED_UNHEALTHY.value if over else "",
                device=DeviceLocator(uuid=device),
                action=ActionClass.NONE if over else self._classify(kind, ""),
                observed_at=self._now(),
                text=text,
                key=f"{self._key_prefix}:{next(self._serials)}",
            )
        )


def _by_id(pod: PodView) -> dict[tuple[str, str], ResourceHealth]:
    """Return a pod's reports, the worst where containers share a device."""
    ascending = sorted(pod.resource_health, key=lambda report: _RANK[report.health])
    return {(report.resource, report.id): report for report in ascending}


def _uuid(name: str) -> DeviceId | None:
    match = _UUID.search(name)
    return DeviceId(match["uuid"]) if match is not None else None
