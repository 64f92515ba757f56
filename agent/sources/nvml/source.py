"""NVML for the agent: supervises the one worker process, converts its messages into findings, and queries it.

All waits are on events of the worker's pipes; no NVML call is ever made in the agent's own process.
"""

import asyncio
import contextlib
import os
import time
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

import structlog

from kubemend.agent.health.gpu.gpu_inventory_state import KnownGpus
from kubemend.agent.health.gpu.limits import Limits
from kubemend.agent.health.state import fold as state_fold
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, DeviceInventory, Load
from kubemend.agent.model.findings import Finding, FindingKind
from kubemend.agent.sources.nvml import calls, component_status, detection, protocol
from kubemend.agent.sources.nvml import utilization as loads
from kubemend.agent.sources.nvml.child import Child
from kubemend.agent.sources.nvml.finding_emitter import FindingEmitter, OnInventory
from kubemend.agent.sources.nvml.protocol import DevicesAnswer, EndReason
from kubemend.agent.sources.nvml.queries import Questions, Unknown
from kubemend.common import aio, contained, process
from kubemend.common.components import ComponentState, ComponentStatus

log = structlog.get_logger(__name__)

_LONGEST_POLL = 6
"""Hang deadlines that one poll may take until its predecessor says too little about the GPUs."""


@dataclass(frozen=True, slots=True)
class Periods:
    """All in seconds.

    ``poll_period``: between polls of every GPU. ``full_period``: between polls that read all values, not only the cheap
    ones. ``recheck_period``: between checks for a missing driver, and for a missing library, where it grows to six
    times as much. ``reinit_period``: from a GPU's loss to a new nvmlInit, without which it stays lost, as a GPU that
    was added stays unlisted; it doubles.
    ``hang_deadline``: after which an NVML call, or a silent worker, counts as hanging (nvmlInit takes seconds on a node
    without persistence mode). ``stop_deadline``: the time that the agent waits for its worker when it ends.
    """

    poll_period: float = 5.0
    full_period: float = 30.0
    recheck_period: float = 10.0
    reinit_period: float = 60.0
    hang_deadline: float = 10.0
    stop_deadline: float = 5.0


class NvmlSource:
    """NVML events and polls of this node as findings.

    ``emit`` receives every finding, ``classify`` returns the action class of a (kind, code), ``report`` receives the
    component's status whenever it changes. ``env`` is the worker's environment (None: the agent's own).
    ``known_before`` are the GPUs that NVML has shown to previous agents on this boot: one that is missing now is lost,
    and a link that was up is down, not uncabled.
    ``on_inventory`` receives the same for the next agent, whenever it changes. ``sysfs`` is the path by which GPUs on
    the PCI bus are counted. ``unlisted`` returns the GPUs that the driver has and NVML does not list.
    ``needs_events``: without them the component is degraded.
    """

    def __init__(
        self,
        *,
        emit: Callable[[Finding], None],
        classify: Callable[[FindingKind, str], ActionClass],
        report: Callable[[ComponentStatus], None],
        periods: Periods | None = None,
        env: Mapping[str, str] | None = None,
        known_before: KnownGpus | None = None,
        on_inventory: OnInventory = lambda _: None,
        sysfs: Path = Path("/sys"),
        unlisted: Callable[[], Collection[str]] = tuple,
        limits: Limits | None = None,
        needs_events: bool = True,
    ) -> None:
        self._report = report
        self._needs_events = needs_events
        self._sysfs = sysfs
        self._unlisted = unlisted
        self._findings = FindingEmitter(
            emit=emit,
            classify=classify,
            known_before=known_before if known_before is not None else KnownGpus(),
            on_inventory=on_inventory,
            limits=limits if limits is not None else Limits(),
        )
        self._periods = periods if periods is not None else Periods()
        self._env = dict(env if env is not None else os.environ)
        self._status = ComponentStatus(ComponentState.STARTING)
        self._child: Child | None = None
        self._fresh = False  # a snapshot has arrived since the worker started or last hung
        self._stuck = False
        self._beats = 0  # since the last snapshot: a time would also pass while the agent or its worker is stopped
        self._reinit_at: float | None = None  # loop time; None while no GPU is lost or unlisted
        self._reinit_backoff = aio.Backoff(first=self._periods.reinit_period, limit=16 * self._periods.reinit_period)
        self._renewing = False  # the worker has been asked to end because another nvmlInit is due
        self._valid_until = 0.0  # time.monotonic(): until then the last snapshot counts while the worker is renewed
        self._takes_queries = asyncio.Event()
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._gone = asyncio.Event()  # no worker runs
        self._gone.set()
        self._questions = Questions()
        self._inventory = DeviceInventory()
        self._loads: Mapping[DeviceId, Load] = {}

    @property
    def inventory(self) -> DeviceInventory:
        """Every GPU that NVML has shown on this boot; complete only while NVML answers for all of them."""
        view = self._findings.view
        now = DeviceInventory(
            gpus=tuple(state.gpu for state in view.gpus.values()),
            complete=self._ready and view.complete,
            partial=self._ready and not view.complete,
            silent=self._findings.silent(),
        )
        if now != self._inventory:
            self._inventory = now
        return self._inventory  # the same object while nothing changes: callers cache values derived from it

    def loads(self) -> Mapping[DeviceId, Load]:
        """Return the load of each GPU at the latest poll; empty while NVML does not answer."""
        return self._loads if self._ready else {}

    @property
    def worker_pid(self) -> int | None:
        """The worker's process id, or None while none runs."""
        return self._child.pid if self._child is not None else None

    async def run(self) -> None:
        """Supervise the worker indefinitely: one at a time, a new one only when the last has ended."""
        backoff = aio.Backoff(first=0.2, limit=30.0)
        no_library = aio.Backoff(first=self._periods.recheck_period, limit=6 * self._periods.recheck_period)
        while True:
            await self._wanted.wait()
            reason = await self._run_worker() if self._worth_a_worker() else EndReason.LIBRARY_NOT_FOUND
            if self._fresh:
                backoff.reset()
                no_library.reset()
            self._fresh = self._stuck = False
            if not self._wanted.is_set():
                self._set_status(component_status.RELEASED)
            elif reason is EndReason.LIBRARY_NOT_FOUND:
                self._set_status(component_status.no_library(seen_gpus=self._has_seen_gpus, on_bus=self._gpus_on_bus()))
                await no_library.wait()
            else:
                await backoff.wait()

    async def query(self, uuids: Sequence[DeviceId], *, timeout: float) -> DevicesAnswer | Unknown:
        """Query the state of these GPUs or MIG instances; Unknown when NVML does not answer in ``timeout`` seconds.

        While the worker is renewed, this waits for the new one.
        """
        clock = asyncio.get_running_loop().time
        until = clock() + timeout
        if time.monotonic() < self._valid_until:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(until):
                    await self._takes_queries.wait()
        if self._child is None or not (self._ready and self._takes_queries.is_set()):
            return Unknown(self._status.message or "NVML has not answered yet")
        child = self._child
        return await self._questions.ask(
            uuids, send=lambda query: child.send(protocol.encode(query)), timeout=max(0.0, until - clock())
        )

    async def release(self, *, timeout: float) -> bool:
        """Close every NVML handle, as a GPU reset needs; False when the worker has not ended within ``timeout``.

        No worker is started until ``resume``, even when the result is False.
        """
        self._wanted.clear()
        self._valid_until = 0.0
        if self._child is not None:
            self._child.close_stdin()
        try:
            async with asyncio.timeout(timeout):
                await self._gone.wait()
        except TimeoutError:
            return False
        return True

    def resume(self) -> None:
        """Start NVML again after ``release``, with a new nvmlInit.

        Counters count from the first poll: earlier ones, which were read until the worker had ended, were before a
        reset.
        """
        self._findings.reset_counters()
        self._wanted.set()

    def note_log(self, finding: Finding) -> None:
        """Process a finding of the kernel log: the end of a requirement of the driver is reported by NVML alone."""
        if state_fold.is_driver_verdict(finding) and finding.device.pci is not None:
            self._findings.required_by_log(finding.device.pci, at=finding.observed_at)

    def unobserved(self, device: str) -> Collection[FindingKind]:
        """Return the kinds of faults that NVML neither shows nor rules out on a GPU that answers (UUID or address)."""
        return self._findings.unobserved(device)

    def forget(self, device: str) -> None:
        """Stop missing a GPU (by UUID or PCI address) that an operator has declared gone.

        It is forgotten when NVML no longer lists it: while NVML lists it as lost, it is broken, not missing.
        """
        self._findings.forget(device)

    @property
    def _ready(self) -> bool:
        return not self._stuck and (self._fresh or time.monotonic() < self._valid_until)

    @property
    def _has_seen_gpus(self) -> bool:
        return bool(self._findings.view.gpus)

    def _gpus_on_bus(self) -> int:
        return detection.gpus_on_bus(self._sysfs)

    def _worth_a_worker(self) -> bool:
        """Return whether a process may find NVML. On a node without GPUs this costs only a few file reads."""
        return detection.library_found(self._env) or self._has_seen_gpus or self._gpus_on_bus() > 0

    async def _run_worker(self) -> EndReason | None:
        """Run one worker to its end and return the reason that it gave."""
        try:
            child = Child(self._argv(), env=self._env)
        except OSError as error:
            self._set_status(component_status.not_started(error))
            return None
        self._child = child
        self._gone.clear()
        try:
            await child.connect()
            self._takes_queries.set()
            async with asyncio.TaskGroup() as group:
                group.create_task(_log_lines(child), name="nvml-worker-stderr")
                reason = await self._listen(child)
            status = await child.ended()
        finally:
            await self._stop_worker(child)
        renewed, self._renewing = self._renewing, False
        if reason is None and self._wanted.is_set() and not renewed:
            log.warning("nvml.worker_ended", status=status)
            self._set_status(component_status.crashed(status))
        return reason

    def _argv(self) -> list[str]:
        given = {option.name: getattr(self._periods, option.name) for option in fields(protocol.Options)}
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        return process.helper_command("kubemend.agent.sources.nvml.worker", *flags)

    async def _listen(self, child: Child) -> EndReason | None:
        """Process the worker's messages until it ends."""
        reason: EndReason | None = None
        async for message in self._messages(child):
            match message:
                case protocol.Beat(call=call):
                    self._on_beat(call)
                case protocol.Snapshot():
                    self._on_snapshot(message)
                case protocol.XidEvent() | protocol.DeviceEvent():
                    with contained.within(contained.Part.DEVICE, type(message).__name__):
                        self._on_event(message)
                case protocol.DevicesAnswer():
                    self._questions.answer(message)
                case protocol.DriverAbsent():
                    self._valid_until = 0.0
                    self._findings.reset_counters()
                    self._set_status(
                        component_status.no_driver(seen_gpus=self._has_seen_gpus, on_bus=self._gpus_on_bus())
                    )
                case protocol.Ended():
                    reason = message.reason
                    self._on_ended(message)
                case protocol.Query():
                    raise protocol.ProtocolError("the NVML worker sent a query")
        return reason

    async def _messages(self, child: Child) -> AsyncIterator[protocol.Message]:
        """Yield messages up to the end of the worker's stdout. Silence past the hang deadline is a stuck worker."""
        line = asyncio.ensure_future(child.stdout.readline())
        try:
            while True:
                if self._stuck:
                    await asyncio.wait({line})
                elif not await aio.is_done_within(self._periods.hang_deadline, line):
                    self._on_stuck("the whole NVML worker")
                    continue
                if not line.result().endswith(b"\n"):  # the end, or a line truncated by a crash
                    return
                yield protocol.decode(line.result())
                line = asyncio.ensure_future(child.stdout.readline())
        finally:
            line.cancel()

    def _on_event(self, event: protocol.XidEvent | protocol.DeviceEvent) -> None:
        if isinstance(event, protocol.XidEvent):
            self._findings.xid(event)
        else:
            self._findings.event(event, clock=asyncio.get_running_loop().time())

    def _on_beat(self, call: str | None) -> None:
        if call is not None:
            self._on_stuck(call)
        elif self._stuck:
            self._stuck = False
            log.info("nvml.driver_responsive")
            if self._fresh:  # polls continued while the wait for events hung
                self._set_status(component_status.ready(self._findings.view, needs_events=self._needs_events))
        elif self._fresh:
            self._beats += 1
            longest = self._periods.poll_period + _LONGEST_POLL * self._periods.hang_deadline
            if self._beats > longest * calls.WAITS / self._periods.hang_deadline:
                self._fresh = False
                self._report_unresponsive("a poll of all GPUs", seconds=longest)

    def _report_unresponsive(self, call: str, *, seconds: float) -> None:
        log.warning("nvml.driver_unresponsive", call=call, pid=self.worker_pid)
        self._set_status(component_status.unresponsive(call=call, seconds=seconds))

    def _on_stuck(self, call: str) -> None:
        if self._stuck:
            return
        self._stuck, self._fresh = True, False
        self._report_unresponsive(call, seconds=self._periods.hang_deadline)
        self._questions.give_up("the NVIDIA driver does not answer")

    def _on_snapshot(self, snapshot: protocol.Snapshot) -> None:
        after_gap, self._fresh, self._beats = not self._fresh, True, 0
        if not self._renewing:
            self._valid_until = 0.0
        self._loads = loads.of(snapshot)
        with contained.within(contained.Part.DEVICE, "a snapshot of all"):
            self._findings.snapshot(snapshot, after_gap=after_gap)
        if not self._stuck:
            self._set_status(component_status.ready(self._findings.view, needs_events=self._needs_events))
        self._plan_reinit()

    def _plan_reinit(self) -> None:
        """While a GPU is lost or unlisted, end the worker periodically: only another nvmlInit can show the GPU.

        Not while a query waits for its answer, such as that of a restart.
        """
        now, unlisted = asyncio.get_running_loop().time(), self._unlisted()
        if not (self._findings.view.wants_reinit or unlisted):
            self._reinit_at = None
            self._reinit_backoff.reset()
        elif self._reinit_at is None:
            self._reinit_at = now + self._reinit_backoff.next_wait()
        elif now >= self._reinit_at and self._child is not None and not self._questions.waiting:
            self._reinit_at, self._renewing = None, True
            self._takes_queries.clear()
            self._valid_until = time.monotonic() + self._periods.hang_deadline
            lost = [uuid for uuid, state in self._findings.view.gpus.items() if state.lost]
            log.info("nvml.reinit", lost=lost, unlisted=list(unlisted))
            self._child.close_stdin()

    def _on_ended(self, ended: protocol.Ended) -> None:
        log.info("nvml.worker_exited", reason=ended.reason.value, detail=ended.detail)
        self._valid_until = 0.0
        if ended.reason is not EndReason.NO_ANSWER:
            self._findings.reset_counters()
        if ended.reason is EndReason.LIBRARY_NOT_FOUND:
            return  # reported by `run` for all cases without a library
        if ended.reason is not EndReason.NO_ANSWER or not self._fresh:
            self._set_status(component_status.not_initialised(ended.detail))

    async def _stop_worker(self, child: Child) -> None:
        """Stop the worker and wait for a limited time. A hanging one is left behind: killing it could wedge its GPU."""
        self._child = None
        self._takes_queries.clear()
        self._questions.give_up("the NVML worker has ended")
        child.close_stdin()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._periods.stop_deadline):
                await child.ended()
        if child.alive:
            log.warning("nvml.worker_abandoned", pid=child.pid)
        else:
            self._gone.set()
        child.close_pipes()

    def _set_status(self, status: ComponentStatus) -> None:
        if status != self._status:
            self._status = status
            self._report(status)


async def _log_lines(child: Child) -> None:
    while line := await child.stderr.readline():
        log.warning("nvml.worker_stderr", line=line.decode(errors="replace").rstrip())
