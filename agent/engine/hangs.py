"""Hangs: a container that has fallen silent becomes a request for a restart, on the same way as after a fault."""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable

import structlog

from agent.engine import ports
from agent.engine.ledger import HealthLedger, gpu_keys
from agent.engine.metrics import Metrics
from agent.engine.restarts import Request, Restarts
from agent.model import conditions, hangs
from agent.model.conditions import Condition, ConditionStatus
from agent.model.devices import GpuUuid
from agent.model.findings import Source
from agent.model.hangs import Hang
from agent.model.rounds import FaultKind
from agent.model.workloads import ContainerId, ContainerRef, PodRef
from agent.podresources import answers
from agent.restart import admission
from common import contained

log = structlog.get_logger(__name__)

_KIND = "Heartbeat"  # of the finding, in metrics


class Hangs:
    """Hears from ``agent.sources.heartbeats`` who hangs. Restarts them once the runtime is plugged in."""

    def __init__(
        self,
        *,
        ledger: HealthLedger,
        devices: ports.Devices,
        holders: ports.Holders,
        reporter: ports.Conditions,
        metrics: Metrics,
    ) -> None:
        self._ledger = ledger
        self._devices = devices
        self._holders = holders
        self._reporter = reporter
        self._metrics = metrics
        self._queue: asyncio.Queue[Hang] = asyncio.Queue()
        self._in_hand: set[ContainerId] = set()

    def hung(self, hang: Hang) -> None:
        """Take a hang in; one that is being dealt with already is the same."""
        self._metrics.findings.labels(Source.HEARTBEAT.value, _KIND, hangs.CODE).inc()
        log.info(
            "hang",
            container=str(hang.target),
            container_id=hang.container_id,
            file=hang.file,
            silent=round(hang.silent, 1),
            timeout=hang.timeout,
            doing=hang.doing,
            threads=[
                {"thread": str(thread), "pid": thread.pid, "stack": list(thread.stack)} for thread in hang.threads
            ],
        )
        if hang.container_id not in self._in_hand:
            self._in_hand.add(hang.container_id)
            self._queue.put_nowait(hang)

    def silent_for(self, container: ContainerRef, seconds: float | None) -> None:
        """Show for how long a heartbeat file has not been touched; None takes it away: that is not known."""
        labels = (container.pod.namespace, container.pod.name, container.name)
        if seconds is not None:
            self._metrics.heartbeat_age.labels(*labels).set(seconds)
            return
        with contextlib.suppress(KeyError):
            self._metrics.heartbeat_age.remove(*labels)

    def refused(self, pod: PodRef, why: str) -> None:
        """Say on a pod that its heartbeat is not watched, before anybody relies on it."""
        log.warning("heartbeat.refused", pod=str(pod), why=why)
        condition = Condition(
            conditions.IN_PLACE_RESTART,
            ConditionStatus.FALSE,
            admission.Reason.BAD_ANNOTATION.value,
            f"no heartbeat is watched: {why}",
        )
        if not why:
            condition = Condition(conditions.IN_PLACE_RESTART, ConditionStatus.UNKNOWN, "NoRestart")
        self._reporter.set(pod, condition)

    async def run(self, *, restarts: Restarts, still_hung: Callable[[ContainerId], Awaitable[str]]) -> None:
        """See hangs through for ever. ``still_hung`` looks once more, and says why not (empty: it does)."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                hang = await self._queue.get()
                work = self._mend(hang, restarts=restarts, still_hung=functools.partial(still_hung, hang.container_id))
                tasks.create_task(work, name=f"mend hang of {hang.target}")

    async def _mend(self, hang: Hang, *, restarts: Restarts, still_hung: Callable[[], Awaitable[str]]) -> None:
        with contained.within(contained.Part.HANG, hang.target):
            try:
                held = answers.held_by(hang.target, await self._holders.current(max_age=1.0))
                await restarts.handle(
                    Request(
                        target=hang.target,
                        cause=functools.partial(self._cause, hang, held),
                        devices=held,
                        withdrawn=still_hung,
                        kind=FaultKind.HANG,
                    )
                )
            finally:
                self._in_hand.discard(hang.container_id)

    def _cause(self, hang: Hang, held: frozenset[GpuUuid] | None) -> admission.Cause:
        """A hang on a device that needs more than a restart is not mended by one."""
        inventory = self._devices.inventory
        devices = gpu_keys(held, inventory=inventory) if held is not None else self._ledger.devices()
        action = self._ledger.worst_action(devices, inventory=inventory)
        return admission.Cause(
            code=hangs.CODE,
            message=f"no heartbeat in {hang.file} for {hang.silent:.0f} s (timeout {hang.timeout:g} s; {hang.doing})",
            happened_at=hang.observed_at,
            action=action,
            devices_known=held is not None or action.leaves_device_usable,
        )
