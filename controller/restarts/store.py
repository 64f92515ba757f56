"""Restart objects: what people ask for, and the record of every round. For the leader alone."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import structlog

from common import aio, contained, joint_part
from common.gangs import GangKey
from common.kube import client, errors, mirror, timestamps
from common.parts import PartState, PartStatus
from controller.model.rounds import RoundRef
from controller.restarts import convergence, history, names, objects, writing
from controller.restarts.history import Keeping
from controller.restarts.objects import NewRound, Restart

log = structlog.get_logger(__name__)

RestartChangeKind = mirror.ChangeKind

_SWEEP_SECONDS: Final = 60.0
_SETTLE_SECONDS: Final = 1.0
_SUPERSEDED: Final[Mapping[str, str]] = MappingProxyType(
    {"member": "", "node": "", "reason": "Superseded", "message": "another round of its gang has followed it"}
)
_BELIEVABLE_ATTEMPT: Final = 1_000_000_000
"""Nobody has restarted a gang so often: somebody has written the annotation by hand."""


@dataclass(frozen=True, slots=True)
class RestartChange:
    """One change of an object. Who deletes one of a round that is not at its end takes the round back."""

    kind: RestartChangeKind
    restart: Restart


@dataclass(frozen=True, slots=True)
class Begun:
    """A round and its object. Not ``durable``: the API server does not take it yet, which is tried on."""

    ref: RoundRef
    durable: bool


class RestartStore:
    """Keeps the view, and writes. ``run`` does the work; the rest can be asked at any time."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        report: Callable[[PartStatus], None],
        is_alive: Callable[[GangKey], bool],
        keeping: Keeping | None = None,
        clock: Callable[[], float] = time.time,
        backoff: Callable[[], aio.Backoff] = lambda: aio.Backoff(first=0.1, limit=5.0),
    ) -> None:
        """Create it; ``is_alive`` says whether a gang has members, ``clock`` gives Unix seconds."""
        self._api = api
        self._is_alive = is_alive
        self._keeping = keeping if keeping is not None else Keeping()
        self._clock = clock
        part = joint_part.JointPart(report)
        self._mirror: mirror.Mirror[Restart] = mirror.Mirror(
            api=api, path=names.WHOLE, reduce=objects.parse, report=part.reporter(), backoff=backoff()
        )
        self._writer = convergence.Writer(api=api, report=part.reporter(), clock=clock, backoff=backoff)
        self._by_id: dict[str, Restart] = {}
        self._newest: dict[GangKey, int] = {}
        self._listeners: list[Callable[[RestartChange], None]] = []
        self._changed = asyncio.Event()
        self._mirror.subscribe(self._take)
        self._report = report
        self._stand_by()

    @property
    def synced(self) -> bool:
        """Whether all objects have been listed since ``run`` began."""
        return self._mirror.synced

    async def wait_synced(self) -> None:
        """Wait until they have."""
        await self._mirror.wait_synced()

    def restarts(self) -> Mapping[str, Restart]:
        """Return all objects by id: a copy."""
        return dict(self._by_id)

    def requests(self) -> list[Restart]:
        """Return what waits to be taken on, oldest first."""
        return _in_order(each for each in self._by_id.values() if each.is_request)

    def unfinished(self) -> list[Restart]:
        """Return the rounds that are not at their end, oldest first: a new leader resumes them.

        Not those that another one has followed (``history.superseded``), nor those that are being taken back.
        """
        over = {each.uid for each in history.superseded(self._by_id.values())}
        return _in_order(
            each
            for each in self._by_id.values()
            if each.is_round and not each.is_finished and not each.deleting and each.uid not in over
        )

    def note_attempt(self, gang: GangKey, attempt: int) -> None:
        """Take note of the number of a round that an agent knows: its object may never have been written."""
        self._count(gang, min(attempt, _BELIEVABLE_ATTEMPT))

    async def finish(self) -> None:
        """Write how rounds have ended though their term is over; for ever (``convergence.Writer.finish``)."""
        await self._writer.finish()

    def newest_attempt(self, gang: GangKey) -> int:
        """Return the highest number that a round of the gang has had; 0: none that is known."""
        return self._newest.get(gang, 0)

    def subscribe(self, listener: Callable[[RestartChange], None]) -> Callable[[], None]:
        """Call ``listener`` at each change, in order; it must not block. Returns the function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def create(self, new: NewRound, *, timeout: float = 2.0) -> Begun:
        """Give a round its object, waiting ``timeout`` seconds at most until it is durable."""
        ref = RoundRef(new.gang.namespace, objects.name_for(new.gang, new.attempt), new.gang, new.attempt)
        return await self._begin(ref, lambda: writing.create(self._api, ref.name, new), timeout=timeout)

    async def take(self, request: Restart, new: NewRound, *, timeout: float = 2.0) -> Begun:
        """Make a round of a request, waiting ``timeout`` seconds at most until that is durable."""
        ref = RoundRef(request.namespace, request.name, new.gang, new.attempt)
        return await self._begin(ref, lambda: writing.take(self._api, request, new), timeout=timeout)

    async def resume(self, restart: Restart, *, epoch: int, timeout: float = 2.0) -> bool:
        """Take a round over from a former leader, whose late words about it do not count then; return ``durable``."""
        before = _presupposed(restart)
        return await self._writer.begin(
            restart.id, lambda: writing.resume(self._api, before, epoch=epoch), timeout=timeout
        )

    def set_status(self, restart_id: str, status: Mapping[str, Any]) -> None:
        """Say what the status of an object should be; the newest counts. Does not block.

        Of an object that is gone, or that belongs to another leader by now, nothing is written any more.
        """
        restart = self._by_id.get(restart_id)
        known = self._writer.known(restart_id) or (_presupposed(restart) if restart is not None else None)
        if known is None and not self._writer.is_unsaid(restart_id):
            log.info("restart.gone_before_its_end", restart=restart_id, phase=status.get("phase"))
            return
        self._writer.set_status(restart_id, status, known=known)

    async def flush(self, *, timeout: float) -> bool:
        """Wait until all is written, ``timeout`` seconds at most; return whether it is. Needs ``run`` running."""
        return await self._writer.flush(timeout=timeout)

    async def run(self) -> None:
        """Watch, write, and remove what is old, for ever."""
        try:
            async with asyncio.TaskGroup() as group:
                aio.spawn_eternal(group, self._mirror.run(), name="restarts watched")
                aio.spawn_eternal(group, self._writer.run(), name="restarts written")
                aio.spawn_eternal(group, self._sweep(), name="restarts removed")
        finally:
            self._stand_by()

    def _stand_by(self) -> None:
        self._report(PartStatus(PartState.IDLE, "they are for who leads"))

    async def _begin(self, ref: RoundRef, first: convergence.First, *, timeout: float) -> Begun:
        self._count(ref.gang, ref.attempt)
        return Begun(ref, await self._writer.begin(ref.id, first, timeout=timeout))

    def _count(self, gang: GangKey, attempt: int) -> None:
        self._newest[gang] = max(self.newest_attempt(gang), attempt)

    def _count_seen(self, restart: Restart) -> None:
        """Take note of the number that an object has. One beyond belief must not use all numbers up."""
        if restart.gang is not None:
            self._count(restart.gang, min(restart.attempt, _BELIEVABLE_ATTEMPT))

    def _take(self, change: mirror.Change[Restart]) -> None:
        restart = change.value
        if change.kind is not RestartChangeKind.GONE:
            self._by_id[restart.id] = restart
            self._count_seen(restart)
        elif self._by_id[restart.id].uid == change.uid:  # else there is a new one of that name already
            del self._by_id[restart.id]
        self._changed.set()
        for listener in tuple(self._listeners):
            with contained.within(contained.Part.LISTENER, restart.id):
                listener(RestartChange(change.kind, restart))

    async def _sweep(self) -> None:
        """Remove what need not be kept, for ever."""
        await self.wait_synced()
        while True:
            self._changed.clear()
            now = self._clock()
            found = history.removal(self._by_id.values(), keeping=self._keeping, is_alive=self._is_alive, now=now)
            for restart in found.now:
                with contained.within(contained.Part.RESTART, restart.id):
                    await self._remove(restart)
            with contained.within(contained.Part.RESTART, "those that others have followed"):
                self._close_superseded(now)
            self._forget_old_gangs()
            wait = _SWEEP_SECONDS if found.next_at is None else min(found.next_at - now, _SWEEP_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()
                    await asyncio.sleep(_SETTLE_SECONDS)  # what changes together is looked at together

    async def _remove(self, restart: Restart) -> None:
        try:
            await writing.remove(self._api, restart)
            log.info("restart.removed", restart=restart.id)
        except errors.KubeError as error:
            log.warning("restart.not_removed", restart=restart.id, error=str(error))

    def _close_superseded(self, now: float) -> None:
        """Give rounds an end that have none, and that nobody goes on with: only what has ended is ever removed."""
        for restart in history.superseded(self._by_id.values()):
            if not self._writer.is_unsaid(restart.id) and self._writer.known(restart.id) is None:
                log.warning("restart.closed", restart=restart.id, epoch=restart.epoch, why=_SUPERSEDED["message"])
                told = {name: value for name, value in restart.status.items() if name != "resume"}
                end = {"phase": "Failed", "completionTime": timestamps.rfc3339(now), "failures": [dict(_SUPERSEDED)]}
                self.set_status(restart.id, {**told, **end})

    def _forget_old_gangs(self) -> None:
        """Forget the numbers of gangs that are no more, and of which nothing is kept."""
        kept = {each.gang for each in self._by_id.values()}
        self._newest = {gang: n for gang, n in self._newest.items() if gang in kept or self._is_alive(gang)}


def _presupposed(restart: Restart) -> writing.Written:
    epoch = str(restart.epoch) if restart.is_round else ""
    return writing.Written(restart.namespace, restart.name, restart.uid, restart.generation, epoch)


def _in_order(restarts: Iterable[Restart]) -> list[Restart]:
    return sorted(restarts, key=lambda each: (each.created_at, each.attempt, each.id))
