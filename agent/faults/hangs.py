"""Request a restart for containers that hang (heartbeat timeout), on the same path as after a fault."""

import asyncio
import contextlib
import functools
from collections.abc import Awaitable, Callable

import structlog

from kubemend.agent import ports
from kubemend.agent.clients.podresources import convert
from kubemend.agent.devices.verdict_store import VerdictStore, gpu_keys
from kubemend.agent.metrics import Metrics
from kubemend.agent.model import hangs
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.findings import Source
from kubemend.agent.model.hangs import Hang
from kubemend.agent.model.workloads import ContainerId, ContainerRef
from kubemend.agent.restart import admission
from kubemend.agent.restarts.requests import Request
from kubemend.agent.restarts.scheduler import RestartScheduler
from kubemend.common import contained
from kubemend.common.coordination import FaultKind

log = structlog.get_logger(__name__)

_KIND = "Heartbeat"  # of the finding, in metrics


class Hangs:
    """Receive hangs from ``agent.sources.heartbeats``, and restart the containers once the runtime is connected."""

    def __init__(
        self,
        *,
        verdict_store: VerdictStore,
        devices: ports.Devices,
        holders: ports.Holders,
        metrics: Metrics,
    ) -> None:
        self._verdict_store = verdict_store
        self._devices = devices
        self._holders = holders
        self._metrics = metrics
        self._queue: asyncio.Queue[Hang] = asyncio.Queue()
        self._handling: set[ContainerId] = set()

    def hung(self, hang: Hang) -> None:
        """Accept a hang. One that is being handled already is the same."""
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
        if hang.container_id not in self._handling:
            self._handling.add(hang.container_id)
            self._queue.put_nowait(hang)

    def silent_for(self, container: ContainerRef, seconds: float | None) -> None:
        """Show the time since a heartbeat file was last touched; None removes the series: the time is unknown."""
        labels = (container.pod.namespace, container.pod.name, container.name)
        if seconds is not None:
            self._metrics.heartbeat_age.labels(*labels).set(seconds)
            return
        with contextlib.suppress(KeyError):
            self._metrics.heartbeat_age.remove(*labels)

    async def run(self, *, restarts: RestartScheduler, still_hung: Callable[[ContainerId], Awaitable[str]]) -> None:
        """Handle hangs as they arrive. ``still_hung`` checks again and returns why not (empty: it still hangs)."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                hang = await self._queue.get()
                work = self._handle(
                    hang, restarts=restarts, still_hung=functools.partial(still_hung, hang.container_id)
                )
                tasks.create_task(work, name=f"handle hang of {hang.target}")

    async def _handle(
        self, hang: Hang, *, restarts: RestartScheduler, still_hung: Callable[[], Awaitable[str]]
    ) -> None:
        with contained.within(contained.Part.HANG, hang.target):
            try:
                held = convert.held_by(hang.target, await self._holders.current(max_age=1.0))
                await restarts.submit(
                    Request(
                        target=hang.target,
                        cause=functools.partial(self._cause, hang, held),
                        devices=held,
                        withdrawn=still_hung,
                        kind=FaultKind.HANG,
                    )
                )
            finally:
                self._handling.discard(hang.container_id)

    def _cause(self, hang: Hang, held: frozenset[DeviceId] | None) -> admission.Cause:
        """Return the cause. Its action refuses the restart if a device needs more than one."""
        inventory = self._devices.inventory
        devices = gpu_keys(held, inventory=inventory) if held is not None else self._verdict_store.devices()
        action = self._verdict_store.worst_action(devices, inventory=inventory)
        return admission.Cause(
            code=hangs.CODE,
            message=f"no heartbeat in {hang.file} for {hang.silent:.0f} s (timeout {hang.timeout:g} s; {hang.doing})",
            happened_at=hang.observed_at,
            action=action,
            devices_known=held is not None or action.leaves_device_usable,
        )
