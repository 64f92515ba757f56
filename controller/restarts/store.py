"""Restart objects: requests, and the record of every round. For the leader only."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

import structlog

from kubemend.common import aio, contained
from kubemend.common.components import ComponentState, ComponentStatus, JointComponent
from kubemend.common.gangs import GangKey
from kubemend.common.kube import client, errors, informer, shares, timestamps
from kubemend.common.kube.changes import ChangeKind
from kubemend.controller.model.rounds import RoundRef
from kubemend.controller.restarts import history, names, objects, status_writer, writing
from kubemend.controller.restarts.history import Keeping
from kubemend.controller.restarts.objects import NewRound, Restart

log = structlog.get_logger(__name__)

RestartChangeKind = ChangeKind

RECORD_TIMEOUT: Final = 1.0
"""Seconds that the record of a round may take.

The answer to a fault follows it. The agent waits for that answer for its ``--hub-answer-timeout`` (2 s by default): a
round that begins later meets a restart by the agent alone.
"""

_SWEEP_SECONDS: Final = 60.0
_SETTLE_SECONDS: Final = 1.0
_SUPERSEDED: Final[Mapping[str, str]] = MappingProxyType(
    {"member": "", "node": "", "reason": "Superseded", "message": "another round of the gang has followed this one"}
)
_BELIEVABLE_ATTEMPT: Final = 1_000_000_000
"""No gang has this many restarts: a higher number was written into the annotation by hand."""


@dataclass(frozen=True, slots=True)
class RestartChange:
    """One change of an object. The deletion of an unfinished round's object cancels the round."""

    kind: RestartChangeKind
    restart: Restart


@dataclass(frozen=True, slots=True)
class Begun:
    """A round and its object. Not ``durable``: the API server has not accepted the object yet; the write is retried."""

    ref: RoundRef
    durable: bool


class RestartStore:
    """Keep a view of the objects, and write them. ``run`` does the work; all other calls are valid at any time."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        report: Callable[[ComponentStatus], None],
        is_alive: Callable[[GangKey], bool],
        keeping: Keeping | None = None,
        clock: Callable[[], float] = time.time,
        backoff: Callable[[], aio.Backoff] = lambda: aio.Backoff(first=0.1, limit=5.0),
    ) -> None:
        """Create it; ``is_alive`` returns whether a gang has members, ``clock`` returns Unix seconds."""
        self._api = api
        self._is_alive = is_alive
        self._keeping = keeping if keeping is not None else Keeping()
        self._clock = clock
        part = JointComponent(report)
        self._informer: informer.Informer[Restart] = informer.Informer(
            api=api,
            path=names.WHOLE,
            reduce=objects.parse,
            report=part.reporter(),
            backoff=backoff(),
            bounds=shares.Bounds(
                objects.bare,
                one=objects.MOST_OF_A_RESTART,
                namespace=objects.MOST_OF_A_NAMESPACE,
                total=objects.MOST_OF_ALL,
            ),
        )
        self._writer = status_writer.StatusWriter(api=api, report=part.reporter(), clock=clock, backoff=backoff)
        self._by_id: dict[str, Restart] = {}
        self._by_gang: dict[GangKey | None, dict[str, Restart]] = {}
        self._newest: dict[GangKey, int] = {}
        self._not_removed: dict[str, float] = {}  # UIDs of expired objects, and when to try again (loop time)
        self._begun: dict[str, RoundRef] = {}  # the last round that was begun with an object of this name
        self._listeners: list[Callable[[RestartChange], None]] = []
        self._changed = asyncio.Event()
        self._informer.subscribe(self._apply)
        self._report = report
        self._stand_by()

    @property
    def synced(self) -> bool:
        """Return whether all objects have been listed since ``run`` began."""
        return self._informer.synced

    async def wait_synced(self) -> None:
        """Wait until all objects have been listed."""
        await self._informer.wait_synced()

    def restarts(self) -> Mapping[str, Restart]:
        """Return all objects by id: a live, read-only view, valid until the next change."""
        return MappingProxyType(self._by_id)

    def of_gang(self, gang: GangKey) -> Mapping[str, Restart]:
        """Return the objects of a gang by id: a live, read-only view, valid until the next change.

        A decision must not read those of all gangs: a thousand gangs may fail at once, and each has ten or more.
        """
        return MappingProxyType(self._by_gang.get(gang, {}))

    def requests(self) -> list[Restart]:
        """Return the waiting requests, oldest first."""
        return _in_order(each for each in self._by_id.values() if each.is_request)

    def unfinished(self) -> list[Restart]:
        """Return the unfinished rounds, oldest first: a new leader resumes them.

        Excluded are those that another one has followed (``history.superseded``), and those that are being deleted.
        """
        over = {each.uid for each in history.superseded(self._by_id.values())}
        return _in_order(
            each
            for each in self._by_id.values()
            if each.is_round and not each.is_finished and not each.deleting and each.uid not in over
        )

    def note_attempt(self, gang: GangKey, attempt: int) -> None:
        """Record the number of a round that an agent reports: its object may never have been written."""
        self._count(gang, min(attempt, _BELIEVABLE_ATTEMPT))

    async def finish(self) -> None:
        """Write the ends of rounds after their term; runs indefinitely (``status_writer.StatusWriter.finish``)."""
        await self._writer.finish()

    def newest_attempt(self, gang: GangKey) -> int:
        """Return the highest known number of a round of the gang; 0 if there is none."""
        return self._newest.get(gang, 0)

    def subscribe(self, listener: Callable[[RestartChange], None]) -> Callable[[], None]:
        """Call ``listener`` at each change, in order; it must not block. Returns the function that unsubscribes."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def create(self, new: NewRound, *, timeout: float = RECORD_TIMEOUT) -> Begun:
        """Create a round's object, and wait ``timeout`` seconds at most until it is durable."""
        ref = RoundRef(new.gang.namespace, objects.name_for(new.gang, new.attempt), new.gang, new.attempt)
        return await self._begin(ref, lambda: writing.create(self._api, ref.name, new), timeout=timeout)

    async def adopt(self, request: Restart, new: NewRound, *, timeout: float = RECORD_TIMEOUT) -> Begun:
        """Turn a request into a round, and wait ``timeout`` seconds at most until that is durable."""
        ref = RoundRef(request.namespace, request.name, new.gang, new.attempt)
        return await self._begin(ref, lambda: writing.adopt(self._api, request, new), timeout=timeout)

    async def resume(self, restart: Restart, *, epoch: int, timeout: float = 2.0) -> bool:
        """Take a round over from a previous leader, whose late writes then fail; return whether that is durable."""
        before, ref = _presupposed(restart), restart.ref
        assert ref is not None
        self._begun[restart.id] = ref
        return await self._writer.begin(
            restart.id, lambda: writing.resume(self._api, before, epoch=epoch), timeout=timeout
        )

    def set_status(self, of: RoundRef | Restart, status: Mapping[str, Any]) -> None:
        """Set the status that the object of a round, or a request, should have; the newest counts. Does not block.

        Nothing is written to an object that is deleted, was replaced by another one of its name, or belongs to another
        leader by now.
        """
        known = _presupposed(of) if isinstance(of, Restart) else self._preconditions(of)
        if known is None and not self._is_beginning(of):
            log.info("restart.deleted_in_progress", restart=of.id, phase=status.get("phase"))
            return
        self._writer.set_status(of.id, status, known=known)

    def _preconditions(self, ref: RoundRef) -> writing.Written | None:
        """Return the preconditions of writes to a round's object; None if there is no such object, or not yet."""
        if self._is_last(ref) and (known := self._writer.known(ref.id)) is not None:
            return known
        restart = self._by_id.get(ref.id)
        return _presupposed(restart) if restart is not None and restart.ref == ref else None

    def _is_beginning(self, of: RoundRef | Restart) -> bool:
        return isinstance(of, RoundRef) and self._is_last(of) and self._writer.is_pending(of.id)

    def _is_last(self, ref: RoundRef) -> bool:
        """Return whether no other round has begun with an object of this name since."""
        return self._begun.get(ref.id, ref) == ref

    async def flush(self, *, timeout: float) -> bool:
        """Wait until everything is written, ``timeout`` seconds at most; return whether it is.

        Needs ``run`` running.
        """
        return await self._writer.flush(timeout=timeout)

    async def run(self) -> None:
        """Watch, write, and remove expired objects indefinitely."""
        try:
            async with asyncio.TaskGroup() as group:
                aio.spawn_eternal(group, self._informer.run(), name="restarts watched")
                aio.spawn_eternal(group, self._writer.run(), name="restarts written")
                aio.spawn_eternal(group, self._sweep(), name="restarts removed")
        finally:
            self._stand_by()

    def _stand_by(self) -> None:
        self._report(ComponentStatus(ComponentState.IDLE, "only the leader watches Restarts"))

    async def _begin(self, ref: RoundRef, first: status_writer.First, *, timeout: float) -> Begun:
        self._count(ref.gang, ref.attempt)
        self._begun[ref.id] = ref
        return Begun(ref, await self._writer.begin(ref.id, first, timeout=timeout))

    def _count(self, gang: GangKey, attempt: int) -> None:
        self._newest[gang] = max(self.newest_attempt(gang), attempt)

    def _count_seen(self, restart: Restart) -> None:
        """Record the number of an object. An implausible one must not use all numbers up."""
        if restart.gang is not None:
            self._count(restart.gang, min(restart.attempt, _BELIEVABLE_ATTEMPT))

    def _apply(self, change: informer.Change[Restart]) -> None:
        restart = change.value
        before = self._by_id.get(restart.id)
        if change.kind is not RestartChangeKind.GONE:
            self._drop(before)
            self._by_id[restart.id] = restart
            self._by_gang.setdefault(restart.gang, {})[restart.id] = restart
            self._count_seen(restart)
        elif before is not None and before.uid == change.uid:  # else it has a successor of the same name already
            self._drop(before)
        self._changed.set()
        for listener in tuple(self._listeners):
            with contained.within(contained.Part.LISTENER, restart.id):
                listener(RestartChange(change.kind, restart))

    def _drop(self, restart: Restart | None) -> None:
        if restart is None:
            return
        del self._by_id[restart.id]
        of_gang = self._by_gang[restart.gang]
        del of_gang[restart.id]
        if not of_gang:
            del self._by_gang[restart.gang]

    async def _sweep(self) -> None:
        """Remove expired objects; never returns."""
        await self.wait_synced()
        while True:
            self._changed.clear()
            now = self._clock()
            found = history.removal(self._by_id.values(), keeping=self._keeping, is_alive=self._is_alive, now=now)
            expired = {each.uid: each for each in found.now}
            self._not_removed = {uid: at for uid, at in self._not_removed.items() if uid in expired}
            for uid, restart in expired.items():
                if self._not_removed.get(uid, 0.0) <= asyncio.get_running_loop().time():  # any change leads here
                    with contained.within(contained.Part.RESTART, restart.id):
                        await self._remove(restart)
            with contained.within(contained.Part.RESTART, "superseded rounds"):
                self._close_superseded(now)
            self._forget_old_gangs()
            wait = _SWEEP_SECONDS if found.next_at is None else min(found.next_at - now, _SWEEP_SECONDS)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await self._changed.wait()
                    await asyncio.sleep(_SETTLE_SECONDS)  # handles changes that come together at once

    async def _remove(self, restart: Restart) -> None:
        try:
            await writing.remove(self._api, restart)
            log.info("restart.removed", restart=restart.id)
        except errors.KubeError as error:
            self._not_removed[restart.uid] = asyncio.get_running_loop().time() + _SWEEP_SECONDS
            log.warning("restart.remove_failed", restart=restart.id, error=str(error))

    def _close_superseded(self, now: float) -> None:
        """End unfinished rounds that no leader continues, because only finished objects are ever removed."""
        for restart in history.superseded(self._by_id.values()):
            if not self._writer.is_pending(restart.id) and self._writer.known(restart.id) is None:
                log.warning("restart.closed", restart=restart.id, epoch=restart.epoch, reason=_SUPERSEDED["message"])
                before = {name: value for name, value in restart.status.items() if name != "resume"}
                end = {"phase": "Failed", "completionTime": timestamps.rfc3339(now), "failures": [dict(_SUPERSEDED)]}
                self.set_status(restart.ref or restart, {**before, **end})

    def _forget_old_gangs(self) -> None:
        """Forget the numbers of gangs without members and objects, and the rounds of objects that are deleted."""
        kept = {each.gang for each in self._by_id.values()}
        self._newest = {gang: n for gang, n in self._newest.items() if gang in kept or self._is_alive(gang)}
        self._begun = {
            name: ref for name, ref in self._begun.items() if name in self._by_id or self._writer.is_pending(name)
        }


def _presupposed(restart: Restart) -> writing.Written:
    epoch = str(restart.epoch) if restart.is_round else ""
    return writing.Written(restart.namespace, restart.name, restart.uid, restart.generation, epoch)


def _in_order(restarts: Iterable[Restart]) -> list[Restart]:
    return sorted(restarts, key=lambda each: (each.created_at, each.attempt, each.id))
