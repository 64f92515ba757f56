"""Coordinate the gangs while this replica leads: dispatch events of agents and the API server to each gang's worker."""

import asyncio
import contextlib
from collections import Counter, deque
from collections.abc import Coroutine, Iterator
from typing import Any, Final

import structlog

from kubemend.common import aio, contained
from kubemend.common.contained import Part
from kubemend.common.coordination import FaultAnswer
from kubemend.common.gangs import POD, GangKey
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.coordinator import gc_schedule, round_report, round_runner, single_pods, wire
from kubemend.controller.coordinator.dependencies import Dependencies
from kubemend.controller.coordinator.fault_book import FaultAnswerMessage, FaultBook
from kubemend.controller.coordinator.gang_worker import GangWorker
from kubemend.controller.coordinator.single_pods import SinglePods
from kubemend.controller.coordinator.stragglers import Stragglers
from kubemend.controller.decisions.facts import Decision, Kind, Reason
from kubemend.controller.gangs import members
from kubemend.controller.hub.ports import Session
from kubemend.controller.leader.election import Term
from kubemend.controller.model.faults import FaultKey
from kubemend.controller.model.members import Member, NodeChange, NodeName, PodRef, PodUid
from kubemend.controller.model.rounds import RoundRef, StepResult
from kubemend.controller.restarts.objects import Restart
from kubemend.controller.restarts.pod_replacer import Outcome
from kubemend.controller.restarts.store import RestartChange, RestartChangeKind
from kubemend.controller.watches.members import MemberChange, MemberChangeKind

log = structlog.get_logger(__name__)

_OLDEST_ROUND_TIMEOUTS: Final = 2.0  # factor of the longest round; the clocks of API server and replicas may differ
_CLOCKS_APART_SECONDS: Final = 60.0  # at most, between replicas (docs/rounds.md)
_TIDY_SECONDS: Final = 60.0
_DELETED_KEPT: Final = 1000  # names of rounds whose objects were deleted while they were under way
_NO_GANG: Final = "the request names neither a pod, a Job, a JobSet nor a gang"


class GangCoordinator:
    """One term of leadership. Implements ``controller.hub.ports.Listener`` for the agents' streams."""

    def __init__(self, *, dependencies: Dependencies, term: Term) -> None:
        self._dependencies = dependencies
        self._term = term
        self._workers: dict[GangKey, GangWorker] = {}
        self._faults = FaultBook()
        self._deleted = deque[str](maxlen=_DELETED_KEPT)
        self._stragglers = Stragglers(dependencies=dependencies)
        self._single_pods = SinglePods(dependencies=dependencies, worker=self._worker, resume=self._resume_single)
        self._spawned: asyncio.Queue[tuple[Coroutine[Any, Any, None], str]] = asyncio.Queue()
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Resume the previous leaders' rounds and run indefinitely. ``ready`` is set when agents may connect."""
        dependencies = self._dependencies
        await dependencies.members.wait_synced()
        await dependencies.nodes.wait_synced()
        await dependencies.restarts.wait_synced()
        await dependencies.jobsets.wait_known()
        unsubscribe = [
            dependencies.jobsets.subscribe(self._jobset_changed),
            dependencies.members.subscribe(self._member_changed),
            dependencies.nodes.subscribe(self._node_changed),
            dependencies.restarts.subscribe(self._restart_changed),
        ]
        try:
            async with asyncio.TaskGroup() as tasks:
                aio.spawn_eternal(tasks, self._stragglers.run(), name="stragglers")
                aio.spawn_eternal(tasks, self._single_pods.run(), name="single pods")
                aio.spawn_eternal(tasks, self._tidy(), name="tidy")
                aio.spawn_eternal(tasks, gc_schedule.collect(is_busy=self._is_busy), name="garbage")
                others = await self._resume_previous()
                self._take_over_pods()
                self.ready.set()
                tasks.create_task(self._resume_others(others), name="rounds that can wait")
                while True:
                    work, name = await self._spawned.get()
                    tasks.create_task(work, name=name)
        finally:
            for stop in unsubscribe:
                stop()
            for worker in self._workers.values():
                worker.drop()
            while not self._spawned.empty():
                self._spawned.get_nowait()[0].close()

    def _take_over_pods(self) -> None:
        """Have Jobs count pods again that a former leader marked and did not delete; taint nodes that others leave."""
        of_gang = self._dependencies.members.of_gang
        for member in [each for gang in self._dependencies.members.gangs() for each in of_gang(gang).values()]:
            self._restore_if_left_out(member)
            if code := member.device_failure:
                self._dependencies.jobsets.left(member.gang, node=member.node, code=code, pod=member.pod.uid)

    def _restore_if_left_out(self, member: Member) -> None:
        if member.left_out and members.bar(member, namespaces=self._dependencies.policy.namespaces) is None:
            self._dependencies.pod_replacer.restore(member.pod)

    def connected(self, session: Session) -> None:
        """Do nothing: the Hello that follows at once has the details."""

    def hello(self, session: Session, hello: pb.Hello) -> None:
        """Record the states in rounds of a node's members when it connects."""
        if hello.epoch > self._term.epoch:  # this leader may itself have set that epoch
            self._term.raise_above(hello.epoch)
        for result in hello.results:
            with contained.within(Part.ROUND, f"{result.round} {result.pod.name}"):
                self._handle_result(session, result)
        self._report_node(session.node)  # after the results: orders that they answer need not be sent again

    def received(self, session: Session, message: pb.AgentMessage) -> None:
        """Dispatch an agent's message about its members."""
        match message.WhichOneof("body"):
            case "fault":
                self._fault(session, message.fault)
            case "result":
                with contained.within(Part.ROUND, f"{message.result.round} {message.result.pod.name}"):
                    self._handle_result(session, message.result)
            case "samples":
                with contained.within(Part.STRAGGLER, session.node):
                    samples = [wire.sample(each) for each in message.samples.devices]
                    self._stragglers.record(samples)
                    self._dependencies.gpus.record(samples)

    def disconnected(self, session: Session) -> None:
        """Report to the rounds that an agent's stream has ended. A node whose kubelet is away is not lost by that."""
        self._report_node(session.node, may_be_lost=False)

    def replaced(self, pod: PodRef, outcome: Outcome, detail: str) -> None:
        """Record that a pod to be replaced has been deleted, no longer exists, or must not be deleted."""
        rounds = (worker.runner for worker in self._workers.values() if worker.runner is not None)
        found = next((each for each in rounds if pod.uid in each.round.members), None)
        log.info("pod.replaced", round=found.id if found else "", pod=str(pod), outcome=outcome.value, detail=detail)
        events = round_runner.replacement_events(pod, outcome, dependencies=self._dependencies)
        if found is not None and events:
            with contained.within(Part.ROUND, found.id):
                found.submit(*events)

    async def _resume_previous(self) -> list[Restart]:
        """Resume the rounds of previous leaders; return those that must wait until agents may connect.

        All at once: agents hold their members for a limited time, and a thousand gangs may be in a round.
        """
        urgent, others = self._under_way()
        async with asyncio.TaskGroup() as tasks:
            for restart in urgent:
                tasks.create_task(self._take_over(restart), name=f"resume {restart.id}")
        await self._single_pods.wait_resumed()
        for restart in self._dependencies.restarts.requests():
            self._request(restart)
        return others

    async def _take_over(self, restart: Restart) -> None:
        """Resume what may be a round under way."""
        gang = restart.gang
        assert gang is not None
        with contained.within(Part.ROUND, restart.id) as work:
            await self._dependencies.restarts.resume(restart, epoch=self._term.epoch)
            if not self._is_on(restart):
                return
            if gang.kind == POD:
                self._single_pods.submit(restart)
            else:
                self._resume(restart, self._worker(gang))
        if work.error is not None:
            self._not_resumed(restart, reason=contained.describe(work.error))

    def _under_way(self) -> tuple[list[Restart], list[Restart]]:
        """Return the previous leaders' rounds, first those that agents may hold something for.

        Users can write any number of Restarts, so some may look like rounds under way. Each costs a write before agents
        may connect. The exception are those for which no agent holds anything: the gang has no members, or has another
        round.
        """
        urgent: list[Restart] = []
        others: list[Restart] = []
        seen: set[GangKey] = set()
        of_pods: Counter[str] = Counter()
        for restart in self._dependencies.restarts.unfinished():
            gang = restart.gang
            assert gang is not None
            if gang.kind == POD:
                of_pods[gang.namespace] += 1
                is_urgent = of_pods[gang.namespace] <= single_pods.AT_A_TIME_IN_A_NAMESPACE
            else:
                is_urgent = bool(self._dependencies.members.of_gang(gang))
            (urgent if is_urgent and gang not in seen else others).append(restart)
            seen.add(gang)
        return urgent, others

    async def _resume_others(self, others: list[Restart]) -> None:
        """Resume the rounds that can wait, such as one of a gang whose pods are all being replaced."""
        for restart in others:
            await self._take_over(restart)

    def _resume_single(self, restart: Restart) -> None:
        assert restart.gang is not None
        if self._is_on(restart):
            self._resume(restart, self._worker(restart.gang))

    def _is_on(self, restart: Restart) -> bool:
        """Return whether a previous leader's round was neither deleted nor ended while others were resumed."""
        found = self._dependencies.restarts.restarts().get(restart.id)
        return found is not None and found.uid == restart.uid and not found.deleting and not found.is_finished

    def _resume(self, restart: Restart, worker: GangWorker) -> None:
        """Resume a round; fail it if its status is invalid. Its agents then release their holds by themselves."""
        now, limits = self._dependencies.now(), self._dependencies.policy.limits
        longest = max(limits.whole, round_report.limits(limits, restart).whole)
        try:
            if now - restart.begun_at > _OLDEST_ROUND_TIMEOUTS * longest:
                reason = "the round is too old to be resumed"  # a late write of a leader that had lost the Lease
            elif restart.begun_at > now + _CLOCKS_APART_SECONDS:
                reason = "the round begins in the future"  # no leader wrote that
            elif worker.has_round:
                reason = "another round of the same gang has begun"
            else:
                worker.resume(restart)
                return
        except (KeyError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
            reason = f"the round's status is invalid: {error!r}"
        self._not_resumed(restart, reason=reason)

    def _not_resumed(self, restart: Restart, *, reason: str) -> None:
        log.error("round.not_resumed", round=restart.id, reason=reason)
        with contained.within(Part.ROUND, restart.id):
            failed = round_report.failed(
                restart.status, reason=round_report.NOT_RESUMED, message=reason, now=self._dependencies.now()
            )
            self._dependencies.restarts.set_status(restart.ref or restart, failed)

    def _fault(self, session: Session, reported: pb.Fault) -> None:
        key = FaultKey(PodUid(reported.pod.uid), reported.id)
        known = self._faults.find(key)
        if known is not None:
            known.session = session
            if known.answer is not None:
                self._send(known.session, reported.id, known.answer)
            return
        kind = wire.fault_kind(reported).name
        has_room = self._faults.add(key, session=session, kind=kind)
        member = self._dependencies.members.by_uid(key.pod)
        pod = f"{reported.pod.namespace}/{reported.pod.name}"
        log.info(
            "fault",
            fault=reported.id,
            node=session.node,
            pod=pod,
            container=reported.container,
            device=reported.device,
            kind=kind,
            code=reported.code,
            gang=str(member.gang) if member is not None else "",
        )
        if member is None:
            detail = "the pod is in no gang"
            self._answer(key, FaultAnswerMessage(FaultAnswer.ALONE, reason=Reason.NOT_A_GANG.value, detail=detail))
            return
        if not has_room:
            detail = "the faults of the pod before it are not yet decided about"
            self._answer(
                key, FaultAnswerMessage(FaultAnswer.NOTHING, reason=Reason.TOO_MANY_FAULTS.value, detail=detail)
            )
            return
        worker = self._worker(member.gang)
        with self._contained_to(worker, member.gang):
            worker.fault(wire.fault(reported, member=member, now=self._dependencies.now()))
        entry = self._faults.find(key)
        if (
            entry is not None and entry.answer is None and worker.is_idle
        ):  # the worker failed before it queued the fault
            detail = "the controller could not decide; see the traceback in its log"
            self._answer(key, FaultAnswerMessage(FaultAnswer.NOTHING, reason=round_report.INTERNAL, detail=detail))

    def _answer(self, fault: FaultKey, message: FaultAnswerMessage) -> None:
        entry = self._faults.answer(fault, message)
        if entry is None:
            return  # a fault of the controller's own, or the same answer again
        answer = message.what.name
        self._dependencies.metrics.faults.labels(entry.kind, answer).inc()
        log.info("fault.answered", fault=fault.id, round=message.round, answer=answer, reason=message.reason)
        self._send(entry.session, fault.id, message)

    def _send(self, session: Session, fault_id: str, message: FaultAnswerMessage) -> None:
        session.send(
            wire.answer(
                fault_id, what=message.what, round_id=message.round, reason=message.reason, detail=message.detail
            )
        )

    def _handle_result(self, session: Session, result: pb.StepResult) -> None:
        """Forward a member's result to its round. A member that is held for another round is released or taken over."""
        step = wire.step_result(result)
        if step is None:
            return
        member = self._dependencies.members.by_uid(step.pod)
        if result.attempt and member is not None:
            self._dependencies.restarts.note_attempt(member.gang, result.attempt)
        round_ = self._round_of(step)
        if round_ is not None and round_.id_for_agents == result.round:
            round_.submit(step)
        elif step.phase.is_before_release:
            log.warning("round.unknown", round=result.round, node=session.node, pod=result.pod.name)
            if self._is_requested(result.round):
                return  # its round begins again, under the same id: it must not be aborted
            is_deleted = result.round in self._deleted
            if member and not is_deleted and self._worker(member.gang).takes_over(member, round_id=result.round):
                return
            session.send(wire.abort(result.round, pods=frozenset({step.pod}), reason="the round is over"))

    def _is_requested(self, round_id: str) -> bool:
        """Return whether a round's request waits: a previous leader that has begun it could not record that."""
        restart = self._dependencies.restarts.restarts().get(round_id.rpartition(".")[0])
        if restart is None or restart.gang is None or not restart.is_request:
            return False
        ref = RoundRef(restart.namespace, restart.name, restart.gang, 0)
        return wire.round_id(ref, request_uid=restart.uid) == round_id

    def _round_of(self, step: StepResult) -> "round_runner.RoundRunner | None":
        member = self._dependencies.members.by_uid(step.pod)
        worker = self._workers.get(member.gang) if member is not None else None
        return worker.runner if worker is not None else None

    def _member_changed(self, change: MemberChange) -> None:
        self._restore_if_left_out(change.member)
        worker = self._workers.get(change.member.gang)
        if worker is None:
            return
        with self._contained_to(worker, change.member.gang):
            if change.kind is MemberChangeKind.LEFT:
                worker.member_left(change.member)
            else:
                worker.member_changed(change.member, gone=change.kind is MemberChangeKind.GONE)

    @contextlib.contextmanager
    def _contained_to(self, worker: GangWorker, key: GangKey) -> Iterator[None]:
        """Contain an error of one worker: that gang's work is given up, and no other's."""
        with contained.within(Part.GANG, key) as work:
            yield
        if work.failed:
            worker.give_up()

    def _node_changed(self, change: NodeChange) -> None:
        self._report_node(change.name)

    def _report_node(self, node: NodeName, *, may_be_lost: bool = True) -> None:
        """Report the node's state to the rounds that have members on it."""
        event = round_runner.node_event(node, dependencies=self._dependencies, may_be_lost=may_be_lost)
        for gang in {member.gang for member in self._dependencies.members.on_node(node).values()}:
            if gang in self._workers:
                with self._contained_to(self._workers[gang], gang):
                    self._workers[gang].node_changed(event)

    def _restart_changed(self, change: RestartChange) -> None:
        restart = change.restart
        if change.kind is RestartChangeKind.GONE or restart.deleting:
            if restart.is_round and not restart.is_finished:
                self._deleted.append(restart.id)
            self._single_pods.withdraw(restart)
            if restart.gang is not None and restart.gang in self._workers:
                with contained.within(Part.GANG, restart.id):
                    self._workers[restart.gang].withdraw(restart)
        elif restart.is_request:
            self._request(restart)

    def _jobset_changed(self, gang: GangKey) -> None:
        if gang in self._workers:
            with self._contained_to(self._workers[gang], gang):
                self._workers[gang].jobset_changed()

    def _request(self, restart: Restart) -> None:
        with contained.within(Part.GANG, restart.id) as work:
            self._accept(restart)
        if work.error is not None:
            with contained.within(Part.GANG, restart.id):
                failed = round_report.failed(
                    {},
                    reason=round_report.INTERNAL,
                    message=contained.describe(work.error),
                    now=self._dependencies.now(),
                )
                self._dependencies.restarts.set_status(restart, failed)

    def _accept(self, restart: Restart) -> None:
        key = restart.gang
        if key is not None and key.kind == POD:
            self._single_pods.submit(restart)
            return
        if key is None or not self._dependencies.members.of_gang(key):
            detail = f"there are no pods of {key}" if key is not None else _NO_GANG
            log.info("request.refused", restart=restart.id, detail=detail)
            decision = Decision(Kind.OBSERVE, Reason.NOT_A_GANG, detail)
            self._dependencies.restarts.set_status(
                restart, round_report.refused(decision, now=self._dependencies.now())
            )
            return
        self._worker(key).request(restart)

    def _worker(self, key: GangKey) -> GangWorker:
        if key not in self._workers:
            self._workers[key] = GangWorker(
                key,
                dependencies=self._dependencies,
                term=self._term,
                answer=self._answer,
                spawn=lambda work, name: self._spawned.put_nowait((work, name)),
            )
        return self._workers[key]

    def _is_busy(self) -> bool:
        """Return whether any round is under way or about to begin."""
        return not all(worker.is_idle for worker in self._workers.values())

    async def _tidy(self) -> None:
        """Remove workers of gangs without members and GPU counts of deleted pods."""
        async for _ in aio.ticks(period=_TIDY_SECONDS):
            for key, worker in list(self._workers.items()):
                with contained.within(Part.GANG, key):
                    if worker.is_idle and not self._dependencies.members.of_gang(key):
                        del self._workers[key]
            self._dependencies.gpus.forget(unless=lambda pod: self._dependencies.members.by_uid(pod) is not None)
