"""Rounds of a single pod: Restart objects that name a pod outside any gang.

The controller's Informers hold only pods of gangs. So the pod of such a request is watched for as long as its round
takes. In that time it is the only member of a gang of kind Pod.

Users can create Restarts for any number of pods. So only pods that are watched have a task; the others wait in the
queue of their namespace, for half a KiB each.
"""

import asyncio
import re
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Final

import structlog

from kubemend.common import contained
from kubemend.common.contained import Part
from kubemend.common.gangs import GangKey
from kubemend.controller.coordinator import round_report
from kubemend.controller.coordinator.dependencies import Dependencies
from kubemend.controller.coordinator.gang_worker import GangWorker
from kubemend.controller.decisions.facts import Decision, Kind, Reason
from kubemend.controller.restarts.objects import Restart

log = structlog.get_logger(__name__)

_AT_A_TIME: Final = 512
"""Pods watched at a time, but for those of rounds that a previous leader has begun."""
AT_A_TIME_IN_A_NAMESPACE: Final = 8
"""Pods watched at a time; requests for others wait. A round may last an hour, if its pod's options ask for that."""
_RESUMED_WITHIN: Final = 10.0
"""Seconds for which no agent may connect, so that the pods of rounds under way are found first."""
_LONGEST_NAME: Final = 253
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""DNS-1123 subdomain (``IsDNS1123Subdomain`` of apimachinery)."""

_Waiting = dict[str, Restart]
"""Requests and rounds of one pod, by id, in the order in which they are handled."""


class SinglePods:
    """The requests for single pods, and their rounds under way. ``run`` does the work."""

    def __init__(
        self,
        *,
        dependencies: Dependencies,
        worker: Callable[[GangKey], GangWorker],
        resume: Callable[[Restart], None],
    ) -> None:
        """``worker`` returns the worker of a gang; ``resume`` resumes a previous leader's round, or fails it."""
        self._dependencies = dependencies
        self._worker = worker
        self._resume = resume
        self._waiting: dict[GangKey, _Waiting] = {}
        self._queued: dict[str, OrderedDict[GangKey, None]] = {}  # pods that are not watched yet, by namespace
        self._watched: Counter[str] = Counter()  # pods, by namespace
        self._wake = asyncio.Event()
        self._to_resume: set[str] = set()
        self._resumed = asyncio.Event()

    def submit(self, restart: Restart) -> None:
        """Queue a request or a previous leader's round. Those for one pod are handled one after another."""
        key = restart.gang
        assert key is not None
        if restart.is_round:
            self._to_resume.add(restart.id)
        if key not in self._waiting:
            self._waiting[key] = {}
            queued = self._queued.setdefault(key.namespace, OrderedDict())
            queued[key] = None
            if restart.is_round:
                queued.move_to_end(key, last=False)
            self._wake.set()
        self._waiting[key].setdefault(restart.id, restart)

    def withdraw(self, restart: Restart) -> None:
        """Drop a deleted request or round that waits: its queue must not grow by objects that no longer exist."""
        key = restart.gang
        waiting = self._waiting.get(key) if key is not None else None
        if key is None or waiting is None or restart.id not in waiting or waiting[restart.id].uid != restart.uid:
            return
        del waiting[restart.id]
        self._is_resumed(restart)
        if not waiting and key in self._queued.get(key.namespace, ()):
            del self._waiting[key]
            self._dequeue(key)

    async def wait_resumed(self) -> None:
        """Wait until the pods of all rounds taken so far are being watched, or the timeout has passed."""
        if not self._to_resume:
            return
        self._resumed.clear()
        try:
            async with asyncio.timeout(_RESUMED_WITHIN):
                await self._resumed.wait()
        except TimeoutError:
            log.warning("round.pods_unknown", rounds=sorted(self._to_resume), seconds=_RESUMED_WITHIN)

    async def run(self) -> None:
        """Handle the requests; never returns."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._wake.clear()
                while (key := self._next()) is not None:
                    self._dequeue(key)
                    self._watched[key.namespace] += 1
                    tasks.create_task(self._handle_all(key), name=f"requests for {key}")
                await self._wake.wait()

    def _next(self) -> GangKey | None:
        """Return a pod to watch now, the first of its namespace; None if there is none.

        A round that is already under way waits only for its namespace's share, which is large enough for all that a
        previous leader began: more were forged.
        """
        is_full = self._watched.total() >= _AT_A_TIME
        for namespace, keys in self._queued.items():
            key = next(iter(keys))
            has_share = self._watched[namespace] < AT_A_TIME_IN_A_NAMESPACE
            if has_share and (not is_full or _first(self._waiting[key]).is_round):
                return key
        return None

    def _dequeue(self, key: GangKey) -> None:
        """Remove a pod from its namespace's queue, which moves behind the others."""
        keys = self._queued.pop(key.namespace)
        del keys[key]
        if keys:
            self._queued[key.namespace] = keys

    async def _handle_all(self, key: GangKey) -> None:
        waiting = self._waiting[key]
        try:
            while waiting:
                with contained.within(Part.GANG, key) as work:
                    await self._follow(key, waiting)
                if work.error is not None:
                    self._give_up(waiting, reason=contained.describe(work.error))
        finally:
            del self._waiting[key]
            self._watched[key.namespace] -= 1
            if not self._watched[key.namespace]:
                del self._watched[key.namespace]
            self._wake.set()

    def _give_up(self, waiting: _Waiting, *, reason: str) -> None:
        while waiting:
            _, restart = waiting.popitem()
            self._is_resumed(restart)
            with contained.within(Part.GANG, restart.id):
                failed = round_report.failed(
                    restart.status, reason=round_report.INTERNAL, message=reason, now=self._dependencies.now()
                )
                self._dependencies.restarts.set_status(restart.ref or restart, failed)

    async def _follow(self, key: GangKey, waiting: _Waiting) -> None:
        """Handle all requests queued for one pod, including later ones, while the pod is watched."""
        if not _is_name(key.name):
            self._refuse_all(waiting, Reason.MEMBER_GONE, f"{key.name!r} is not the name of a pod")
            return
        async with self._dependencies.members.following(key) as gang:
            while waiting:
                restart = _first(waiting)
                if restart.is_round:
                    self._resume(restart)
                    self._is_resumed(restart)
                elif self._is_wanted(restart):
                    self._request(restart, key=key, gang=gang())
                del waiting[restart.id]
                await self._worker(key).wait_idle()

    def _request(self, restart: Restart, *, key: GangKey, gang: GangKey | None) -> None:
        if self._dependencies.members.of_gang(key):
            self._worker(key).request(restart)
        elif gang is not None:
            how = f"create a Restart with spec.gang {{kind: {gang.kind}, name: {gang.name}}}"
            reason = f"pod {key.namespace}/{key.name} is a member of gang {gang}, which restarts as one; {how}"
            self._refuse(restart, Reason.IN_A_GANG, reason)
        else:
            self._refuse(restart, Reason.MEMBER_GONE, f"there is no pod {key.namespace}/{key.name}")

    def _refuse_all(self, waiting: _Waiting, reason: Reason, message: str) -> None:
        while waiting:
            restart = waiting.pop(next(iter(waiting)))
            self._is_resumed(restart)
            self._refuse(restart, reason, message)

    def _refuse(self, restart: Restart, reason: Reason, message: str) -> None:
        log.info("request.refused", restart=restart.id, detail=message)
        refused = round_report.refused(Decision(Kind.OBSERVE, reason, message), now=self._dependencies.now())
        self._dependencies.restarts.set_status(restart, refused)

    def _is_wanted(self, restart: Restart) -> bool:
        """Return whether a request was neither deleted nor answered while it waited."""
        found = self._dependencies.restarts.restarts().get(restart.id)
        return found is not None and found.uid == restart.uid and found.is_request

    def _is_resumed(self, restart: Restart) -> None:
        self._to_resume.discard(restart.id)
        if not self._to_resume:
            self._resumed.set()


def _first(waiting: _Waiting) -> Restart:
    return next(iter(waiting.values()))


def _is_name(name: str) -> bool:
    return len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) is not None
