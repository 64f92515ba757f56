"""Device plugins' and DRA drivers' own word as a source of findings, from the pods as the API server tells them.

What holds is worked out anew from all pods at each change: a device that several containers share is reported while
one of them shows it Unhealthy, and its fault is over when none does and none says that it does not know.
"""

import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import structlog

from agent.model.actions import ActionClass
from agent.model.devices import DeviceLocator, Gpu, GpuUuid
from agent.model.findings import Finding, FindingKind, Source
from agent.model.workloads import PodUid, PodView, ReportedHealth, ResourceHealth
from agent.sources.pods import PodChange, PodChangeKind

log = structlog.get_logger(__name__)

_HEX = "[0-9a-f]"
_UUID: Final = re.compile(
    rf"(?P<uuid>(?:MIG-GPU|MIG|GPU)-{_HEX}{{8}}(?:-{_HEX}{{4}}){{3}}-{_HEX}{{12}}(?:/\d+/\d+)?)", re.IGNORECASE
)
"""As an id (the device plugin's, with ``::n`` for a replica) or in one (``nvidia.com/gpu=GPU-…``, CDI)."""

_RANK: Final = {ReportedHealth.HEALTHY: 0, ReportedHealth.UNKNOWN: 1, ReportedHealth.UNHEALTHY: 2}


class PluginReports:
    """Emits ``ReportedUnhealthy``, and that it is over. Feed it every change of the pods."""

    def __init__(
        self,
        *,
        emit: Callable[[Finding], None],
        classify: Callable[[FindingKind, str], ActionClass],
        locate: Callable[[GpuUuid], Gpu | None],
        held: Callable[[], Iterable[GpuUuid]],
        now: Callable[[], float] = time.time,
    ) -> None:
        """Create it; ``now`` gives Unix seconds.

        ``locate`` gives the GPU of a UUID, or of a MIG instance's: health is kept per GPU. ``held`` are the GPUs
        against which an earlier agent holds such a report; asked once.
        """
        self._emit = emit
        self._classify = classify
        self._locate = locate
        self._held = held
        self._now = now
        self._pods: dict[PodUid, dict[tuple[str, str], ResourceHealth]] = {}
        self._raised: dict[GpuUuid, str] = {}
        self._gpu_of: dict[GpuUuid, GpuUuid] = {}
        self._foreign: frozenset[tuple[str, str]] = frozenset()
        self._listed = False
        self._serials = itertools.count(1)
        self._key_prefix = f"kubelet:{time.time_ns():x}"  # no two agents of one boot share it

    def take(self, change: PodChange) -> None:
        """Take a change of a pod in; ``PodWatch.subscribe`` calls it."""
        pod = change.pod
        before = self._pods.get(pod.ref.uid, {})
        # Of a pod that is over the devices are another's by now, and its status stays as it was.
        gone = change.kind is PodChangeKind.GONE or pod.is_over
        # A device of which a pod says nothing any more is not healthy for that.
        after = {} if gone else before | _by_id(pod)
        if after:
            self._pods[pod.ref.uid] = after
        else:
            self._pods.pop(pod.ref.uid, None)
        if before != after:
            self.look()

    def listed(self) -> None:
        """Say that all pods of the node have been told: what an earlier agent held and nobody says now is over."""
        if not self._listed:
            self._listed = True
            self._raised = dict.fromkeys(self._held(), "") | self._raised
            self.look()

    def look(self) -> None:
        """Compare what the pods say with what was emitted; also to be called when the GPUs of the node change."""
        reports = [report for pod in self._pods.values() for report in pod.values()]
        unhealthy = self._texts(reports)
        unsure = {
            device for report in reports if report.health is ReportedHealth.UNKNOWN for device in self._device(report)
        }
        for device, text in unhealthy.items():
            if self._raised.get(device) != text:
                self._raised[device] = text
                self._say(device, FindingKind.REPORTED_UNHEALTHY, text=text)
        over = self._raised.keys() - unhealthy.keys() - unsure if not self._of_some_gpu(reports) else ()
        for device in over:
            del self._raised[device]
            self._say(device, FindingKind.FAULT_OVER, text="no plugin says any more that it is unhealthy")
        self._name_foreign(reports)

    def _texts(self, reports: Iterable[ResourceHealth]) -> dict[GpuUuid, str]:
        """Return what is said of each unhealthy GPU: the same text whatever pods say it."""
        words: dict[GpuUuid, set[str]] = {}
        for report in reports:
            if report.health is ReportedHealth.UNHEALTHY:
                for device in self._device(report):
                    words.setdefault(device, set()).add(f"{report.resource}: {report.message or 'no reason given'}")
        return {device: f"its plugin says Unhealthy ({'; '.join(sorted(said))})" for device, said in words.items()}

    def _device(self, report: ResourceHealth) -> Iterator[GpuUuid]:
        """Yield the GPU that a report is about, if it can be told.

        Whose a MIG instance is, only the driver knows; what it has said holds when it cannot be asked any more.
        """
        uuid = _uuid(report)
        if uuid is None:
            return
        if (gpu := self._locate(uuid)) is not None:
            self._gpu_of[uuid] = gpu.uuid
        elif uuid.startswith("GPU-"):
            self._gpu_of.setdefault(uuid, uuid)
        if uuid in self._gpu_of:
            yield self._gpu_of[uuid]

    def _of_some_gpu(self, reports: Iterable[ResourceHealth]) -> bool:
        """Whether one that is not healthy is of a GPU that cannot be told yet: it may be any of them."""
        return any(
            report.health is not ReportedHealth.HEALTHY and _uuid(report) is not None and not any(self._device(report))
            for report in reports
        )

    def _name_foreign(self, reports: Iterable[ResourceHealth]) -> None:
        """Log what is unhealthy and none of ours, once."""
        found = frozenset(
            (report.resource, report.id)
            for report in reports
            if report.health is ReportedHealth.UNHEALTHY and _uuid(report) is None
        )
        for resource, name in sorted(found - self._foreign):
            log.warning("plugin_report.not_a_gpu", resource=resource, id=name)
        self._foreign = found

    def _say(self, device: GpuUuid, kind: FindingKind, *, text: str) -> None:
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


def _uuid(report: ResourceHealth) -> GpuUuid | None:
    match = _UUID.search(report.id)
    return GpuUuid(match["uuid"]) if match is not None else None
