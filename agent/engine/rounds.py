"""Rounds on this node: what the controller orders for members of gangs is carried out, held, and let go.

An order is taken on by the rules of every restart (``agent.restart.admission``), in the journal before anything is
ended. What it starts is frozen from its first instruction on where that can be had, and else some milliseconds later;
what kubelet starts beside is caught as its event comes. The kernel keeps frozen what is, whatever becomes of this
agent: the next one reads the records, goes on holding, and lets go everything for which there is none.
"""

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import replace

import structlog

from agent.actuator.holding import Holding
from agent.cri.errors import CriError
from agent.engine import ports, preparing
from agent.engine.catching import until_dead
from agent.engine.guards import Guards
from agent.engine.members import BEFORE_RELEASE, INTERNAL, Clocks, Member, Word
from agent.engine.metrics import Metrics
from agent.engine.orders import Bounds, Knowledge, Orders, refuse
from agent.engine.restarts import Restarts
from agent.engine.round_records import Key, Records
from agent.history.store import HistoryError, Store
from agent.model.rounds import Order, OrderKind, Phase, Record, Standing
from agent.model.workloads import ContainerId, ContainerView, PodRef, PodUid, PodView
from agent.restart import admission
from agent.restart.members import Selection
from common import aio, contained
from common.contained import Part

log = structlog.get_logger(__name__)

Told = Callable[[Standing], None]
_MOST_ENDS = 4096
_LAG = 2.0
"""Seconds by which the API server may tell this agent later of a pod than the controller."""


class Rounds:
    """The members of rounds that are on this node. ``load`` first, then ``run``, beside everything else."""

    def __init__(
        self,
        *,
        outside: ports.Outside,
        store: Store,
        restarts: Restarts,
        freezer: ports.Freezer,
        knowledge: Knowledge,
        clocks: Clocks,
        metrics: Metrics,
        bounds: Bounds | None = None,
    ) -> None:
        self._outside = outside
        self._store = store
        self._restarts = restarts
        self._freezer = freezer
        self._clocks = clocks
        self._metrics = metrics
        metrics.round_held.set_function(lambda: len(self.held()))
        self._orders = Orders(
            outside=outside, knowledge=knowledge, bounds=bounds if bounds is not None else Bounds(), now=clocks.now
        )
        self._guards = Guards(outside=outside, freezer=freezer)
        self._members: dict[Key, Member] = {}
        self._records = Records(store, now=clocks.now)
        self._ended: deque[ContainerId] = deque(maxlen=_MOST_ENDS)
        self._aborted: deque[Key] = deque(maxlen=_MOST_ENDS)
        self._taken_up: list[Member] = []

    async def carry_out(self, order: Order, *, told: Told) -> None:
        """See one member through a round: stopped, held, let go, verified. Lives as long as that takes.

        Idempotent by round and pod: said again it renews the hold, and tells where the member stands. Of another round
        it takes the pod over. A defect of ours that this comes upon ends this member's part alone, and is told.
        """
        with contained.within(Part.ROUND, f"{order.round} {order.pod}") as work:
            await self._carry_out(order, told=told)
        if work.error is not None and (order.round, order.pod) not in self._records.all:
            with contained.within(Part.ROUND, f"{order.round} {order.pod}"):
                why = contained.why(work.error)
                told(Standing(order.round, PodRef("", "", order.pod), Phase.FAILED, reason=INTERNAL, detail=why))

    async def _carry_out(self, order: Order, *, told: Told) -> None:
        pod = await self._pod(order)
        key = order.round, order.pod
        if (member := self._members.get(key)) is not None:
            member.told = told
            member.hear(order)
            if member.standing.phase is not Phase.STOPPING:
                told(member.standing)
        elif (known := self._records.all.get(key)) is not None:
            told(known.standing)
        elif key in self._aborted:
            told(Standing(order.round, PodRef("", "", order.pod), Phase.SELF_RELEASED, reason="Aborted"))
        elif pod is None:
            await until_dead(order.pod, events=self._outside.events)
            told(Standing(order.round, PodRef("", "", order.pod), Phase.GONE))
        else:
            member = self._new(order, pod=pod.ref, told=told)
            await self._see_through(member, functools.partial(self._go, member, pod))

    def release(self, round_name: str, pods: Collection[PodUid]) -> None:
        """Let these members (none: all that are here) run; those that are in no such round are left alone."""
        self._end(round_name, pods, word=Word.RELEASED)

    def abort(self, round_name: str, pods: Collection[PodUid], *, reason: str) -> None:
        """Let run what is held, and begin nothing, also of an order that comes late. No pods: all that are here."""
        self._aborted += [(round_name, uid) for uid in pods if (round_name, uid) not in self._members]
        self._end(round_name, pods, word=Word.ABORTED, reason=reason)

    @contextlib.asynccontextmanager
    async def guarding(self, failed: ContainerView) -> AsyncIterator[asyncio.Event]:
        """Keep from running what kubelet starts in the place of a member's container that has ended, for the length of
        the block, or until a round has taken it over: then what is yielded is set. Nothing is held that must not be.
        """
        pod = self._outside.pods.pods().get(failed.ref.pod.uid)
        if pod is None or self.busy(pod.ref.uid) or self._orders.why_not_held(pod) is not None:
            yield asyncio.Event()
            return
        async with self._guards.over(failed) as taken_over:
            yield taken_over

    def standings(self) -> tuple[Standing, ...]:
        """Return where every member stands that this node still knows of."""
        finished = {key: record.standing for key, record in self._records.all.items()}
        return tuple((finished | {key: member.standing for key, member in self._members.items()}).values())

    def held(self) -> frozenset[ContainerId]:
        """Return the containers that stand still for a round."""
        return frozenset[ContainerId]().union(*(member.holding.held for member in self._members.values()))

    def expects_end(self, container: ContainerId) -> bool:
        """Whether the end of a container is a round's own doing."""
        under_way = (member.holding for member in self._members.values())
        return container in self._ended or any(container in each.spared | each.held for each in under_way)

    def busy(self, pod: PodUid) -> bool:
        """Whether a round has the pod now: it is being stopped, or held."""
        return any(uid == pod and member.holding.on for (_, uid), member in self._members.items())

    def tell_taken_up(self, told: Told) -> None:
        """Have it told where members stand that an earlier agent has begun."""
        for member in self._taken_up:
            member.told = told

    async def load(self) -> frozenset[PodUid]:
        """Take up what an earlier agent has left; return the pods that are still held.

        What is frozen without a record that says so is let go, and what has been for longer than that says as soon as
        ``run`` goes on with it. Raises HistoryError: try again, and begin nothing until then.
        """
        records = await self._store.records()
        newest = {record.pod.uid: record for record in sorted(records, key=lambda record: record.written_at)}
        held = {uid for uid, record in newest.items() if record.is_under_way(boot=self._clocks.boot)}
        marked = await self._freezer.take_over(keep=held)
        for record in records:
            uid = record.pod.uid
            with contained.within(Part.ROUND, record.pod) as work:
                self._load(record, frozen=marked.get(uid, {}), newest=newest[uid] is record, held=uid in held)
            if work.failed:
                for container_id in marked.get(uid, {}):
                    with contained.within(Part.ROUND, container_id):
                        self._freezer.thaw(container_id)
        return frozenset(member.pod.uid for member in self._taken_up)

    def _load(self, record: Record, *, frozen: Mapping[ContainerId, bool], newest: bool, held: bool) -> None:
        let_go = not all(frozen.values())
        if not newest:
            self._records.forget_one(record)  # a later round has had the pod, and what is frozen there
        elif held and not let_go:
            self._take_up(record, frozen=frozen)
        else:
            for container_id in frozen:
                self._freezer.thaw(container_id)  # the last of those that were being let go
            self._records.note(_over(record, let_go=let_go))

    async def run(self) -> None:
        """Go on with what was taken up, and write down where members stand, for ever."""
        async with asyncio.TaskGroup() as tasks:
            for member in self._taken_up:
                work = self._see_through(member, functools.partial(self._go_on, member))
                tasks.create_task(work, name=f"round of {member.pod}")
            await self._records.write()

    async def _pod(self, order: Order) -> PodView | None:
        """Return the pod; None when there is none, which only an API server that was heard can tell."""
        pods = self._outside.pods
        if order.pod not in pods.pods():
            patience = _LAG if pods.synced else order.hold_seconds
            await pods.wait_for(order.pod, lambda _: True, timeout=patience)
        return pods.pods().get(order.pod)

    def _new(self, order: Order, *, pod: PodRef, told: Told, earlier: Record | None = None) -> Member:
        """Return a new member, which takes over what the pod's last one holds."""
        holding = Holding(self._freezer, mark=pod.uid, names=earlier.names if earlier is not None else ())
        for key, other in list(self._members.items()):
            if other.pod.uid == pod.uid:
                other.end(Word.SUPERSEDED)
                other.holding.hand_on(holding)
                del self._members[key]
        self._guards.succeed(pod.uid, by=holding)
        self._records.forget(pod.uid, but=self._members.keys())
        member = Member(
            order,
            pod=pod,
            outside=self._outside,
            holding=holding,
            clocks=self._clocks,
            noted=self._records.note,
            told=told,
            metrics=self._metrics,
            earlier=earlier,
        )
        member.take_over(holding.held)
        self._members[order.round, order.pod] = member
        return member

    async def _see_through(self, member: Member, work: Callable[[], Awaitable[None]]) -> None:
        try:
            with contained.within(Part.ROUND, member.pod) as whole:
                async with member.at_work():
                    with contained.within(Part.ROUND, member.pod) as done:
                        await work()
                        member.come_to_an_end()
                    if done.error is not None:
                        await member.fail(contained.why(done.error))
            if whole.failed:
                with contained.within(Part.ROUND, member.pod):
                    member.drop()
            self._ended.extend(member.ended)
            if member.word is Word.DELETED:
                await member.until_gone()
        finally:
            if self._members.get(key := (member.order.round, member.order.pod)) is member:
                del self._members[key]

    async def _go(self, member: Member, pod: PodView) -> None:
        await self._restart_unless_refused(member, pod)
        if member.tried_again:
            await self._restart_unless_refused(member, pod)
        await self._begin_anew(member)

    async def _begin_anew(self, member: Member) -> None:
        """Restart again, held, what has been held for as long as its probes allow, until the round lets it go."""
        while member.begins_anew and (pod := self._outside.pods.pods().get(member.pod.uid)) is not None:
            member.begins_anew = False
            log.info("round.begun_anew", round=member.order.round, pod=str(member.pod))
            await self._restart_unless_refused(member, pod)

    async def _restart_unless_refused(self, member: Member, pod: PodView) -> None:
        if (refusal := self._orders.refusal(member.order, pod)) is not None:
            member.refuse(refusal)
        else:
            await self._restart(member, pod)

    async def _restart(self, member: Member, pod: PodView) -> None:
        """Restart what the order is about, or hold it where nothing of that has begun yet."""
        selection = await self._selection(member, pod)
        if selection is None:
            member.refuse(
                refuse(admission.Reason.ROUND_OVER, "the runtime did not say in time what is to be restarted")
            )
            return
        if not selection.held:
            member.refuse(refuse(admission.Reason.COMPLETED, f"{', '.join(sorted(selection.completed))} ended with 0"))
            return
        member.holding.names = selection.held
        if member.order.kind is OrderKind.HOLD or not selection.restarted:
            await self._hold_only(member)
            return
        tried_before = member.tried_again
        await self._restarts.handle(await self._orders.request(member, selection))
        if member.standing.phase is Phase.STOPPING and member.tried_again is tried_before:
            member.refuse(refuse(admission.Reason.ROUND_OVER, "it could not be decided in time"))

    async def _selection(self, member: Member, pod: PodView) -> Selection | None:
        """Ask until the runtime tells: a container may go while it is looked at. None when the round is over before."""
        backoff = aio.Backoff(first=0.02, limit=1.0)
        while not await member.why_over():
            try:
                return await self._orders.selection(member.order, pod)
            except CriError as error:
                log.warning("round.not_selected", pod=str(member.pod), error=str(error))
                await backoff.wait()
        return None

    async def _go_on(self, member: Member) -> None:
        """Take up where an earlier agent was."""
        backoff = aio.Backoff(first=0.1, limit=2.0)
        while True:
            try:
                opened = [each for each in await self._store.unfinished() if each.target.pod.uid == member.pod.uid]
                act = await preparing.resume_all(self._outside, opened) if opened else None
                break
            except (CriError, HistoryError) as error:
                log.warning("round.not_taken_up", pod=str(member.pod), error=str(error))
                await backoff.wait()
        if act is None:
            await member.hold_only()
            return
        act = member.take_on(act, pid=None)
        await member.hold_what_runs()
        await self._restarts.take_up(act, cause=self._orders.cause(member, None), part=member)
        pod = self._outside.pods.pods().get(member.pod.uid)
        if member.tried_again and pod is not None:
            await self._restart_unless_refused(member, pod)
        await self._begin_anew(member)

    async def _hold_only(self, member: Member) -> None:
        try:
            await self._store.note(member.record())
        except HistoryError as error:
            member.refuse(refuse(admission.Reason.JOURNAL_UNAVAILABLE, str(error)))
            return
        await member.hold_only()

    def _end(self, round_name: str, pods: Collection[PodUid], *, word: Word, reason: str = "") -> None:
        for (name, uid), member in list(self._members.items()):
            if name == round_name and (not pods or uid in pods):
                with contained.within(Part.ROUND, member.pod):
                    member.end(word, reason=reason)

    def _take_up(self, record: Record, *, frozen: Collection[ContainerId]) -> None:
        member = self._new(record.order, pod=record.pod, told=_nobody, earlier=record)
        member.take_over(frozenset(frozen))
        self._records.keep(record)
        self._taken_up.append(member)
        log.warning("round.taken_up", round=record.order.round, pod=str(record.pod), frozen=sorted(frozen))


def _over(record: Record, *, let_go: bool) -> Record:
    """Return the record of a member that an earlier agent has let go, or that has ended with its node.

    Of one that was let go without a note on why, nobody can say that it was released.
    """
    if record.released or record.standing.phase not in BEFORE_RELEASE:
        return record
    standing = replace(record.standing, phase=Phase.SELF_RELEASED, reason="AgentWasAway" if let_go else "NodeRebooted")
    return replace(record, standing=standing, released=True)


def _nobody(_: Standing) -> None:
    return
