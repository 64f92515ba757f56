"""Has pods replaced: each is marked, so that its Job does not count it as a failure, and then deleted.

By name and UID: what has come in its place is never touched. Whoever owns the pod makes the new one.
"""

import asyncio
import enum
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import structlog

from common import aio, conditions, contained
from common.kube import by_uid, client, errors, paths, timestamps
from controller.model.members import PodRef, PodUid
from controller.model.rounds import Recreate

log = structlog.get_logger(__name__)


class Outcome(enum.Enum):
    """What became of a pod.

    ``DELETED``: it ends now; that it is gone, the pod watch tells. ``GONE``: there was no such pod any more.
    ``REFUSED``: the API server will not have it deleted, or marked.
    """

    DELETED = "deleted"
    GONE = "gone"
    REFUSED = "refused"


@dataclass(slots=True)
class _Wish:
    """What was asked for, and when it was asked for last (loop time)."""

    wanted: Recreate
    asked_at: float


class Recreator:
    """``recreate`` says what should go, ``run`` brings it about.

    A round asks again and again for as long as it wants a pod gone. What it has not asked for lately is not done any
    more: the round is over, and its members may run.
    """

    def __init__(
        self,
        *,
        api: client.KubeClient,
        on_outcome: Callable[[PodRef, Outcome, str], None],
        clock: Callable[[], float] = time.time,
        backoff: Callable[[], aio.Backoff] = lambda: aio.Backoff(first=0.1, limit=5.0),
        parallel: int = 16,
        stale: float = 10.0,
        keep: float = 60.0,
    ) -> None:
        """Create it; ``on_outcome`` gets the pod, what became of it, and why. ``clock`` gives Unix seconds.

        ``stale`` is after how many seconds a wish must have been said again to count, ``keep`` for how many one that
        was carried out, or refused, is not carried out again.
        """
        self._api = api
        self._on_outcome = on_outcome
        self._clock = clock
        self._backoff = backoff
        self._slots = asyncio.Semaphore(parallel)
        self._stale = stale
        self._keep = keep
        self._wanted: dict[PodUid, _Wish] = {}
        self._active: set[PodUid] = set()
        self._queue: asyncio.Queue[PodUid] = asyncio.Queue()

    def recreate(self, wanted: Recreate) -> None:
        """Have a pod replaced. Does not block. Said again it changes nothing, but for ``force``, which hastens it."""
        uid = wanted.pod.uid
        now = asyncio.get_running_loop().time()
        before = self._wanted.get(uid)
        if before is not None and (before.wanted.force or not wanted.force):
            before.asked_at = now
            return
        self._wanted[uid] = _Wish(wanted, now)
        if uid not in self._active:
            self._active.add(uid)
            self._queue.put_nowait(uid)

    def is_wanted(self, uid: PodUid) -> bool:
        """Whether a pod is to go, or was to until lately."""
        return uid in self._wanted

    def forget(self, uid: PodUid) -> None:
        """Drop what is wanted of a pod: it is gone, or its round is off. What has been deleted stays so."""
        self._wanted.pop(uid, None)

    async def run(self) -> None:
        """Carry it out for ever. What is left when it is cancelled is dropped: another leader has it then."""
        try:
            async with asyncio.TaskGroup() as group:
                while True:
                    uid = await self._queue.get()
                    group.create_task(self._converge(uid), name=f"recreation of {uid}")
        finally:
            self._wanted.clear()
            self._active.clear()
            self._queue = asyncio.Queue()

    async def _converge(self, uid: PodUid) -> None:
        with contained.within(contained.Part.RECREATION, uid) as work:
            await self._carry_out(uid)
        if work.failed:
            self.forget(uid)  # its round asks again
        self._active.discard(uid)

    async def _carry_out(self, uid: PodUid) -> None:
        backoff = self._backoff()
        loop = asyncio.get_running_loop()
        done: _Wish | None = None
        while (wish := self._wanted.get(uid)) is not None and wish is not done:
            wanted = wish.wanted
            if loop.time() - wish.asked_at > self._stale:
                log.info("recreation.dropped", pod=str(wanted.pod), why="nobody asks for it any more")
                self.forget(uid)
                break
            try:
                async with self._slots:
                    outcome, why = await self._replace(wanted)
            except (errors.ApiUnavailableError, errors.ConflictError) as error:
                log.warning("recreation.delayed", pod=str(wanted.pod), error=str(error))
                await backoff.wait()
                continue
            except errors.KubeError as error:
                outcome, why = Outcome.REFUSED, str(error)
            done = wish
            loop.call_later(self._keep, self._expire, uid, wish)
            log.info("recreation", pod=str(wanted.pod), outcome=outcome.value, reason=wanted.reason, why=why)
            self._on_outcome(wanted.pod, outcome, why)

    def _expire(self, uid: PodUid, wish: _Wish) -> None:
        """Forget what was carried out: should the pod still be there, and be asked for, it is tried again."""
        if self._wanted.get(uid) is wish:
            self.forget(uid)

    async def _replace(self, wanted: Recreate) -> tuple[Outcome, str]:
        pod, path = wanted.pod, paths.pod(wanted.pod.namespace, wanted.pod.name)
        try:
            await self._api.patch_status(path, _marks(wanted, now=self._clock()))
            await self._api.delete(path, options=_options(wanted))
        except errors.NotFoundError:
            return Outcome.GONE, "the API server does not know it"
        except (errors.ConflictError, errors.InvalidError):  # a wrong UID answers 409 to a deletion, 422 to a patch
            if await by_uid.get(self._api, path, uid=pod.uid) is None:
                return Outcome.GONE, "it is gone, or there is another pod of its name"
            raise
        return Outcome.DELETED, wanted.message


def _marks(wanted: Recreate, *, now: float) -> dict[str, Any]:
    """Return the patch that says why the pod goes; its UID is a precondition.

    Of a pod that is forced to go nobody else would say that it has failed, and a Job with ``podReplacementPolicy:
    Failed`` would never replace it. Source: the pod garbage collector (``MarkPodAsFailedAndDeletePod``), which says
    the same, some time later.
    """
    types = [conditions.DISRUPTION_TARGET, *([conditions.DEVICE_FAILURE] if wanted.device_failure else [])]
    told = {
        "status": "True",
        "reason": wanted.reason,
        "message": wanted.message,
        "lastTransitionTime": timestamps.rfc3339(now),
    }
    return {
        "metadata": {"uid": wanted.pod.uid},
        "status": {
            **({"phase": "Failed"} if wanted.force else {}),
            "conditions": [{"type": each, **told} for each in types],
        },
    }


def _options(wanted: Recreate) -> dict[str, Any]:
    """Return the DeleteOptions. One second of grace: frozen processes cannot answer SIGTERM however long they get.

    Without any, the API server forgets the pod before kubelet has ended it; so only where nothing of it runs.
    """
    return {"preconditions": {"uid": wanted.pod.uid}, "gracePeriodSeconds": 0 if wanted.force else 1}
