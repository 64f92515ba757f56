"""What a leader does: hear agents and the API server, keep a desk for each gang, and conduct their rounds."""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Final

import structlog

from common import aio, contained
from common.contained import Part
from common.gangs import GangKey
from common.pb.coordination.v1 import coordination_pb2 as pb
from controller.app import conducting, garbage, story, words
from controller.app.desk import Desk, Reply
from controller.app.outside import Outside
from controller.app.stragglers import Stragglers
from controller.decisions.facts import Decision, Kind, Reason
from controller.hub.ports import Session
from controller.leader.election import Term
from controller.model.members import NodeName, PodRef, PodUid
from controller.model.rounds import PodGone, StepTold
from controller.restarts.objects import Restart
from controller.restarts.recreate import Outcome
from controller.restarts.store import RestartChange, RestartChangeKind
from controller.watches.members import MemberChange, MemberChangeKind
from controller.watches.nodes import NodeChange

log = structlog.get_logger(__name__)

_NEVER_SO_OLD: Final = 2.0  # times the longest round; the clocks of API server and replicas may differ
_FAULTS_KEPT: Final = 10_000
_TIDY_SECONDS: Final = 60.0
_NO_GANG: Final = "it names neither a Job, a JobSet nor a gang; for a single pod: kubemend restart, on its node"


@dataclass(slots=True)
class _Asked:
    """A fault, by whom we last heard of it, and what was answered."""

    session: Session
    kind: str
    reply: Reply | None = None


class Conductor:
    """One term of leadership. ``controller.hub.ports.Listener`` for the agents' streams."""

    def __init__(self, *, outside: Outside, term: Term) -> None:
        self._outside = outside
        self._term = term
        self._desks: dict[GangKey, Desk] = {}
        self._faults: OrderedDict[str, _Asked] = OrderedDict()
        self._stragglers = Stragglers(outside=outside)
        self._spawned: asyncio.Queue[tuple[Coroutine[Any, Any, None], str]] = asyncio.Queue()
        self.ready = asyncio.Event()

    async def run(self) -> None:
        """Take up what former leaders have begun, and go on for ever. ``ready`` is set when agents may be heard."""
        outside = self._outside
        await outside.members.wait_synced()
        await outside.nodes.wait_synced()
        await outside.restarts.wait_synced()
        await outside.jobsets.wait_known()
        unsubscribe = [
            outside.jobsets.subscribe(self._jobset_changed),
            outside.members.subscribe(self._member_changed),
            outside.nodes.subscribe(self._node_changed),
            outside.restarts.subscribe(self._restart_changed),
        ]
        try:
            async with asyncio.TaskGroup() as tasks:
                aio.spawn_eternal(tasks, self._stragglers.run(), name="stragglers")
                aio.spawn_eternal(tasks, self._tidy(), name="tidy")
                aio.spawn_eternal(tasks, garbage.collect(is_busy=self._is_busy), name="garbage")
                await self._take_up()
                self.ready.set()
                while True:
                    work, name = await self._spawned.get()
                    tasks.create_task(work, name=name)
        finally:
            for stop in unsubscribe:
                stop()
            for desk in self._desks.values():
                desk.drop()
            while not self._spawned.empty():
                self._spawned.get_nowait()[0].close()

    def connected(self, session: Session) -> None:
        """An agent's stream begins; its Hello follows at once, and says more."""

    def hello(self, session: Session, hello: pb.Hello) -> None:
        """An agent says where everything stands."""
        if hello.epoch > self._term.epoch:  # ours it may have from us
            self._term.raise_above(hello.epoch)
        for result in hello.results:
            with contained.within(Part.ROUND, f"{result.round} {result.pod.name}"):
                self._standing(session, result)
        self._tell_node(session.node)  # after these: what they answer need not be said again

    def told(self, session: Session, message: pb.AgentMessage) -> None:
        """An agent tells of its members."""
        match message.WhichOneof("body"):
            case "fault":
                self._fault(session, message.fault)
            case "result":
                with contained.within(Part.ROUND, f"{message.result.round} {message.result.pod.name}"):
                    self._standing(session, message.result)
            case "samples":
                with contained.within(Part.STRAGGLER, session.node):
                    samples = [words.sample(each) for each in message.samples.devices]
                    self._stragglers.take(samples)
                    self._outside.gpus.take(samples)
            case _:
                pass  # what a member looks like is the API server's word; attempts are only for people who listen in

    def gone(self, session: Session) -> None:
        """An agent's stream has ended."""
        self._tell_node(session.node)

    def replaced(self, pod: PodRef, outcome: Outcome, detail: str) -> None:
        """A pod that was to be replaced has been deleted, is gone already, or must not be deleted."""
        rounds = [desk.conducting for desk in self._desks.values() if desk.conducting is not None]
        of_round = next((each.id for each in rounds if pod.uid in each.round.members), "")
        log.info("pod.replaced", round=of_round, pod=str(pod), outcome=outcome.value, detail=detail)
        if outcome is Outcome.GONE:
            for each in rounds:
                with contained.within(Part.ROUND, each.id):
                    each.take(PodGone(pod.uid))

    async def _take_up(self) -> None:
        for restart in self._outside.restarts.unfinished():
            with contained.within(Part.ROUND, restart.id) as work:
                await self._outside.restarts.resume(restart, epoch=self._term.epoch)
                assert restart.gang is not None
                if self._is_on(restart):
                    self._resume(restart, self._desk(restart.gang))
            if work.error is not None:
                self._not_resumed(restart, why=contained.why(work.error))
        for restart in self._outside.restarts.requests():
            self._request(restart)

    def _is_on(self, restart: Restart) -> bool:
        """Whether a former leader's round has been neither taken back nor ended while others were resumed."""
        found = self._outside.restarts.restarts().get(restart.id)
        return found is not None and found.uid == restart.uid and not found.deleting and not found.is_finished

    def _resume(self, restart: Restart, desk: Desk) -> None:
        """Go on with a round; one that cannot be understood has failed, and its agents let go by themselves."""
        now = self._outside.now()
        try:
            if now - restart.created_at > _NEVER_SO_OLD * self._outside.policy.limits.whole:
                why = "it is too old to be gone on with"  # written late for a leader that was none any more
            elif desk.conducting is not None:
                why = f"round {desk.conducting.id} of the same gang is under way"
            else:
                desk.resume(restart)
                return
        except (KeyError, ValueError, TypeError, AttributeError, ArithmeticError) as error:
            why = f"what was kept of it cannot be understood: {error!r}"
        self._not_resumed(restart, why=why)

    def _not_resumed(self, restart: Restart, *, why: str) -> None:
        log.error("round.not_resumed", round=restart.id, why=why)
        with contained.within(Part.ROUND, restart.id):
            told = story.failed(restart.status, reason=story.NOT_RESUMED, why=why, now=self._outside.now())
            self._outside.restarts.set_status(restart.id, told)

    def _fault(self, session: Session, told: pb.Fault) -> None:
        known = self._faults.get(told.id)
        if known is not None:
            known.session = session
            if known.reply is not None:
                self._send(known.session, told.id, known.reply)
            return
        kind = pb.Fault.Kind.Name(told.kind) if told.kind in pb.Fault.Kind.values() else "OTHER"
        self._faults[told.id] = _Asked(session, kind)
        if len(self._faults) > _FAULTS_KEPT:
            answered = (each for each, asked in self._faults.items() if asked.reply is not None)
            del self._faults[next(answered, next(iter(self._faults)))]
        member = self._outside.members.by_uid(PodUid(told.pod.uid))
        pod = f"{told.pod.namespace}/{told.pod.name}"
        log.info(
            "fault",
            fault=told.id,
            node=session.node,
            pod=pod,
            container=told.container,
            device=told.device,
            kind=kind,
            code=told.code,
            gang=str(member.gang) if member is not None else "",
        )
        if member is None:
            self._answer(told.id, Reply(pb.FaultAnswer.ALONE, reason="NotAGang", detail="it is in no gang"))
            return
        desk = self._desk(member.gang)
        with self._at(desk, member.gang):
            desk.fault(words.fault(told, gang=member.gang, now=self._outside.now()))
        asked = self._faults.get(told.id)
        if asked is not None and asked.reply is None and desk.is_idle:  # it failed before the desk had it
            detail = "the controller could not decide; its log has the traceback"
            self._answer(told.id, Reply(pb.FaultAnswer.NOTHING, reason=story.INTERNAL, detail=detail))

    def _answer(self, fault_id: str, reply: Reply) -> None:
        asked = self._faults.get(fault_id)
        if asked is None or asked.reply == reply:
            return  # a fault of our own making, or of long ago
        asked.reply = reply
        answer = pb.FaultAnswer.Answer.Name(reply.what)
        self._outside.metrics.faults.labels(asked.kind, answer).inc()
        log.info("fault.answered", fault=fault_id, round=reply.round, answer=answer, reason=reply.reason)
        self._send(asked.session, fault_id, reply)

    def _send(self, session: Session, fault_id: str, reply: Reply) -> None:
        session.send(
            words.answer(fault_id, what=reply.what, round_id=reply.round, reason=reply.reason, detail=reply.detail)
        )

    def _standing(self, session: Session, result: pb.StepResult) -> None:
        """Pass on where a member stands; what belongs to no round any more must not stay held."""
        step = words.standing(result)
        if step is None:
            return
        if result.attempt and (member := self._outside.members.by_uid(step.pod)) is not None:
            self._outside.restarts.note_attempt(member.gang, result.attempt)
        round_ = self._round_of(step)
        if round_ is not None and round_.id == result.round:
            round_.take(step)
        elif step.phase in words.HELD:
            log.warning("round.unknown", round=result.round, node=session.node, pod=result.pod.name)
            session.send(words.abort(result.round, pods=frozenset({step.pod}), reason="the round is over"))

    def _round_of(self, step: StepTold) -> "conducting.Conducting | None":
        member = self._outside.members.by_uid(step.pod)
        desk = self._desks.get(member.gang) if member is not None else None
        return desk.conducting if desk is not None else None

    def _member_changed(self, change: MemberChange) -> None:
        desk = self._desks.get(change.member.gang)
        if desk is None:
            return
        with self._at(desk, change.member.gang):
            if change.kind is MemberChangeKind.LEFT:
                desk.member_left(change.member)
            else:
                desk.member_changed(change.member, gone=change.kind is MemberChangeKind.GONE)

    @contextlib.contextmanager
    def _at(self, desk: Desk, key: GangKey) -> Iterator[None]:
        """Contain what goes wrong at one desk: that gang's work is given up, and no other's."""
        with contained.within(Part.GANG, key) as work:
            yield
        if work.failed:
            desk.give_up()

    def _node_changed(self, change: NodeChange) -> None:
        self._tell_node(change.name)

    def _tell_node(self, node: NodeName) -> None:
        """Tell the rounds that have members there how the node does."""
        told = conducting.node_told(node, outside=self._outside)
        for gang in {member.gang for member in self._outside.members.on_node(node).values()}:
            if gang in self._desks:
                with self._at(self._desks[gang], gang):
                    self._desks[gang].node_changed(told)

    def _restart_changed(self, change: RestartChange) -> None:
        restart = change.restart
        if change.kind is RestartChangeKind.GONE or restart.deleting:
            if restart.gang is not None and restart.gang in self._desks:
                with contained.within(Part.GANG, restart.id):
                    self._desks[restart.gang].withdraw(restart)
        elif restart.is_request:
            self._request(restart)

    def _jobset_changed(self, gang: GangKey) -> None:
        if gang in self._desks:
            with self._at(self._desks[gang], gang):
                self._desks[gang].jobset_changed()

    def _request(self, restart: Restart) -> None:
        with contained.within(Part.GANG, restart.id) as work:
            self._take(restart)
        if work.error is not None:
            with contained.within(Part.GANG, restart.id):
                told = story.failed({}, reason=story.INTERNAL, why=contained.why(work.error), now=self._outside.now())
                self._outside.restarts.set_status(restart.id, told)

    def _take(self, restart: Restart) -> None:
        key = restart.gang
        if key is None or not self._outside.members.of_gang(key):
            detail = f"there are no pods of {key}" if key is not None else _NO_GANG
            log.info("request.refused", restart=restart.id, detail=detail)
            decision = Decision(Kind.OBSERVE, Reason.NOT_A_GANG, detail)
            self._outside.restarts.set_status(restart.id, story.refused(decision, now=self._outside.now()))
            return
        self._desk(key).request(restart)

    def _desk(self, key: GangKey) -> Desk:
        if key not in self._desks:
            self._desks[key] = Desk(
                key,
                outside=self._outside,
                term=self._term,
                answer=self._answer,
                spawn=lambda work, name: self._spawned.put_nowait((work, name)),
            )
        return self._desks[key]

    def _is_busy(self) -> bool:
        """Whether any round is under way, or about to be."""
        return not all(desk.is_idle for desk in self._desks.values())

    async def _tidy(self) -> None:
        """Forget the desks of gangs that are no more, and what pods held that are no more."""
        async for _ in aio.ticks(period=_TIDY_SECONDS):
            for key, desk in list(self._desks.items()):
                with contained.within(Part.GANG, key):
                    if desk.is_idle and not self._outside.members.of_gang(key):
                        del self._desks[key]
            self._outside.gpus.forget(unless=lambda pod: self._outside.members.by_uid(pod) is not None)
