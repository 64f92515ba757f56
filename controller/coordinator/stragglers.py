"""Report members that stay far behind their gang as degraded. They are never restarted for it."""

import contextlib
from collections.abc import Sequence
from typing import Final

import structlog

from kubemend.common import aio, contained
from kubemend.common.gangs import GangKey
from kubemend.controller.coordinator.dependencies import Dependencies
from kubemend.controller.gangs import stragglers
from kubemend.controller.gangs.stragglers import Report
from kubemend.controller.model.members import Member, PodUid, Sample
from kubemend.controller.restarts.events import ObjectRef

log = structlog.get_logger(__name__)

STRAGGLER: Final = "Straggler"
CAUGHT_UP: Final = "CaughtUp"
"""Reasons of Events on pods."""

_JUDGE_SECONDS: Final = 5.0


class Stragglers:
    """Record device measurements and report members that stay far below their gang's median."""

    def __init__(self, *, dependencies: Dependencies) -> None:
        self._dependencies = dependencies
        self._watches: dict[GangKey, stragglers.Watch] = {}
        self._fresh: dict[GangKey, dict[PodUid, stragglers.Reading]] = {}

    def record(self, samples: Sequence[Sample]) -> None:
        """Record one agent's measurements.

        They are kept until the next judgement: thousands of agents of one gang send them every few seconds.
        """
        by_gang: dict[GangKey, list[Sample]] = {}
        for sample in samples:
            if (member := self._dependencies.members.by_uid(sample.pod)) is not None:
                by_gang.setdefault(member.gang, []).append(sample)
        for gang, own in by_gang.items():
            self._fresh.setdefault(gang, {}).update(stragglers.read(own, now=self._dependencies.now()))

    async def run(self) -> None:
        """Judge indefinitely. On exit the series are removed, because the next leader exports them."""
        try:
            async for _ in aio.ticks(period=_JUDGE_SECONDS):
                self.judge()
        finally:
            self._dependencies.metrics.stragglers.clear()

    def judge(self) -> None:
        """Compare the members of each gang that has measurements."""
        fresh, self._fresh = self._fresh, {}
        for gang in {**self._watches, **fresh}:
            with contained.within(contained.Part.STRAGGLER, gang):
                self._judge_one(gang, self._watches.get(gang, stragglers.Watch()).seen(fresh.get(gang, {})))

    def _judge_one(self, gang: GangKey, watch: stragglers.Watch) -> None:
        members = self._dependencies.members.of_gang(gang)
        if not members:
            self._forget(gang)
            return
        self._watches[gang], reports = watch.judged(members.keys(), now=self._dependencies.now())
        for report in reports:
            self._report(members[report.pod], report)
        self._show(gang)

    def _report(self, member: Member, report: Report) -> None:
        log.warning(
            "gang.straggler" if not report.ended else "gang.caught_up",
            gang=str(member.gang),
            pod=str(member.pod),
            node=member.node,
            verdict="Healthy" if report.ended else "Degraded",
            measure=report.measure.value,
            value=round(report.value, 3),
            median=round(report.median, 3),
        )
        self._dependencies.events.record(
            ObjectRef("v1", "Pod", member.pod.namespace, member.pod.name, member.pod.uid),
            reason=CAUGHT_UP if report.ended else STRAGGLER,
            message=f"on {member.node}: {report}",
            warning=not report.ended,
            subject=report.measure.value,
            may_repeat=True,
        )

    def _show(self, gang: GangKey) -> None:
        lagging = {pod for pod, _ in self._watches[gang].lagging}
        gauge = self._dependencies.metrics.stragglers.labels(gang.namespace, gang.kind, gang.name)
        gauge.set(len(lagging))

    def _forget(self, gang: GangKey) -> None:
        """Drop a gang without members and its series: gangs come and go for as long as the process lives."""
        self._watches.pop(gang, None)
        with contextlib.suppress(KeyError):  # it was never judged
            self._dependencies.metrics.stragglers.remove(gang.namespace, gang.kind, gang.name)
