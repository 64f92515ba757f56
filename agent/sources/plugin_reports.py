"""Health reports of device plugins and DRA drivers as a source of findings, from the pods in the API server.

The result is recomputed from all pods at each change. A device that several containers share is reported while one of
them shows it Unhealthy. Its fault is over when no container shows it Unhealthy or Unknown.
"""

import itertools
import re
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import structlog

from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, DeviceLocator, Gpu
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.workloads import PodChange, PodChangeKind, PodUid, PodView, ReportedHealth, ResourceHealth

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
        now: Callable[[], float] = time.time,
    ) -> None:
        """Create it; ``now`` returns Unix seconds.

        ``locate`` returns the GPU of a UUID, or of a MIG instance's UUID: health is kept per GPU. ``held`` returns the
        GPUs for which a previous agent recorded such a report; called once.
        """
        self._emit = emit
        self._classify = classify
        self._locate = locate
        self._held = held
        self._now = now
        self._pods: dict[PodUid, dict[tuple[str, str], ResourceHealth]] = {}
        self._raised: dict[DeviceId, str] = {}
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
        """Note that all pods are listed: faults recorded by a previous agent that no pod reports now are over."""
        if not self._listed:
            self._listed = True
            self._raised = dict.fromkeys(self._held(), "") | self._raised
            self.update()

    def update(self) -> None:
        """Compare the pods' reports with the emitted findings; also call it when the GPUs of the node change."""
        reports = [report for pod in self._pods.values() for report in pod.values()]
        unhealthy = self._texts(reports)
        unsure = {
            device for report in reports if report.health is ReportedHealth.UNKNOWN for device in self._device(report)
        }
        for device, text in unhealthy.items():
            if self._raised.get(device) != text:
                self._raised[device] = text
                self._emit_finding(device, FindingKind.REPORTED_UNHEALTHY, text=text)
        over = self._raised.keys() - unhealthy.keys() - unsure if not self._of_some_gpu(reports) else ()
        for device in over:
            del self._raised[device]
            self._emit_finding(device, FindingKind.FAULT_OVER, text="no plugin reports it as unhealthy any longer")
        self._name_foreign(reports)

    def _texts(self, reports: Iterable[ResourceHealth]) -> dict[DeviceId, str]:
        """Return the text for each unhealthy GPU, independent of the order of pods."""
        texts: dict[DeviceId, set[str]] = {}
        for report in reports:
            if report.health is ReportedHealth.UNHEALTHY:
                for device in self._device(report):
                    texts.setdefault(device, set()).add(f"{report.resource}: {report.message or 'no reason given'}")
        return {device: f"its plugin reports Unhealthy ({'; '.join(sorted(found))})" for device, found in texts.items()}

    def _device(self, report: ResourceHealth) -> Iterator[DeviceId]:
        """Yield the GPU of a report, if it is known.

        Only the driver knows the GPU of a MIG instance; its last answer is used while it is unavailable.
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
        """Return whether a report that is not Healthy concerns an unknown GPU: it may be any of them."""
        return any(
            report.health is not ReportedHealth.HEALTHY and _uuid(report) is not None and not any(self._device(report))
            for report in reports
        )

    def _name_foreign(self, reports: Iterable[ResourceHealth]) -> None:
        """Log, once, unhealthy devices that are not GPUs."""
        found = frozenset(
            (report.resource, report.id)
            for report in reports
            if report.health is ReportedHealth.UNHEALTHY and _uuid(report) is None
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


def _uuid(report: ResourceHealth) -> DeviceId | None:
    match = _UUID.search(report.id)
    return DeviceId(match["uuid"]) if match is not None else None
