"""Carry out the controller's orders for gang members on this node: stop, hold, release.

An order passes the same admission as every restart (``agent.restart.admission``), and is in the journal before any
container is stopped. A successor is frozen from its first instruction if that is possible, otherwise some milliseconds
later. A container that kubelet starts is held when its event arrives. The kernel keeps frozen containers frozen if this
agent dies. The next agent reads the records, continues these holds, and thaws every container without a record.
"""

import asyncio
import contextlib
import functools
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Mapping
from dataclasses import replace

import structlog

from kubemend.agent.actuator.hold.hold_set import Freezer
from kubemend.agent.clients.cri.convert import Admit
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.clients.journal.store import JournalError, Store
from kubemend.agent.metrics import Metrics
from kubemend.agent.model.outcomes import Outcome
from kubemend.agent.model.rounds import Order, Record, StepResult
from kubemend.agent.model.workloads import ContainerId, ContainerSummary, PodRef, PodUid, PodView
from kubemend.agent.restart.members import Selection
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restarts import planning, restart_plan
from kubemend.agent.restarts.dependencies import Dependencies, DeviceFacts
from kubemend.agent.restarts.requests import SteppedDown
from kubemend.agent.restarts.scheduler import RestartScheduler
from kubemend.agent.rounds.order_resolver import NodePolicy, OrderResolver, refuse
from kubemend.agent.rounds.pod_hold import wait_terminated
from kubemend.agent.rounds.preemptive_hold import PreemptiveHolds
from kubemend.agent.rounds.round_records import Clocks, Key, Records
from kubemend.agent.rounds.session import INTERNAL, MemberSession
from kubemend.agent.rounds.step_reports import EndReason
from kubemend.common import aio, contained
from kubemend.common.contained import Part
from kubemend.common.coordination import OrderKind, StepPhase

log = structlog.get_logger(__name__)

OnResult = Callable[[StepResult], None]
_MOST_ENDS = 4096
_LAG = 2.0
"""Seconds by which this agent may learn of a pod later than the controller."""


class RoundParticipant:
    """Manage the round members on this node. Call ``load`` first, then keep ``run`` running."""

    def __init__(
        self,
        *,
        dependencies: Dependencies,
        store: Store,
        restarts: RestartScheduler,
        freezer: Freezer,
        device_facts: DeviceFacts,
        clocks: Clocks,
        metrics: Metrics,
        on_result: OnResult,
        bounds: NodePolicy | None = None,
    ) -> None:
        """``on_result`` receives the members' states, to be reported to the hub."""
        self._dependencies = dependencies
        self._store = store
        self._restarts = restarts
        self._freezer = freezer
        self._clocks = clocks
        self._metrics = metrics
        self._on_result = on_result
        metrics.round_held.set_function(lambda: len(self.held()))
        self._orders = OrderResolver(
            dependencies=dependencies,
            device_facts=device_facts,
            bounds=bounds if bounds is not None else NodePolicy(),
            now=clocks.now,
        )
        self._preemptive_holds = PreemptiveHolds(dependencies=dependencies, freezer=freezer)
        self._members: dict[Key, MemberSession] = {}
        self._records = Records(store, now=clocks.now)
        self._ended: deque[ContainerId] = deque(maxlen=_MOST_ENDS)
        self._aborted: deque[Key] = deque(maxlen=_MOST_ENDS)
        self._resumed: list[MemberSession] = []

    async def handle_order(self, order: Order, *, pod: PodRef) -> None:
        """Run one member through a round: stopped, held, released, verified. Returns when the round has ended for it.

        ``pod`` is the order's pod with the hub's name for it, which is reported if the pod is not on this node.

        Idempotent by round and pod: repeating an order extends the hold and reports the member's state again. An order
        of another round takes the pod over. An internal error ends this member's part only, and is reported.
        """
        with contained.within(Part.ROUND, f"{order.round} {order.pod}") as work:
            await self._handle_order(order, named=pod)
        if work.error is not None and (order.round, order.pod) not in self._records.all:
            with contained.within(Part.ROUND, f"{order.round} {order.pod}"):
                reason = contained.describe(work.error)
                self._on_result(StepResult(order.round, pod, StepPhase.FAILED, reason=INTERNAL, detail=reason))

    async def _handle_order(self, order: Order, *, named: PodRef) -> None:
        pod = await self._pod(order)
        key = order.round, order.pod
        if (member := self._members.get(key)) is not None:
            member.renew(order)
            if member.step_result.phase is not StepPhase.STOPPING:
                self._on_result(member.step_result)
        elif (known := self._records.all.get(key)) is not None:
            self._on_result(known.step_result)
        elif key in self._aborted:
            self._on_result(StepResult(order.round, named, StepPhase.SELF_RELEASED, reason="Aborted"))
        elif pod is None:
            await wait_terminated(order.pod, events=self._dependencies.events)
            self._on_result(StepResult(order.round, named, StepPhase.GONE))
        else:
            member = self._new(order, pod=pod.ref)
            await self._run_to_end(member, functools.partial(self._start, member, pod))

    def release(self, round_name: str, pods: Collection[PodUid]) -> None:
        """Release these members (none: all on this node); ignore members that are not in the round."""
        self._end(round_name, pods, end_reason=EndReason.RELEASED)

    def abort(self, round_name: str, pods: Collection[PodUid], *, reason: str) -> None:
        """Release held containers, and ignore an order that arrives later. No pods: all members on this node."""
        self._aborted += [(round_name, uid) for uid in pods if (round_name, uid) not in self._members]
        self._end(round_name, pods, end_reason=EndReason.ABORTED, reason=reason)

    @contextlib.asynccontextmanager
    async def guarding(self, failed: ContainerSummary) -> AsyncIterator[asyncio.Event]:
        """Hold the container that kubelet starts in place of a member's container that has ended.

        The hold lasts for the block, or until a round takes it over; then the yielded event is set. A container that
        must not be held is not held.
        """
        pod = self._dependencies.pods.pods().get(failed.ref.pod.uid)
        if pod is None or self.busy(pod.ref.uid) or self._orders.not_held(pod) is not None:
            yield asyncio.Event()
            return
        async with self._preemptive_holds.hold(failed) as taken_over:
            yield taken_over

    def step_results(self) -> tuple[StepResult, ...]:
        """Return the state of every member that this node still remembers."""
        finished = {key: record.step_result for key, record in self._records.all.items()}
        return tuple((finished | {key: member.step_result for key, member in self._members.items()}).values())

    def held(self) -> frozenset[ContainerId]:
        """Return the containers that are held for a round."""
        return frozenset[ContainerId]().union(*(member.holding.held for member in self._members.values()))

    def expects_end(self, container: ContainerId) -> bool:
        """Return whether a round ended, or is to end, the container."""
        under_way = (member.holding for member in self._members.values())
        return container in self._ended or any(container in each.excluded | each.held for each in under_way)

    def busy(self, pod: PodUid) -> bool:
        """Return whether a round stops or holds the pod now."""
        return any(uid == pod and member.holding.on for (_, uid), member in self._members.items())

    async def load(self) -> frozenset[PodUid]:
        """Resume the members of a previous agent; return the pods that are still held.

        Containers that are frozen without a record are thawed. A recorded hold lasts until the hub has had time to
        renew it (``model.rounds.hold_ends_at``). Raises JournalError: try again, and start nothing before that.
        """
        records = await self._store.records()
        newest = {record.pod.uid: record for record in sorted(records, key=lambda record: record.written_at)}
        held: dict[str, float] = {
            uid: record.renewed_at for uid, record in newest.items() if record.is_under_way(boot=self._clocks.boot)
        }
        marked = await self._freezer.take_over(keep=held)
        await self._drop_unreadable_records()
        for record in records:
            uid = record.pod.uid
            with contained.within(Part.ROUND, record.pod) as work:
                self._load(record, frozen=marked.get(uid, {}), newest=newest[uid] is record, held=uid in held)
            if work.failed:
                for container_id in marked.get(uid, {}):
                    with contained.within(Part.ROUND, container_id):
                        self._freezer.thaw(container_id)
        return frozenset(member.pod.uid for member in self._resumed)

    async def _drop_unreadable_records(self) -> None:
        """Report and delete records that cannot be read: their pods are no longer held. Raises JournalError."""
        unreadable = await self._store.unreadable_records()
        for each in unreadable:
            contained.given_up(Part.ROUND)
            name, pod = each.key
            log.error("round.record_unreadable", round=name, pod_uid=pod, reason=each.reason)
        await self._store.note(gone=[each.key for each in unreadable])

    def _load(self, record: Record, *, frozen: Mapping[ContainerId, bool], newest: bool, held: bool) -> None:
        was_thawed = not all(frozen.values())
        if not newest:
            self._records.forget_one(record)  # a later round took over the pod, with its frozen containers
        elif held and not was_thawed:
            self._resume_member(record, frozen=frozen)
        else:
            for container_id in frozen:
                self._freezer.thaw(container_id)  # completes an unfinished release
            self._records.note(_final_record(record, was_thawed=was_thawed))

    async def run(self) -> None:
        """Run the resumed members, and keep writing records to disk."""
        async with asyncio.TaskGroup() as tasks:
            for member in self._resumed:
                work = self._run_to_end(member, functools.partial(self._resume_session, member))
                tasks.create_task(work, name=f"round of {member.pod}")
            await self._records.write()

    async def _pod(self, order: Order) -> PodView | None:
        """Return the pod; None if the API server has synced and does not list it."""
        pods = self._dependencies.pods
        if order.pod not in pods.pods():
            timeout = _LAG if pods.synced else order.hold_seconds
            await pods.wait_for(order.pod, lambda _: True, timeout=timeout)
        return pods.pods().get(order.pod)

    def _new(self, order: Order, *, pod: PodRef, earlier: Record | None = None) -> MemberSession:
        """Create a member that takes over the hold of the pod's previous member."""
        member = MemberSession(
            order,
            pod=pod,
            dependencies=self._dependencies,
            freezer=self._freezer,
            clocks=self._clocks,
            on_record=self._records.note,
            on_result=self._on_result,
            metrics=self._metrics,
            earlier=earlier,
        )
        for key, other in list(self._members.items()):
            if other.pod.uid == pod.uid:
                other.end(EndReason.SUPERSEDED)
                other.holding.transfer_to(member.holding)
                del self._members[key]
        self._preemptive_holds.transfer_to(pod.uid, by=member.holding)
        self._records.forget(pod.uid, but=self._members.keys(), present=self._dependencies.pods.pods().keys())
        member.take_over(member.holding.held)
        self._members[order.round, order.pod] = member
        return member

    async def _run_to_end(self, member: MemberSession, work: Callable[[], Awaitable[None]]) -> None:
        try:
            with contained.within(Part.ROUND, member.pod) as whole:
                async with member.at_work():
                    with contained.within(Part.ROUND, member.pod) as done:
                        await work()
                        member.finalize()
                    if done.error is not None:
                        await member.fail(contained.describe(done.error))
            if whole.failed:
                with contained.within(Part.ROUND, member.pod):
                    member.drop()
            self._ended.extend(member.ended)
            if member.end_reason is EndReason.DELETED:
                with contained.within(Part.ROUND, member.pod):
                    await member.until_gone()
        finally:
            if self._members.get(key := (member.order.round, member.order.pod)) is member:
                del self._members[key]

    async def _start(self, member: MemberSession, pod: PodView) -> None:
        await self._restart_unless_refused(member, pod)
        if member.was_retried:
            await self._restart_unless_refused(member, pod)
        await self._restart_again(member)

    async def _restart_again(self, member: MemberSession) -> None:
        """Restart a member whose probes allow no longer hold, held again, until the round releases it.

        Also one of which a container has completed since the selection, and whose others are left.
        """
        while member.must_restart_again or member.must_select_again:
            if member.must_select_again:
                await member.until_changed()
            else:
                log.info("round.restarted", round=member.order.round, pod=str(member.pod))
            member.must_restart_again = member.must_select_again = False
            if (pod := self._dependencies.pods.pods().get(member.pod.uid)) is None:
                return
            await self._restart_unless_refused(member, pod)

    async def _restart_unless_refused(
        self, member: MemberSession, pod: PodView, *, stepped_down: SteppedDown | None = None
    ) -> None:
        if (refusal := self._orders.refusal(member.order, pod)) is not None:
            member.refuse(refusal)
        else:
            await self._restart(member, pod, stepped_down=stepped_down)

    async def _restart(self, member: MemberSession, pod: PodView, *, stepped_down: SteppedDown | None) -> None:
        """Restart the order's containers, or hold them if none of them has started yet."""
        selection = await self._selection(member, pod)
        if selection is None:
            member.refuse(refuse(Reason.ROUND_OVER, "the runtime did not list the containers to restart in time"))
            return
        if not selection.held:
            member.refuse(refuse(Reason.COMPLETED, f"{', '.join(sorted(selection.completed))} exited with 0"))
            return
        member.holding.select(selection.held)
        if member.order.kind is OrderKind.HOLD or not selection.restarted:
            await self._hold_only(member)
            return
        tried_before = member.was_retried
        request = await self._orders.request(member, selection)
        await self._restarts.submit(replace(request, stepped_down=stepped_down))
        is_decided = member.was_retried is not tried_before or member.must_select_again
        if member.step_result.phase is StepPhase.STOPPING and not is_decided:
            member.refuse(refuse(Reason.ROUND_OVER, "the restart was not decided in time"))

    async def _selection(self, member: MemberSession, pod: PodView) -> Selection | None:
        """Select the containers; retry, as one may vanish during the query. None if the round ends first."""
        backoff = aio.Backoff(first=0.02, limit=1.0)
        while not await member.over_reason():
            try:
                return await self._orders.selection(member.order, pod)
            except CriError as error:
                log.warning("round.not_selected", pod=str(member.pod), error=str(error))
                await backoff.wait()
        return None

    async def _resume_session(self, member: MemberSession) -> None:
        """Resume a member at the point that a previous agent reached."""
        with self._restarts.config_share(member.pod, waits=False) as share:
            resumed = await self._resume_from_journal(member, admit=share.admit)
        pod = self._dependencies.pods.pods().get(member.pod.uid)
        if resumed is None:
            # The previous agent may have ended between the member's record and its journal entry.
            if member.must_restart_first and (pod := await self._pod(member.order)) is not None:
                await self._start(member, pod)
            else:
                await member.hold_only()
            return
        plan, outcome = resumed
        if outcome.result.is_decided_again:
            stepped_down = await self._restarts.stepped_down(plan.entries, outcome)
            if stepped_down is None and outcome.result.changed_nothing:
                await self._restarts.uncount(plan.entries)  # the restart that follows counts
            if pod is not None:
                await self._restart_unless_refused(member, pod, stepped_down=stepped_down)
            await self._restarts.close(plan, outcome, stepped_down=stepped_down)
        if member.was_retried and pod is not None:
            await self._restart_unless_refused(member, pod)
        await self._restart_again(member)

    async def _resume_from_journal(
        self, member: MemberSession, *, admit: Admit
    ) -> tuple[restart_plan.RestartPlan, Outcome] | None:
        """Finish the restart that a previous agent has started for a member, and return it; None: there is none."""
        backoff = aio.Backoff(first=0.1, limit=2.0)
        while True:
            try:
                opened = [each for each in await self._store.unfinished() if each.target.pod.uid == member.pod.uid]
                plan = await planning.plan_from_journal(self._dependencies, opened, admit=admit) if opened else None
                break
            except (CriError, JournalError) as error:
                log.warning("round.not_resumed", pod=str(member.pod), error=str(error))
                await backoff.wait()
        if plan is None:
            return None
        holding = member.follow(plan, pid=None)
        if not plan.stays:  # its program may not be dead yet; if it was, the previous agent may have frozen it
            await member.hold_running()
        cause = self._orders.cause(member, None)
        return plan, await self._restarts.resume(plan, cause=cause, round_hooks=member, holding=holding)

    async def _hold_only(self, member: MemberSession) -> None:
        try:
            await self._store.note(member.record())
        except JournalError as error:
            member.refuse(refuse(Reason.JOURNAL_UNAVAILABLE, str(error)))
            return
        await member.hold_only()

    def _end(self, round_name: str, pods: Collection[PodUid], *, end_reason: EndReason, reason: str = "") -> None:
        for (name, uid), member in list(self._members.items()):
            if name == round_name and (not pods or uid in pods):
                with contained.within(Part.ROUND, member.pod):
                    member.end(end_reason, reason=reason)

    def _resume_member(self, record: Record, *, frozen: Collection[ContainerId]) -> None:
        member = self._new(record.order, pod=record.pod, earlier=record)
        member.take_over(frozenset(frozen))
        self._records.keep(record)
        self._resumed.append(member)
        log.warning("round.resumed", round=record.order.round, pod=str(record.pod), frozen=sorted(frozen))


def _final_record(record: Record, *, was_thawed: bool) -> Record:
    """Return the final record of a member that a previous agent released, or that ended with its node.

    A member that was thawed without a recorded reason cannot be reported as released.
    """
    if record.released or not record.step_result.phase.is_before_release:
        return record
    step_result = replace(
        record.step_result, phase=StepPhase.SELF_RELEASED, reason="AgentWasAway" if was_thawed else "NodeRebooted"
    )
    return replace(record, step_result=step_result, released=True)
