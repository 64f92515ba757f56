"""Rounds of a single pod: Restart objects that name a pod outside any gang.

The controller's Informers hold only pods of gangs. So the pod of such a request is watched for as long as its round
takes. In that time it is the only member of a gang of kind Pod.
"""

import asyncio
import re
from collections import defaultdict
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
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
AT_A_TIME_IN_A_NAMESPACE: Final = 8
"""Pods watched at a time; requests for others wait. A round may last an hour, if its pod's options ask for that."""
_RESUMED_WITHIN: Final = 10.0
"""Seconds for which no agent may connect, so that the pods of rounds under way are found first."""
_LONGEST_NAME: Final = 253
_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
"""DNS-1123 subdomain (``IsDNS1123Subdomain`` of apimachinery)."""


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
        self._waiting: dict[GangKey, list[Restart]] = {}
        self._new: asyncio.Queue[GangKey] = asyncio.Queue()
        self._to_resume: set[str] = set()
        self._resumed = asyncio.Event()
        self._slots = asyncio.Semaphore(_AT_A_TIME)
        self._shares: dict[str, asyncio.Semaphore] = {}
        self._users: defaultdict[str, int] = defaultdict(int)

    def take(self, restart: Restart) -> None:
        """Queue a request or a previous leader's round. Those for one pod are handled one after another."""
        key = restart.gang
        assert key is not None
        if restart.is_round:
            self._to_resume.add(restart.id)
        waiting = self._waiting.get(key)
        if waiting is None:
            self._waiting[key] = [restart]
            self._new.put_nowait(key)
        elif all(each.id != restart.id for each in waiting):
            waiting.append(restart)

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
                key = await self._new.get()
                tasks.create_task(self._handle_all(key), name=f"requests for {key}")

    async def _handle_all(self, key: GangKey) -> None:
        waiting = self._waiting[key]
        while waiting:
            with contained.within(Part.GANG, key) as work:
                await self._follow(key, waiting)
            if work.error is not None:
                self._give_up(waiting, why=contained.why(work.error))
        del self._waiting[key]

    def _give_up(self, waiting: list[Restart], *, why: str) -> None:
        while waiting:
            restart = waiting.pop()
            self._is_resumed(restart)
            with contained.within(Part.GANG, restart.id):
                failed = round_report.failed(
                    restart.status, reason=round_report.INTERNAL, why=why, now=self._dependencies.now()
                )
                self._dependencies.restarts.set_status(restart.id, failed)

    async def _follow(self, key: GangKey, waiting: list[Restart]) -> None:
        """Handle all requests queued for one pod, including later ones, while the pod is watched."""
        if not _is_name(key.name):
            self._refuse_all(waiting, Reason.MEMBER_GONE, f"{key.name!r} is not the name of a pod")
            return
        async with self._share(key, urgent=waiting[0].is_round), self._dependencies.members.following(key) as gang:
            while waiting:
                restart = waiting[0]
                if restart.is_round:
                    self._resume(restart)
                    self._is_resumed(restart)
                elif self._is_wanted(restart):
                    self._request(restart, key=key, gang=gang())
                del waiting[0]
                await self._worker(key).wait_idle()

    def _request(self, restart: Restart, *, key: GangKey, gang: GangKey | None) -> None:
        if self._dependencies.members.of_gang(key):
            self._worker(key).request(restart)
        elif gang is not None:
            how = f"create a Restart with spec.gang {{kind: {gang.kind}, name: {gang.name}}}"
            why = f"pod {key.namespace}/{key.name} is a member of gang {gang}, which restarts as one; {how}"
            self._refuse(restart, Reason.IN_A_GANG, why)
        else:
            self._refuse(restart, Reason.MEMBER_GONE, f"there is no pod {key.namespace}/{key.name}")

    def _refuse_all(self, waiting: list[Restart], reason: Reason, why: str) -> None:
        while waiting:
            restart = waiting.pop(0)
            self._is_resumed(restart)
            self._refuse(restart, reason, why)

    def _refuse(self, restart: Restart, reason: Reason, why: str) -> None:
        log.info("request.refused", restart=restart.id, detail=why)
        refused = round_report.refused(Decision(Kind.OBSERVE, reason, why), now=self._dependencies.now())
        self._dependencies.restarts.set_status(restart.id, refused)

    def _is_wanted(self, restart: Restart) -> bool:
        """Return whether a request was neither deleted nor answered while it waited."""
        found = self._dependencies.restarts.restarts().get(restart.id)
        return found is not None and found.uid == restart.uid and found.is_request

    def _is_resumed(self, restart: Restart) -> None:
        self._to_resume.discard(restart.id)
        if not self._to_resume:
            self._resumed.set()

    @asynccontextmanager
    async def _share(self, key: GangKey, *, urgent: bool) -> AsyncIterator[None]:
        """Wait for one of the namespace's slots, then for one of all.

        A round that is already under way waits for neither.
        """
        if urgent:
            yield
            return
        namespace = key.namespace
        share = self._shares.setdefault(namespace, asyncio.Semaphore(AT_A_TIME_IN_A_NAMESPACE))
        self._users[namespace] += 1
        try:
            async with share, self._slots:
                yield
        finally:
            self._users[namespace] -= 1
            if not self._users[namespace]:
                del self._users[namespace], self._shares[namespace]


def _is_name(name: str) -> bool:
    return len(name) <= _LONGEST_NAME and _NAME.fullmatch(name) is not None
