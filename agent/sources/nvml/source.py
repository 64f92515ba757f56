"""NVML for the agent: supervises the one worker process, turns what it says into findings, and asks it questions.

Everything here waits on events of the worker's pipes; no NVML call is ever made in the agent's own process.
"""

import asyncio
import contextlib
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import MappingProxyType

import structlog

from agent.health.vitals.limits import Limits
from agent.model.actions import ActionClass
from agent.model.devices import GpuUuid, Inventory, PciAddress
from agent.model.findings import Finding, FindingKind
from agent.model.loads import Load
from agent.sources.nvml import loads, poller, presence, protocol, statuses
from agent.sources.nvml.child import Child
from agent.sources.nvml.protocol import DevicesAnswer, EndReason
from agent.sources.nvml.questions import Questions, Unknown
from agent.sources.nvml.telling import OnInventory, Teller
from common import aio, contained, process
from common.parts import PartState, PartStatus

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Periods:
    """All in seconds.

    ``poll_period``: between polls of every GPU. ``full_period``: between polls that read everything, not only what
    is cheap. ``recheck_period``: between looks for a driver that is not there, and for a library that is not there,
    where it grows to six times as much. ``reinit_period``: from a GPU's loss to a new nvmlInit, without which it
    stays lost; it doubles. ``hang_deadline``: after which an NVML call, or a silent worker, counts as hanging
    (nvmlInit takes seconds on a node without persistence mode). ``stop_deadline``: how long the agent waits for its
    worker when it ends.
    """

    poll_period: float = 5.0
    full_period: float = 30.0
    recheck_period: float = 10.0
    reinit_period: float = 60.0
    hang_deadline: float = 10.0
    stop_deadline: float = 5.0


class NvmlSource:
    """NVML events and polls of this node as findings.

    ``emit`` gets every finding, ``classify`` gives the action class of a (kind, code), ``report`` gets the part's
    condition whenever it changes. ``env`` is the worker's environment (None: the agent's own).

    ``known_before`` are the GPUs that NVML has shown to earlier agents on this boot of the node: one that is missing
    now is lost. ``on_inventory`` gets the same for the next agent, whenever it changes. ``sysfs`` is where it is seen
    whether GPUs are on the PCI bus.
    """

    def __init__(
        self,
        *,
        emit: Callable[[Finding], None],
        classify: Callable[[FindingKind, str], ActionClass],
        report: Callable[[PartStatus], None],
        periods: Periods | None = None,
        env: Mapping[str, str] | None = None,
        known_before: Mapping[GpuUuid, PciAddress] = MappingProxyType({}),
        on_inventory: OnInventory = lambda _: None,
        sysfs: Path = Path("/sys"),
        limits: Limits | None = None,
    ) -> None:
        self._report = report
        self._sysfs = sysfs
        self._teller = Teller(
            emit=emit,
            classify=classify,
            known_before=known_before,
            on_inventory=on_inventory,
            limits=limits if limits is not None else Limits(),
        )
        self._periods = periods if periods is not None else Periods()
        self._env = dict(env if env is not None else os.environ)
        self._status = PartStatus(PartState.STARTING)
        self._child: Child | None = None
        self._fresh = False  # a snapshot has come since the worker started or last hung
        self._stuck = False
        self._reinit_at: float | None = None  # loop time; None while no GPU is lost
        self._reinit_backoff = aio.Backoff(first=self._periods.reinit_period, limit=16 * self._periods.reinit_period)
        self._renewing = False  # the worker has been told to end because another nvmlInit is due
        self._wanted = asyncio.Event()
        self._wanted.set()
        self._gone = asyncio.Event()  # no worker runs
        self._gone.set()
        self._questions = Questions()
        self._inventory = Inventory()
        self._loads: Mapping[GpuUuid, Load] = {}

    @property
    def inventory(self) -> Inventory:
        """Every GPU that NVML has shown on this boot; complete only while NVML answers for all of them."""
        view = self._teller.view
        now = Inventory(
            gpus=tuple(state.gpu for state in view.gpus.values()),
            complete=self._ready and view.complete,
            silent=frozenset(uuid for uuid, state in view.gpus.items() if not state.answers),
        )
        if now != self._inventory:
            self._inventory = now
        return self._inventory  # the same object while nothing changes: others keep what they made of it

    def loads(self) -> Mapping[GpuUuid, Load]:
        """Return how hard each GPU worked at the latest poll; of none while NVML does not answer."""
        return self._loads if self._ready else {}

    @property
    def worker_pid(self) -> int | None:
        """The worker's process id, or None while none runs."""
        return self._child.pid if self._child is not None else None

    async def run(self) -> None:
        """Supervise the worker for ever: one at a time, a new one only when the last has ended."""
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
                self._set_status(statuses.RELEASED)
            elif reason is EndReason.LIBRARY_NOT_FOUND:
                self._set_status(statuses.no_library(seen_gpus=self._has_seen_gpus, on_bus=self._gpus_on_bus()))
                await no_library.wait()
            else:
                await backoff.wait()

    async def query(self, uuids: Sequence[GpuUuid], *, timeout: float) -> DevicesAnswer | Unknown:
        """Ask how these GPUs or MIG instances answer now; Unknown when NVML does not say in ``timeout`` seconds."""
        if self._child is None or not self._ready:
            return Unknown(self._status.message or "NVML has not answered yet")
        child = self._child
        return await self._questions.ask(uuids, send=lambda query: child.send(protocol.encode(query)), timeout=timeout)

    async def release(self, *, timeout: float) -> bool:
        """Let go of every NVML handle, as a GPU reset needs; False when the worker has not ended within ``timeout``.

        No worker is started until ``resume``, also when the answer is False.
        """
        self._wanted.clear()
        self._teller.counters_start_anew()
        if self._child is not None:
            self._child.close_stdin()
        try:
            async with asyncio.timeout(timeout):
                await self._gone.wait()
        except TimeoutError:
            return False
        return True

    def resume(self) -> None:
        """Take NVML up again after ``release``, with a new nvmlInit."""
        self._wanted.set()

    def forget(self, device: str) -> None:
        """Miss a GPU (by UUID or PCI address) no longer, which somebody has said need not come back.

        It is forgotten when NVML lists it no longer: while it is listed as lost, it is broken and not missing.
        """
        self._teller.forget(device)

    @property
    def _ready(self) -> bool:
        return self._fresh and not self._stuck

    @property
    def _has_seen_gpus(self) -> bool:
        return bool(self._teller.view.gpus)

    def _gpus_on_bus(self) -> int:
        return presence.gpus_on_bus(self._sysfs)

    def _worth_a_worker(self) -> bool:
        """Whether a process may find NVML: on a node without GPUs a look at files is all that it costs."""
        return presence.library_found(self._env) or self._has_seen_gpus or self._gpus_on_bus() > 0

    async def _run_worker(self) -> EndReason | None:
        """Run one worker to its end and return the reason that it gave."""
        try:
            child = Child(self._argv(), env=self._env)
        except OSError as error:
            self._set_status(statuses.not_started(error))
            return None
        self._child = child
        self._gone.clear()
        try:
            await child.connect()
            async with asyncio.TaskGroup() as group:
                group.create_task(_log_lines(child), name="nvml-worker-stderr")
                reason = await self._listen(child)
            status = await child.ended()
        finally:
            await self._part_with(child)
        renewed, self._renewing = self._renewing, False
        if reason is None and self._wanted.is_set() and not renewed:
            log.warning("nvml.worker_ended", status=status)
            self._set_status(statuses.crashed(status))
        return reason

    def _argv(self) -> list[str]:
        given = {option.name: getattr(self._periods, option.name) for option in fields(poller.Options)}
        flags = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
        return process.helper_command("agent.sources.nvml.worker", *flags)

    async def _listen(self, child: Child) -> EndReason | None:
        """Take in the worker's messages until it ends."""
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
                    self._teller.counters_start_anew()
                    self._set_status(statuses.no_driver(seen_gpus=self._has_seen_gpus, on_bus=self._gpus_on_bus()))
                case protocol.Ended():
                    reason = message.reason
                    self._on_ended(message)
                case protocol.Query():
                    raise protocol.ProtocolError("the NVML worker sent a query")
        return reason

    async def _messages(self, child: Child) -> AsyncIterator[protocol.Message]:
        """Yield messages up to the end of the worker's stdout. Silence past the hang deadline is a stuck worker."""
        while True:
            try:
                async with asyncio.timeout(None if self._stuck else self._periods.hang_deadline):
                    line = await child.stdout.readline()
            except TimeoutError:
                self._on_stuck("the whole NVML worker")
                continue
            if not line.endswith(b"\n"):  # the end, or a line that a crash cut short
                return
            yield protocol.decode(line)

    def _on_event(self, event: protocol.XidEvent | protocol.DeviceEvent) -> None:
        if isinstance(event, protocol.XidEvent):
            self._teller.xid(event)
        else:
            self._teller.event(event, clock=asyncio.get_running_loop().time())

    def _on_beat(self, call: str | None) -> None:
        if call is not None:
            self._on_stuck(call)
        elif self._stuck:
            self._stuck = False
            log.info("nvml.driver_moves_again")
            if self._fresh:  # polls went on while the wait for events hung
                self._set_status(statuses.ready(self._teller.view))

    def _on_stuck(self, call: str) -> None:
        if self._stuck:
            return
        self._stuck, self._fresh = True, False
        log.warning("nvml.driver_hangs", call=call, pid=self.worker_pid)
        self._set_status(statuses.unresponsive(call=call, seconds=self._periods.hang_deadline))
        self._questions.give_up("the NVIDIA driver does not answer")

    def _on_snapshot(self, snapshot: protocol.Snapshot) -> None:
        self._fresh = True
        self._loads = loads.of(snapshot)
        with contained.within(contained.Part.DEVICE, "a snapshot of all"):
            self._teller.snapshot(snapshot)
        if not self._stuck:
            self._set_status(statuses.ready(self._teller.view))
        self._plan_reinit()

    def _plan_reinit(self) -> None:
        """While a GPU is lost, end the worker now and then: only the nvmlInit of the next one can show it again."""
        now = asyncio.get_running_loop().time()
        if not self._teller.view.wants_reinit:
            self._reinit_at = None
            self._reinit_backoff.reset()
        elif self._reinit_at is None:
            self._reinit_at = now + self._reinit_backoff.next_wait()
        elif now >= self._reinit_at and self._child is not None:
            self._reinit_at, self._renewing = None, True
            log.info("nvml.reinit", lost=[uuid for uuid, state in self._teller.view.gpus.items() if state.lost])
            self._child.close_stdin()

    def _on_ended(self, ended: protocol.Ended) -> None:
        log.info("nvml.worker_ends", reason=ended.reason.value, detail=ended.detail)
        if ended.reason is not EndReason.NO_ANSWER:
            self._teller.counters_start_anew()
        if ended.reason is EndReason.LIBRARY_NOT_FOUND:
            return  # said with all others that find none
        if ended.reason is not EndReason.NO_ANSWER or not self._fresh:
            self._set_status(statuses.not_initialised(ended.detail))

    async def _part_with(self, child: Child) -> None:
        """Stop the worker and wait a while. One that hangs is left behind: killing it could wedge its GPU."""
        self._child = None
        self._questions.give_up("the NVML worker has ended")
        child.close_stdin()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._periods.stop_deadline):
                await child.ended()
        if child.alive:
            log.warning("nvml.worker_left_behind", pid=child.pid)
        else:
            self._gone.set()
        child.let_go()

    def _set_status(self, status: PartStatus) -> None:
        if status != self._status:
            self._status = status
            self._report(status)


async def _log_lines(child: Child) -> None:
    while line := await child.stderr.readline():
        log.warning("nvml.worker_stderr", line=line.decode(errors="replace").rstrip())
