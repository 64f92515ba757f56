"""Tells announcements as Kubernetes Events, few of them whatever happens, and only as long as they are news.

What has the same object, reason and subject is one series: the first is told at once, those that follow are counted
into the same Event, not more often than ``spacing``. Each object has an allowance on top. Events are dropped, and
counted, when they cannot be told for a while: the conditions say what holds.
"""

import asyncio
import contextlib
import enum
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from agent.model.announcements import Announcement
from agent.model.workloads import PodRef
from agent.reporters import event_objects
from agent.reporters.allowances import Allowances
from common import aio, contained
from common.kube import client, errors, repeats
from common.parts import PartState, PartStatus

log = structlog.get_logger(__name__)


class Outcome(enum.Enum):
    """What became of announcements, for metrics."""

    TOLD = "told"  # by a write of ours, together with others or alone
    KNOWN = "known"  # an earlier agent has told them
    REFUSED = "refused"  # the server will never take them, or their namespace is going away
    DROPPED = "dropped"  # no longer news, or too many series


@dataclass(frozen=True, slots=True)
class Limits:
    """``burst`` and ``refill`` are an object's allowance of writes (client-go's ``defaultSpamBurst`` and ``-QPS``).

    Seconds: ``refill``, ``spacing`` between two writes of one series, ``keep`` until what has not been told is no
    longer news. ``series``: how many are remembered.
    """

    burst: int = 25
    refill: float = 300.0
    spacing: float = 10.0
    keep: float = 600.0
    series: int = 1000


_Key = tuple[PodRef | None, str, str]


@dataclass(eq=False, slots=True)
class _Series:
    """One story: its newest announcement, and how many have not been told yet (the oldest at ``first``, Unix time)."""

    announcement: Announcement
    first: float
    since: float = 0.0  # the loop's time of the same
    untold: int = 0
    count: int | None = None  # in the API; None: there is no Event yet, as far as we know
    not_before: float = float("-inf")  # loop time

    def add(self, announcement: Announcement, *, now: float) -> None:
        if not self.untold:
            self.first, self.since = announcement.at, now
        self.announcement = announcement
        self.untold += 1

    def settle(self, announcements: int, *, now: float) -> None:
        """Take off what is dealt with; what came meanwhile stays."""
        self.untold -= announcements
        self.first, self.since = self.announcement.at, now


class EventReporter:
    """``tell`` takes announcements in, ``run`` writes them."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        node_name: str,
        report: Callable[[PartStatus], None],
        on_outcome: Callable[[Outcome, int], None] = lambda _outcome, _announcements: None,
        limits: Limits | None = None,
        backoff: aio.Backoff | None = None,
    ) -> None:
        """Create it; ``on_outcome`` is told what became of how many announcements."""
        self._api = api
        self._node = node_name
        self._report = report
        self._on_outcome = on_outcome
        self._limits = limits if limits is not None else Limits()
        self._backoff = backoff if backoff is not None else aio.Backoff(first=0.2, limit=10.0)
        self._allowances = Allowances(burst=self._limits.burst, refill=self._limits.refill)
        self._series: dict[_Key, _Series] = {}  # the one that was added to last comes last
        self._news = asyncio.Event()

    def tell(self, announcement: Announcement) -> None:
        """Take an announcement in. Does not block."""
        key = (announcement.about, announcement.reason, announcement.subject)
        series = self._series.pop(key, None)
        if series is None:
            self._make_room()
            series = _Series(announcement, first=announcement.at)
        series.add(announcement, now=asyncio.get_running_loop().time())
        self._series[key] = series
        if series.untold == 1:
            self._news.set()

    async def run(self) -> None:
        """Tell for ever."""
        self._report(PartStatus(PartState.IDLE, "nothing has happened yet"))
        while True:
            series = await self._next()
            told = True
            with contained.within(contained.Part.EVENT, series.announcement.about) as work:
                told = await self._attempt(series)
            if work.failed:
                self._dealt_with(series, Outcome.DROPPED)
            if not told:
                series.not_before = asyncio.get_running_loop().time()  # others first
                await self._backoff.wait()

    def _make_room(self) -> None:
        """Forget a series of which all is told, else the one that was added to longest ago."""
        while len(self._series) >= self._limits.series:
            oldest = next(iter(self._series))
            key = next((key for key, series in self._series.items() if not series.untold), oldest)
            self._dealt_with(self._series.pop(key), Outcome.DROPPED)

    async def _next(self) -> _Series:
        """Wait until a series may be told, and return it."""
        clock = asyncio.get_running_loop().time
        while True:
            self._news.clear()
            self._drop_stale(now=clock())
            first = min((series for series in self._series.values() if series.untold), key=self._due_at, default=None)
            wait = self._due_at(first) - clock() if first is not None else None
            if first is not None and wait is not None and wait <= 0:
                return first
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._news.wait()

    def _due_at(self, series: _Series) -> float:
        return max(series.not_before, self._allowances.next_at(series.announcement.about))

    def _drop_stale(self, *, now: float) -> None:
        for series in self._series.values():
            if series.untold and now - series.since > self._limits.keep:
                self._dealt_with(series, Outcome.DROPPED)

    async def _attempt(self, series: _Series) -> bool:
        """Tell it as it stands now; return False when that must be tried again."""
        announcements = series.untold
        try:
            outcome = await self._write(series)
        except errors.NotFoundError:
            if series.count is not None:
                series.count = None  # the Event's hour is over
                return False
            outcome = Outcome.REFUSED  # its namespace is gone
        except errors.InvalidError as error:
            log.warning("event.refused", reason=series.announcement.reason, error=str(error))
            outcome = Outcome.REFUSED
        except errors.ForbiddenError as error:
            if errors.NAMESPACE_GOES not in error.said:
                self._report(
                    PartStatus(PartState.DEGRADED, "the API server does not allow Events to be told", error.mend)
                )
                return False
            outcome = Outcome.REFUSED
        except errors.KubeError as error:
            log.debug("event.not_told", reason=series.announcement.reason, error=str(error))
            return False
        else:
            self._report(PartStatus(PartState.READY))
        self._backoff.reset()
        now = asyncio.get_running_loop().time()
        self._allowances.spend(series.announcement.about, now=now)
        series.not_before = now + self._limits.spacing
        self._dealt_with(series, outcome, announcements=announcements)
        return True

    def _dealt_with(self, series: _Series, outcome: Outcome, *, announcements: int | None = None) -> None:
        announcements = series.untold if announcements is None else announcements
        if not announcements:
            return
        series.settle(announcements, now=asyncio.get_running_loop().time())
        self._on_outcome(outcome, announcements)
        about = str(series.announcement.about or self._node)
        log.debug(
            "event", about=about, reason=series.announcement.reason, outcome=outcome.value, announcements=announcements
        )

    async def _write(self, series: _Series) -> Outcome:
        announcement, untold = series.announcement, series.untold
        path = event_objects.collection(announcement)
        name = event_objects.name(announcement, node=self._node)
        if series.count is None:
            event = event_objects.created(announcement, node=self._node, count=untold, first=series.first)
            try:
                await self._api.create(path, event)
            except errors.ConflictError:  # of an earlier agent; or ours, and the answer was lost
                count, last = repeats.told(await self._api.get(f"{path}/{name}"))
                series.count = count
                if last >= int(announcement.at):
                    return Outcome.KNOWN
            else:
                series.count = untold
                return Outcome.TOLD
        await self._api.patch(f"{path}/{name}", event_objects.continued(announcement, count=series.count + untold))
        series.count += untold
        return Outcome.TOLD
