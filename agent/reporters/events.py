"""Record event messages as Kubernetes Events, at a limited rate, and only while they are recent.

Messages with the same object, reason and subject are one series: the first is recorded at once, later ones are counted
into the same Event, at most once per ``spacing``. Each object has an allowance on top. Messages are dropped, and
counted, if they cannot be recorded for a while: the conditions have the current state.
"""

import asyncio
import contextlib
import enum
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from kubemend.agent.model.event_messages import EventMessage
from kubemend.agent.model.workloads import PodRef
from kubemend.agent.reporters import event_objects
from kubemend.agent.reporters.allowances import Allowances
from kubemend.common import aio, contained
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client, errors, repeats

log = structlog.get_logger(__name__)


class Outcome(enum.Enum):
    """The outcome of event messages, for metrics."""

    WRITTEN = "written"  # by one of this agent's writes, together with others or alone
    KNOWN = "known"  # a previous agent has recorded them
    REFUSED = "refused"  # the server will never accept them, or a quota or policy of their namespace does not
    DROPPED = "dropped"  # no longer recent, or too many series


@dataclass(frozen=True, slots=True)
class Limits:
    """``burst`` and ``refill`` are an object's allowance of writes (client-go's ``defaultSpamBurst`` and ``-QPS``).

    Seconds: ``refill``, ``spacing`` between two writes of one series, ``keep`` until an unrecorded message is dropped.
    ``series``: the maximum number of series in memory.
    """

    burst: int = 25
    refill: float = 300.0
    spacing: float = 10.0
    keep: float = 600.0
    series: int = 1000


_Key = tuple[PodRef | None, str, str]


@dataclass(eq=False, slots=True)
class _Series:
    """One series: its newest message, and how many are not recorded yet (the oldest is from ``first``, Unix time)."""

    event_message: EventMessage
    first: float
    since: float = 0.0  # the same in loop time
    unrecorded: int = 0
    count: int | None = None  # in the API; None: no Event is known to exist
    not_before: float = float("-inf")  # loop time

    def add(self, event_message: EventMessage, *, now: float) -> None:
        if not self.unrecorded:
            self.first, self.since = event_message.at, now
        self.event_message = event_message
        self.unrecorded += 1

    def settle(self, occurrences: int, *, now: float) -> None:
        """Subtract messages that are done; those that arrived in the meantime stay."""
        self.unrecorded -= occurrences
        self.first, self.since = self.event_message.at, now


class EventReporter:
    """``record`` accepts messages, ``run`` writes them."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        node_name: str,
        report: Callable[[ComponentStatus], None],
        on_outcome: Callable[[Outcome, int], None] = lambda _outcome, _occurrences: None,
        limits: Limits | None = None,
        backoff: aio.Backoff | None = None,
    ) -> None:
        """``on_outcome`` receives each outcome with the number of messages."""
        self._api = api
        self._node = node_name
        self._report = report
        self._on_outcome = on_outcome
        self._limits = limits if limits is not None else Limits()
        self._backoff = backoff if backoff is not None else aio.Backoff(first=0.2, limit=10.0)
        self._allowances = Allowances(burst=self._limits.burst, refill=self._limits.refill)
        self._series: dict[_Key, _Series] = {}  # the one that was added to last comes last
        self._news = asyncio.Event()

    def record(self, event_message: EventMessage) -> None:
        """Accept a message. Does not block."""
        key = (event_message.about, event_message.reason, event_message.subject)
        series = self._series.pop(key, None)
        if series is None:
            self._make_room()
            series = _Series(event_message, first=event_message.at)
        series.add(event_message, now=asyncio.get_running_loop().time())
        self._series[key] = series
        if series.unrecorded == 1:
            self._news.set()

    async def run(self) -> None:
        """Record indefinitely."""
        self._report(ComponentStatus(ComponentState.IDLE, "no events yet"))
        while True:
            series = await self._next()
            recorded = True
            with contained.within(contained.Part.EVENT, series.event_message.about) as work:
                recorded = await self._attempt(series)
            if work.failed:
                self._finish(series, Outcome.DROPPED)
            if not recorded:
                series.not_before = asyncio.get_running_loop().time()  # other series go first
                await self._backoff.wait()

    def _make_room(self) -> None:
        """Drop a series without unrecorded messages, else the one whose last message is oldest."""
        while len(self._series) >= self._limits.series:
            oldest = next(iter(self._series))
            key = next((key for key, series in self._series.items() if not series.unrecorded), oldest)
            self._finish(self._series.pop(key), Outcome.DROPPED)

    async def _next(self) -> _Series:
        """Wait until a series may be written, and return it."""
        clock = asyncio.get_running_loop().time
        while True:
            self._news.clear()
            self._drop_stale(now=clock())
            first = min(
                (series for series in self._series.values() if series.unrecorded), key=self._due_at, default=None
            )
            wait = self._due_at(first) - clock() if first is not None else None
            if first is not None and wait is not None and wait <= 0:
                return first
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._news.wait()

    def _due_at(self, series: _Series) -> float:
        return max(series.not_before, self._allowances.next_at(series.event_message.about))

    def _drop_stale(self, *, now: float) -> None:
        unrecorded = [series for series in self._series.values() if series.unrecorded]
        stale = [series for series in unrecorded if now - series.since > self._limits.keep]
        for series in stale:
            self._finish(series, Outcome.DROPPED)
        if stale and len(stale) == len(unrecorded):  # an earlier refusal says nothing about the next message
            self._report(ComponentStatus(ComponentState.IDLE, "no events to record"))

    async def _attempt(self, series: _Series) -> bool:
        """Record its present state; return False if that must be tried again."""
        occurrences = series.unrecorded
        try:
            outcome = await self._write(series)
        except errors.NotFoundError:
            if series.count is not None:
                series.count = None  # the Event has expired
                return False
            outcome = Outcome.REFUSED  # its namespace has been deleted
        except errors.InvalidError as error:
            log.warning("event.refused", reason=series.event_message.reason, error=str(error))
            outcome = Outcome.REFUSED
        except errors.ForbiddenError as error:
            if not error.is_by_admission:
                self._report(ComponentStatus(ComponentState.DEGRADED, "creating Events is forbidden", error.hint))
                return False
            log.info("event.refused_by_admission", reason=series.event_message.reason, error=str(error))
            outcome = Outcome.REFUSED
        except errors.KubeError as error:
            log.debug("event.write_failed", reason=series.event_message.reason, error=str(error))
            return False
        else:
            self._report(ComponentStatus(ComponentState.READY))
        self._backoff.reset()
        now = asyncio.get_running_loop().time()
        self._allowances.spend(series.event_message.about, now=now)
        series.not_before = now + self._limits.spacing
        self._finish(series, outcome, occurrences=occurrences)
        return True

    def _finish(self, series: _Series, outcome: Outcome, *, occurrences: int | None = None) -> None:
        occurrences = series.unrecorded if occurrences is None else occurrences
        if not occurrences:
            return
        series.settle(occurrences, now=asyncio.get_running_loop().time())
        self._on_outcome(outcome, occurrences)
        about = str(series.event_message.about or self._node)
        log.debug(
            "event", about=about, reason=series.event_message.reason, outcome=outcome.value, occurrences=occurrences
        )

    async def _write(self, series: _Series) -> Outcome:
        event_message, unrecorded = series.event_message, series.unrecorded
        path = event_objects.collection(event_message)
        name = event_objects.name(event_message, node=self._node)
        if series.count is None:
            event = event_objects.created(event_message, node=self._node, count=unrecorded, first=series.first)
            try:
                await self._api.create(path, event)
            except errors.AlreadyExistsError:  # a previous agent's; or this agent's, and the answer was lost
                count, last = repeats.occurrences(await self._api.get(f"{path}/{name}"))
                series.count = count
                if last >= int(event_message.at):
                    return Outcome.KNOWN
            else:
                series.count = unrecorded
                return Outcome.WRITTEN
        await self._api.patch(f"{path}/{name}", event_objects.continued(event_message, count=series.count + unrecorded))
        series.count += unrecorded
        return Outcome.WRITTEN
