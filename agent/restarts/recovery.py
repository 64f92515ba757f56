"""Resume the restarts that a previous agent left open, each pod's by itself. Only that pod's new restarts wait for it.

A program may take all of its grace period to end, up to an hour, and one that is stuck in the kernel never ends.
"""

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

import structlog

from kubemend.agent.clients.journal.store import JournalError, Store
from kubemend.agent.model import outcomes
from kubemend.agent.model.workloads import ContainerSummary, PodUid
from kubemend.agent.restart import intents, reservations, steps, swap
from kubemend.agent.restarts import config_shares, planning, verifier
from kubemend.agent.restarts.config_shares import ConfigShare
from kubemend.agent.restarts.dependencies import Dependencies
from kubemend.agent.restarts.plan_execution import execution_of
from kubemend.agent.restarts.replay import TIMEOUTS, TRY_LATER, Replay, Resumed
from kubemend.agent.restarts.scheduler import RestartScheduler
from kubemend.common import aio, contained
from kubemend.common.contained import Part

log = structlog.get_logger(__name__)

_API_TIMEOUT = 5.0
"""Seconds to wait for the API server's list of this node's pods before an orphan is taken for one of them."""


@dataclass(frozen=True, slots=True)
class Background:
    """The services of replays in the background: tasks, and the scheduler, whose restarts of the same pods wait.

    ``patience``: seconds for replays without a grace period before other restarts begin. Most end within that time:
    then what they have restarted is seen as such, and the events of its old containers are no new faults.
    """

    tasks: asyncio.TaskGroup
    restarts: RestartScheduler
    patience: float = 10.0


_Share = Callable[[intents.AnyIntent], ConfigShare]


class Recovery:
    """Replay the journal. Run it before any new restart."""

    def __init__(
        self,
        *,
        dependencies: Dependencies,
        store: Store,
        now: Callable[[], float],
        timeouts: verifier.Timeouts = TIMEOUTS,
        spared: Collection[PodUid] = (),
        background: Background | None = None,
    ) -> None:
        """``spared``: pods that a round holds. The round finishes their restarts.

        ``background`` None: all intents are replayed in ``run``, and what stays unfinished is left to the next agent.
        """
        self._dependencies = dependencies
        self._store = store
        self._now = now
        self._spared = frozenset(spared)
        self._background = background
        self._in_background: set[PodUid] = set()
        self._replay = Replay(dependencies=dependencies, store=store, now=now, timeouts=timeouts)
        self._handed_over: set[str] = set()
        self._replayed = asyncio.Event()
        self._configs = config_shares.room()

    async def run(self) -> int:
        """Finish or undo every open intent; return how many there were, with those of the background.

        A successor in CREATED next to a running container is dangerous, because kubelet would start a third. Such
        intents come first. Kubelet may still act, up to 1 s later, on what it saw while no agent ran. As after any
        restart, the replay therefore waits until kubelet agrees, and resolves a duplicate that kubelet starts. Raises
        CriError or JournalError: try again, and start nothing new before that. Pods whose intents are still replayed in
        the background are locked when it returns.
        """
        for entry in await self._store.unreadable():
            await self._replay.quarantine_unreadable(entry)
        opened = await self._store.unfinished()
        not_mine = self._spared | self._in_background
        unfinished = [
            each for each in opened if each.target.pod.uid not in not_mine and each.id not in self._handed_over
        ]
        views = await self._dependencies.runtime.list_containers()
        owned = frozenset(intent.id for intent in opened) | await self._store.quarantined()
        await self._take_over_names(views, owned=owned)
        lost = await self._mine(swap.orphans(views, owned=owned, now=self._now()))
        for orphan in lost:
            with contained.within(Part.REPLAY, orphan.target, passing=TRY_LATER):
                await self._undo_orphan(orphan)
        if self._background is not None:
            await self._replay_by_pod(unfinished, background=self._background)
        else:
            await self._replay_all(unfinished, share=lambda _: ConfigShare(self._configs, "", waits=True))
        self._replayed.set()
        return len(unfinished) + len(lost)

    async def _take_over_names(self, views: Iterable[ContainerSummary], *, owned: frozenset[str]) -> None:
        """Adopt the names that are reserved for restarts in the journal; release those that no restart needs.

        A round's members also make new ones in the meantime. Simulated nodes share a runtime.
        """
        reserved = [view for view in views if reservations.reserves(view)]
        self._dependencies.actuators.swap.adopt_names(view for view in reserved if view.restart_id in owned)
        left = [
            view for view in reserved if view.restart_id not in owned and reservations.pod_uid(view) not in self._spared
        ]
        if left and self._background is not None:
            self._background.tasks.create_task(self._release_names(left), name="release names")

    async def _release_names(self, left: Iterable[ContainerSummary]) -> None:
        pods = self._dependencies.pods
        await pods.until_synced()
        mine = [view for view in left if reservations.pod_uid(view) in pods.pods()]
        with contained.within(Part.REPLAY, "reserved names"):
            await self._dependencies.actuators.swap.release_names(mine)

    async def _left_open(self, pod: PodUid) -> list[intents.AnyIntent]:
        """Return the intents of a pod that this agent must still replay: not those of which it cannot any more."""
        done = self._replay.given_up | self._handed_over
        return [each for each in await self._store.unfinished() if each.target.pod.uid == pod and each.id not in done]

    async def _replay_by_pod(self, unfinished: Sequence[intents.AnyIntent], *, background: Background) -> None:
        """Start to replay the intents of each pod, and wait for the replays that may end soon."""
        soon = []
        for pod, mine in _by_pod(sorted(unfinished, key=lambda item: not _is_dangerous(item))).items():
            replay = await self._replay_in_background(pod, background=background)
            if all(intent.grace_seconds <= 0 for intent in mine):
                soon.append(replay)
        if soon:
            await asyncio.wait(soon, timeout=background.patience)

    async def _replay_all(self, unfinished: Sequence[intents.AnyIntent], *, share: _Share) -> None:
        dangerous_first = sorted(unfinished, key=lambda item: not _is_dangerous(item))
        # A device that is slow to be freed, a proof, and a launcher must not delay the others.
        left: list[tuple[intents.AnyIntent, int]] = []
        with contextlib.ExitStack() as shares:
            replays = [(each, shares.enter_context(share(each))) for each in dangerous_first]
            resumed = await asyncio.gather(
                *(self._replay.resume(each, share=held, left=left) for each, held in replays), return_exceptions=True
            )
            done = [each for each in resumed if isinstance(each, Resumed)]
            await aio.side_by_side(*(self._conclude(*parts) for parts in _by_restart(done)))
            del done
        failures = [each for each in resumed if isinstance(each, BaseException)]
        del resumed
        for intent, needed in left:  # their configs together would fill this process's memory
            await self._replay_alone(intent, needed, share=share(intent))
        for failure in failures:
            raise failure

    async def _replay_alone(self, intent: intents.AnyIntent, needed: int, *, share: ConfigShare) -> None:
        """Replay an intent once there is room for its configs: ``needed`` bytes, and those that it asks for then."""
        left = [(intent, needed)]
        while left:
            _, needed = left.pop()
            await share.wait(needed)
            with share:
                if (resumed := await self._replay.resume(intent, share=share, left=left)) is not None:
                    await self._conclude(resumed)

    async def _replay_in_background(self, pod: PodUid, *, background: Background) -> asyncio.Task[None]:
        """Start to replay the intents of a pod; return the task once the pod is locked."""
        self._in_background.add(pod)
        locked = asyncio.Event()
        replay = self._replay_pod(pod, locked=locked, restarts=background.restarts)
        task = background.tasks.create_task(replay, name=f"replay {pod}")
        await locked.wait()
        return task

    async def _replay_pod(self, pod: PodUid, *, locked: asyncio.Event, restarts: RestartScheduler) -> None:
        async with restarts.turn(pod):
            locked.set()
            with contained.within(Part.REPLAY, pod):
                await self._replay_until_done(pod, restarts=restarts)

    async def _replay_until_done(self, pod: PodUid, *, restarts: RestartScheduler) -> None:
        backoff = aio.Backoff(first=0.1, limit=5.0)
        while True:
            try:
                mine = await self._left_open(pod)
                await self._replay_all(mine, share=lambda each: restarts.config_share(each.target.pod, waits=True))
                if not await self._left_open(pod):
                    return
                log.warning("restart.replay_waits", pod=pod, error="the runtime has not finished it")
            except TRY_LATER as error:
                log.warning("restart.replay_waits", pod=pod, error=str(error))
            await backoff.wait()

    async def _undo_orphan(self, orphan: intents.Intent) -> None:
        outcome = await execution_of(self._dependencies, planning.bare(orphan)).carry_out(
            resolution=steps.Resolution.UNDO
        )
        log.warning("restart.orphan", restart=orphan.id, container=str(orphan.target), result=outcome.result.value)

    async def _mine(self, lost: Sequence[intents.Intent]) -> Sequence[intents.Intent]:
        """Drop orphans that belong to no pod of this node, if the API server lists the pods in time.

        Simulated nodes share a runtime, so an apparent orphan may be another node's restart in progress. Kubelet ends a
        pod that the API server no longer has.
        Nor are successors orphans that a round's member has made since the journal was read.
        """
        lost = [orphan for orphan in lost if orphan.target.pod.uid not in self._spared]
        if lost and not self._dependencies.pods.synced:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_API_TIMEOUT):
                    await self._dependencies.pods.until_synced()
        if not self._dependencies.pods.synced:
            return lost
        return [orphan for orphan in lost if orphan.target.pod.uid in self._dependencies.pods.pods()]

    async def _conclude(self, *parts: Resumed) -> None:
        """Conclude a restart of one container or of several, or hand it over: then no container was changed."""
        if self._background is not None and all(each.steps_down for each in parts):
            for each in parts:
                await each.execution.give_back()
            self._hand_over(parts, background=self._background)
            return
        await aio.side_by_side(*(self._replay.conclude(each) for each in parts))
        if self._background is not None and all(each.outcome.result.changed_nothing for each in parts):
            await self._background.restarts.uncount([each.intent for each in parts])

    def _hand_over(self, parts: Sequence[Resumed], *, background: Background) -> None:
        """Have another strategy take over when the journal is replayed. Until that has begun the intents stay open."""
        self._handed_over.update(each.intent.id for each in parts)
        taking_over = self._taken_over(parts, restarts=background.restarts)
        background.tasks.create_task(taking_over, name=f"take over {parts[0].intent.id}")

    async def _taken_over(self, parts: Sequence[Resumed], *, restarts: RestartScheduler) -> None:
        first = parts[0].intent
        await self._replayed.wait()
        with contained.within(Part.REPLAY, first.target):
            plan = planning.together(each.execution.plan for each in parts)
            outcome = outcomes.together(each.outcome for each in parts)
            backoff = aio.Backoff(first=0.1, limit=5.0)
            while True:
                try:
                    is_taken_over = await restarts.take_over(plan, outcome, reason=first.reason)
                    break
                except JournalError as error:
                    log.warning("restart.replay_waits", pod=first.target.pod.uid, error=str(error))
                    await backoff.wait()
            if not is_taken_over:
                for each in parts:
                    self._replay.report(each)
            await restarts.close(plan, outcome)


def _by_pod(unfinished: Iterable[intents.AnyIntent]) -> Mapping[PodUid, Sequence[intents.AnyIntent]]:
    found: dict[PodUid, list[intents.AnyIntent]] = {}
    for intent in unfinished:
        found.setdefault(intent.target.pod.uid, []).append(intent)
    return found


def _by_restart(done: Sequence[Resumed]) -> Iterable[Sequence[Resumed]]:
    """Return the intents of each restart together: a swap of several containers of a pod has one for each."""
    found: dict[object, list[Resumed]] = {}
    for each in done:
        intent = each.intent
        is_swap = isinstance(intent, intents.Intent)
        key = (intent.target.pod.uid, intent.created_at, intent.reason) if is_swap else intent.id
        found.setdefault(key, []).append(each)
    return found.values()


def _is_dangerous(intent: intents.AnyIntent) -> bool:
    return isinstance(intent, intents.Intent) and intent.order.may_wait
