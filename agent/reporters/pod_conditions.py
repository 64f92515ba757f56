"""Keep pods' conditions in the API equal to the agent's.

Desired state, not a queue: the newest condition per pod and type is kept, so an outage of the API server costs nothing
but time, and memory is bounded. A pod's first change is written at once; those that follow within ``spacing`` are
written together. Each pod has an allowance of writes, because a program can change the health of its device without
end: beyond it the newest state is written when the allowance permits. Writes are serial per pod, and parallel across
pods in turns of their namespaces, because a webhook of one namespace may be slow. A policy that forbids the conditions
of a pod may do so for good: they are tried ever more rarely, and the agent's stop does not wait for them.
"""

import asyncio
import enum
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol, Self

import structlog

from kubemend.agent.model.conditions import Condition
from kubemend.agent.model.workloads import PodRef, PodUid, PodView
from kubemend.agent.reporters import status_conditions
from kubemend.agent.reporters.allowances import Allowances
from kubemend.agent.reporters.status_conditions import StatusConditions
from kubemend.common import aio, contained
from kubemend.common.kube import client, errors, paths

log = structlog.get_logger(__name__)

BURST: Final = 30
"""Writes of one pod that are made at once. A restart takes four."""

REFILL: Final = 2.0
"""Seconds until one pod may have another write, once it has had its burst."""

SPACING: Final = 0.05
"""Seconds after a write of a pod in which its changes wait for each other."""


_FORBIDDEN: Final = 300.0
"""Longest wait in seconds before another try of a write that the API server forbids; 5 s after any other failure."""


class Slots(Protocol):
    """Let a limited number of writes be made at once, fairly among namespaces (``agent.restarts.slots``)."""

    async def acquire(self, namespace: str, *, goes_on: bool) -> None: ...
    def release(self, namespace: str) -> None: ...


class Outcome(enum.Enum):
    """The outcome of an attempt to write, for metrics."""

    WRITTEN = "written"
    FAILED = "failed"  # and will be tried again
    REFUSED = "refused"  # the server will never accept it
    POD_GONE = "pod-gone"
    DROPPED = "dropped"  # more pods than ``max_pods`` had unwritten conditions


@dataclass(eq=False, slots=True)
class _Pod:
    """One pod and its conditions. ``written_at`` is loop time. ``forbidden``: the last write was not allowed."""

    ref: PodRef
    status: StatusConditions
    written_at: float = float("-inf")
    active: bool = False
    forbidden: bool = False

    @classmethod
    def of(cls, ref: PodRef) -> Self:
        return cls(ref=ref, status=StatusConditions(paths.pod(ref.namespace, ref.name), uid=ref.uid))

    @property
    def unwritten(self) -> bool:
        """Return whether the API lacks a condition."""
        return self.status.unwritten


class PodConditionReporter:
    """The reporter. ``set`` stores desired conditions, ``run`` writes them."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        look_up: Callable[[PodUid], PodView | None],
        slots: Slots,
        on_outcome: Callable[[Outcome], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
        spacing: float = SPACING,
        repair_after: float = 10.0,
        burst: int = BURST,
        refill: float = REFILL,
        max_pods: int = 1000,
    ) -> None:
        """Create the reporter.

        ``look_up`` returns the watched view of a pod (conditions of a previous agent are adopted from it); ``clock``
        returns Unix seconds. ``spacing`` and ``repair_after`` are in seconds: for ``repair_after`` seconds after a
        write, another writer's change to the same condition is left alone, so that two agents never fight at full
        speed.
        """
        self._api = api
        self._look_up = look_up
        self._on_outcome = on_outcome
        self._clock = clock
        self._spacing = spacing
        self._repair_after = repair_after
        self._max_pods = max_pods
        self._allowances = Allowances(burst=burst, refill=refill)
        self._slots = slots
        self._pods: dict[PodUid, _Pod] = {}
        self._unwritten: set[PodUid] = set()
        self._queue: asyncio.Queue[_Pod] = asyncio.Queue()
        self._all_written = asyncio.Event()
        self._all_written.set()

    def set(self, pod: PodRef, condition: Condition) -> None:
        """Set a pod's desired condition; the newest of a type counts. Does not block."""
        entry = self._pods.get(pod.uid) or self._adopt(pod)
        desired = entry.status.desired
        if desired.get(condition.type) == condition:
            return
        desired[condition.type] = condition
        self._wake(entry)

    def observe(self, pod: PodView) -> None:
        """Process a pod as the API shows it; repair conditions that another writer has changed."""
        entry = self._pods.get(pod.ref.uid)
        if entry is None:
            return
        entry.status.learn(pod.conditions, version=pod.resource_version)
        if entry.unwritten and not entry.active:
            loop = asyncio.get_running_loop()
            loop.call_at(max(loop.time(), entry.written_at + self._repair_after), self._wake, entry)
        self._count(entry)

    def forget(self, uid: PodUid) -> None:
        """Drop everything about a deleted pod."""
        if (entry := self._pods.pop(uid, None)) is not None:
            self._count(entry)

    def pending(self) -> int:
        """Return how many pods have conditions that are not in the API yet."""
        return len(self._unwritten)

    async def flush(self, *, timeout: float) -> bool:
        """Wait until all is in the API, at most ``timeout`` seconds; return whether it is. Needs ``run`` running.

        What the API server has forbidden is not waited for.
        """
        try:
            async with asyncio.timeout(timeout):
                await self._all_written.wait()
        except TimeoutError:
            return False
        return True

    async def run(self) -> None:
        """Write indefinitely."""
        async with asyncio.TaskGroup() as group:
            while True:
                entry = await self._queue.get()
                group.create_task(self._converge(entry), name=f"conditions {entry.ref}")

    def _adopt(self, pod: PodRef) -> _Pod:
        if len(self._pods) >= self._max_pods:
            self._make_room()
        entry = self._pods[pod.uid] = _Pod.of(pod)
        if (view := self._look_up(pod.uid)) is not None:
            entry.status.learn(view.conditions, version=view.resource_version)
        return entry

    def _make_room(self) -> None:
        """Drop a pod without unwritten conditions (it is read again when needed), else the one that waits longest."""
        oldest = next(iter(self._pods.values()))
        victim = next((entry for entry in self._pods.values() if not entry.unwritten), oldest)
        if victim.unwritten:
            log.warning("conditions.dropped", pod=str(victim.ref), limit=self._max_pods)
            self._on_outcome(Outcome.DROPPED)
        self.forget(victim.ref.uid)

    def _wake(self, entry: _Pod) -> None:
        self._count(entry)
        if entry.unwritten and not entry.active:
            entry.active = True
            self._queue.put_nowait(entry)

    def _count(self, entry: _Pod) -> None:
        """Record whether a pod has unwritten conditions; call it whenever that may have changed."""
        uid = entry.ref.uid
        if (kept := self._pods.get(uid)) is not None and kept.unwritten:
            self._unwritten.add(uid)
        else:
            self._unwritten.discard(uid)
        if all(self._pods[each].forbidden for each in self._unwritten):
            self._all_written.set()
        else:
            self._all_written.clear()

    async def _converge(self, entry: _Pod) -> None:
        """Write until the API has all conditions of one pod, or the pod is deleted."""
        backoff, forbidden = aio.Backoff(first=0.1, limit=5.0), aio.Backoff(first=0.1, limit=_FORBIDDEN)
        clock = asyncio.get_running_loop().time
        while entry.unwritten and self._pods.get(entry.ref.uid) is entry:
            if (wait := self._allowances.next_at(entry.ref.uid) - clock()) > 0:
                await asyncio.sleep(wait)
                continue
            outcome = await self._attempt(entry)
            self._on_outcome(outcome)
            self._count(entry)
            if outcome is Outcome.FAILED:
                await (forbidden if entry.forbidden else backoff).wait()
                continue
            if outcome is Outcome.POD_GONE:
                self.forget(entry.ref.uid)
            backoff.reset()
            forbidden.reset()
            await asyncio.sleep(self._spacing)  # changes in the meantime are written together
        entry.active = False
        self._count(entry)

    async def _attempt(self, entry: _Pod) -> Outcome:
        """Write once. After an internal error the conditions count as written, until the pod changes."""
        with contained.within(contained.Part.CONDITION, entry.ref):
            return await self._write(entry)
        entry.status.known = {**(entry.status.known or {}), **entry.status.desired}
        return Outcome.REFUSED

    async def _write(self, entry: _Pod) -> Outcome:
        namespace = entry.ref.namespace
        await self._slots.acquire(namespace, goes_on=False)
        entry.forbidden = False
        try:
            wrote = await status_conditions.write(self._api, entry.status, now=self._clock())
        except errors.NotFoundError:
            return Outcome.POD_GONE
        except errors.ConflictError:
            return Outcome.FAILED
        except errors.InvalidError as error:
            log.warning("conditions.refused", pod=str(entry.ref), error=str(error))
            return Outcome.REFUSED
        except errors.KubeError as error:
            entry.forbidden = isinstance(error, errors.ForbiddenError)
            log.warning("conditions.write_failed", pod=str(entry.ref), error=str(error))
            return Outcome.FAILED
        finally:
            self._slots.release(namespace)
        if wrote:
            entry.written_at = asyncio.get_running_loop().time()
            self._allowances.spend(entry.ref.uid, now=entry.written_at)
            log.debug("conditions.written", pod=str(entry.ref), types=sorted(entry.status.desired))
        return Outcome.WRITTEN
