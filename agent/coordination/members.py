"""Follows the members on this node: how their containers stand, and which of them have failed by themselves."""

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import structlog

from agent.coordination import exits, membership, ports
from agent.coordination.membership import Change, Known, Member
from agent.cri.errors import CriError
from agent.cri.events import ContainerEvent, EventKind
from agent.model.workloads import ContainerId, ContainerState, ContainerView, PodUid, PodView
from agent.sources.pods import PodChange, PodChangeKind
from common import contained
from common.contained import Part

log = structlog.get_logger(__name__)

_NANOSECOND = 1e-9
_ALIVE = (ContainerState.RUNNING, ContainerState.CREATED)


@dataclass(frozen=True, slots=True)
class Failure:
    """A main container of a member has ended by itself, and not with 0. ``at`` is Unix time."""

    pod: PodView
    container: ContainerView
    exit_code: int
    reason: str
    at: float


@dataclass(frozen=True, slots=True)
class Ears:
    """Who is told: ``changed`` that a pod may look different, ``failed`` of failures, ``gone`` of pods that are."""

    changed: Callable[[PodUid], None]
    failed: Callable[[Failure], None]
    gone: Callable[[PodUid], None]


class Members:
    """The members. ``run`` does the work; the others can be asked once ``until_known`` has returned."""

    def __init__(
        self,
        *,
        pods: ports.Pods,
        containers: ports.Containers,
        runtime: ports.Runtime,
        rounds: ports.Rounds,
        ears: Ears,
        opted_in_namespaces: frozenset[str] = frozenset(),
    ) -> None:
        self._pods = pods
        self._containers = containers
        self._runtime = runtime
        self._rounds = rounds
        self._ears = ears
        self._namespaces = opted_in_namespaces
        self._exit_codes: dict[ContainerId, int] = {}
        self._leaving: dict[PodUid, PodView] = {}
        self._appeared: asyncio.Queue[PodView] = asyncio.Queue()
        self._known = asyncio.Event()

    async def until_known(self) -> None:
        """Wait until pods and containers have been listed, and it is known how those ended that have."""
        await self._known.wait()

    def all(self) -> tuple[Member, ...]:
        """Return every member."""
        uids = [*self._pods.pods(), *self._leaving]
        found = []
        for uid in uids:
            with contained.within(Part.MEMBER, uid):
                if (member := self.member(uid)) is not None:
                    found.append(member)
        return tuple(found)

    def member(self, uid: PodUid) -> Member | None:
        """Return a pod as a member; None when it is none, or is gone."""
        pod = self._pod(uid)
        if pod is None or membership.gang_of(pod) is None:
            return None
        known = Known(exit_codes=self._exit_codes, held=self._rounds.held())
        return membership.member(pod, self._of(uid), known)

    def change(self, uid: PodUid, *, told: Member | None) -> Change | None:
        """Return what is new of a pod for somebody who was ``told`` that."""
        return membership.change(told, self.member(uid))

    async def run(self) -> None:
        """Follow them for ever."""
        unsubscribe = self._pods.subscribe(self._on_pod)
        try:
            async with self._containers.subscribe() as steps, asyncio.TaskGroup() as tasks:
                await self._pods.until_synced()
                await self._containers.until_listed()
                for pod in [*self._pods.pods().values()]:
                    await self._look_at(pod)
                self._known.set()
                tasks.create_task(self._newcomers(), name="gang-newcomers")
                while True:
                    step = await steps.get()
                    with contained.within(Part.MEMBER, step.container.ref):
                        self._take(step, tasks)
        finally:
            unsubscribe()

    async def _newcomers(self) -> None:
        """Look at pods of which the API server has told only now: something of them may have ended already."""
        while True:
            await self._look_at(await self._appeared.get())

    def _on_pod(self, change: PodChange) -> None:
        uid = change.pod.ref.uid
        if change.kind is PodChangeKind.GONE:
            if membership.gang_of(change.pod) is not None and self._is_alive(uid):
                self._leaving[uid] = change.pod  # deleted by force: it is gone when the last of it has ended
            else:
                self._ears.gone(uid)
        elif change.kind is PodChangeKind.APPEARED and self._known.is_set():
            self._appeared.put_nowait(change.pod)
        self._ears.changed(uid)

    def _take(self, step: ContainerEvent, tasks: asyncio.TaskGroup) -> None:
        uid = step.pod.uid
        if step.kind is EventKind.DELETED:
            self._exit_codes.pop(step.container_id, None)
        pod = self._pod(uid)
        if pod is None or membership.gang_of(pod) is None:
            return
        if step.kind is EventKind.STOPPED:
            at = step.created_at * _NANOSECOND
            if step.exit_code is None:
                tasks.create_task(self._ask(step.container, at=at), name=f"how {step.container.ref} has ended")
            else:
                self._ended(step.container, step.exit_code, reason=step.reason, at=at)
        self._ears.changed(uid)
        if uid in self._leaving and not self._is_alive(uid):
            del self._leaving[uid]
            self._ears.gone(uid)

    async def _ask(self, view: ContainerView, *, at: float | None) -> None:
        """Ask the runtime how a container has ended, at ``at`` (Unix time; None: the runtime knows that, too)."""
        with contained.within(Part.MEMBER, view.ref):
            await self._find_out(view, at=at)

    async def _find_out(self, view: ContainerView, *, at: float | None) -> None:
        try:
            info = await self._runtime.container_info(view.id)
        except CriError as error:
            log.info("hub.exit_unknown", container=str(view.ref), container_id=view.id, error=str(error))
            return
        if info.state is ContainerState.EXITED:
            ended_at = at if at is not None else info.finished_at * _NANOSECOND
            self._ended(view, info.exit_code, reason=info.reason, at=ended_at)

    async def _look_at(self, pod: PodView) -> None:
        """Learn how the newest containers of a member have ended while nobody looked."""
        with contained.within(Part.MEMBER, pod.ref):
            await self._learn_of(pod)

    async def _learn_of(self, pod: PodView) -> None:
        if membership.gang_of(pod) is None:
            return
        for view in membership.newest(self._of(pod.ref.uid)).values():
            if view.state is not ContainerState.EXITED or view.id in self._exit_codes:
                continue
            if pod.is_over:
                await self._learn(view)
            else:
                await self._ask(view, at=None)
        self._ears.changed(pod.ref.uid)

    async def _learn(self, view: ContainerView) -> None:
        """Of a pod that is over for good only the code is of interest: its failure is no news."""
        try:
            self._exit_codes[view.id] = (await self._runtime.container_info(view.id)).exit_code
        except CriError as error:
            log.info("hub.exit_unknown", container=str(view.ref), container_id=view.id, error=str(error))

    def _ended(self, view: ContainerView, exit_code: int, *, reason: str, at: float) -> None:
        if view.id in self._exit_codes:
            return  # told by an event and found by a look
        uid = view.ref.pod.uid
        self._exit_codes[view.id] = exit_code
        self._ears.changed(uid)
        pod = self._pods.pods().get(uid)
        if pod is None:
            return  # deleted meanwhile
        ended = exits.Exit(
            pod=pod,
            container=view,
            exit_code=exit_code,
            containers=tuple(self._of(uid)),
            exit_codes=self._exit_codes,
            ours=self._is_ours(view),
        )
        why = exits.why_no_fault(ended, opted_in_namespaces=self._namespaces)
        say = log.info if why is None else log.debug
        say(
            "hub.member_exit",
            container=str(view.ref),
            container_id=view.id,
            exit_code=exit_code,
            no_fault=why.value if why is not None else None,
        )
        if why is None:
            self._ears.failed(Failure(pod=pod, container=view, exit_code=exit_code, reason=reason, at=at))

    def _is_ours(self, view: ContainerView) -> bool:
        return (
            self._rounds.busy(view.ref.pod.uid) or self._rounds.expects_end(view.id) or self._runtime.has_ended(view.id)
        )

    def _pod(self, uid: PodUid) -> PodView | None:
        return self._pods.pods().get(uid) or self._leaving.get(uid)

    def _of(self, uid: PodUid) -> Iterator[ContainerView]:
        return (view for view in self._containers.containers() if view.ref.pod.uid == uid)

    def _is_alive(self, uid: PodUid) -> bool:
        return any(view.state in _ALIVE for view in self._of(uid))
