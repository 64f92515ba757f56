"""An environment for one round: nodes with agents and containers, an API server, a network, and replicas.

Only the environment knows the running containers. Every participant acts on messages that may be late, duplicated,
reordered or lost. Processes are of two generations: old ones ran before the round, new ones were started by it.
"""

import enum
import json
import random
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import TypeVar

from kubemend.common.coordination import OrderKind, StepPhase
from kubemend.controller.decisions.facts import Decision, Kind, Reason
from kubemend.controller.model.faults import Cause, Request
from kubemend.controller.model.members import Member, NodeName, NodeView, PodPhase, PodUid
from kubemend.controller.model.rounds import (
    Abort,
    Cancelled,
    Effect,
    FaultReported,
    MemberDropped,
    MemberSeen,
    NodeChanged,
    PodGone,
    Record,
    Recreate,
    Release,
    RoundEvent,
    RoundRef,
    StepResult,
    Stop,
)
from kubemend.controller.rounds import machine, outcome, status
from kubemend.controller.rounds.states import BEFORE_RELEASE, Advance, Limits, MemberPhase, Phase, Round
from tests.unit.controller import builders

LIMITS = Limits(slow=40.0, absence=60.0, hold_for_recreated=20.0, recreated=60.0, whole=200.0)
_Message = TypeVar("_Message")

NOT_STARTED = "NotStarted"
REF = RoundRef("team", "train-1", builders.GANG, 1)


class New(enum.Enum):
    """The state of a pod's new process."""

    NONE = "none"
    HELD = "held"
    RUNS = "runs"


@dataclass
class Known:
    """An agent's record of a pod in the round."""

    order: OrderKind
    heard_at: float
    phase: StepPhase = StepPhase.STOPPING
    reason: str = ""
    unheld_seconds: float = 0.0
    released: bool = False


@dataclass
class Answered:
    """A fault that the leading replica has added to its round.

    ``stood`` is its pod's phase at that time, by the replica's state. ``unheard``: that state is outdated, because the
    replica does not know that another one has released the pod.
    """

    fault: FaultReported
    stood: MemberPhase | None
    unheard: bool


@dataclass
class Pod:
    """A pod, its processes, and its agent's state. ``refuses``: its agent's answer to a RESTART.

    ``ended_at`` is when its old process was killed, or its held one released: earlier faults are over.
    ``reported`` are the faults that its agent reports to each replica until an order comes, and whether one has
    answered.
    """

    member: Member
    old_runs: bool = True
    new: New = New.NONE
    started: bool = True
    completed: bool = False
    refuses: tuple[StepPhase, str] | None = None
    known: Known | None = None
    ran_unheld: str = ""
    ended_at: float = 0.0
    reported: dict[FaultReported, bool] = field(default_factory=dict)

    @property
    def uid(self) -> PodUid:
        return self.member.pod.uid


@dataclass
class Node:
    """A node. ``dead``: it has lost power, and an administrator has set the taint out-of-service."""

    name: NodeName
    agent: bool = True
    ready: bool = True
    dead: bool = False
    obeyed: int = 0


@dataclass
class Simulation:
    """The environment. ``rolls`` is the only source of randomness; ``trouble`` enables failures."""

    rolls: random.Random
    pods: dict[PodUid, Pod]
    nodes: dict[NodeName, Node]
    decision: Decision
    early_replacement: bool = False
    rolling: int | None = None
    size: int = 0
    now: float = builders.NOW
    epoch: int = 1
    trouble: bool = True
    hub: Round | None = None
    wake_at: float | None = None
    record: str = ""
    outcome: Round | None = None
    final: dict[str, object] | None = None
    to_agents: list[tuple[int, Effect]] = field(default_factory=list)
    to_hub: list[tuple[int, RoundEvent]] = field(default_factory=list)
    deletions: list[Recreate] = field(default_factory=list)
    asked: dict[str, set[PodUid]] = field(default_factory=dict)
    generation: int = 1
    freed: set[PodUid] = field(default_factory=set)
    excused: set[PodUid] = field(default_factory=set)
    faulty: set[PodUid] = field(default_factory=set)
    heard: set[PodUid] = field(default_factory=set)
    answered: list[Answered] = field(default_factory=list)

    # ---- the leading replica ----

    def begin(self) -> None:
        cause: Cause = builders.fault()
        if self.rolling is not None:
            cause = Request(builders.GANG, "a user", "new weights", builders.NOW, self.rolling)
        advance = machine.begin(
            REF,
            cause=cause,
            decision=self.decision,
            members=[pod.member for pod in self.pods.values()],
            nodes=self.views(),
            connected=frozenset(self.nodes),
            limits=LIMITS,
            now=self.now,
        )
        self.record = json.dumps(status.render(advance.round))
        if advance.round.phase.is_final:
            self.outcome, self.final = advance.round, status.render(advance.round)  # its object has it from the start
        self._perform(advance)

    def kill_hub(self) -> None:
        """Kill the hub and its streams; messages that it has sent may still arrive."""
        self.hub, self.wake_at, self.to_hub, self.heard, self.answered = None, None, [], set(), []

    def resume(self) -> None:
        if self.hub is not None or self.outcome is not None:
            return
        self.epoch += 1
        kept = status.parse(json.loads(self.record), created_at=builders.NOW)
        reported = [event for node in self.nodes.values() if self.rolls.random() < 0.5 for event in self._hello(node)]
        advance = machine.resume(
            REF,
            kept=kept,
            members=[pod.member for pod in self.pods.values()],
            nodes=self.views(),
            limits=LIMITS,
            max_unavailable=self.rolling,
            now=self.now,
        )
        self._perform(advance)
        self.tell(*(event for event in reported if isinstance(event, StepResult)))
        for node in self.nodes.values():
            self._connect(node)

    def tell(self, *events: RoundEvent) -> None:
        if self.hub is not None:
            if self.outcome is None:
                self._hear(events)
                for event in events:
                    if isinstance(event, FaultReported):
                        self._answer(event)
            self._perform(machine.advance(self.hub, events, now=self.now))

    def _hear(self, events: Iterable[RoundEvent]) -> None:
        """Note the members known to have been released by their agents."""
        reported = [
            event for event in events if isinstance(event, StepResult) and event.phase is StepPhase.SELF_RELEASED
        ]
        self.heard |= {event.pod for event in reported}

    def _answer(self, fault: FaultReported) -> None:
        """Deliver the answer that a fault belongs to the round to its agent."""
        assert self.hub is not None
        pod, one = self.pods.get(fault.pod), self.hub.members.get(fault.pod)
        unheard = pod is not None and pod.known is not None and pod.known.phase is StepPhase.RUNNING
        unheard &= one is not None and one.phase in BEFORE_RELEASE
        self.answered.append(Answered(fault, one.phase if one is not None else None, unheard))
        if pod is not None and fault in pod.reported:
            pod.reported[fault] = True

    def _perform(self, advance: Advance) -> None:
        self.hub, self.wake_at = advance.round, advance.wake_at
        check(advance.round)
        for effect in advance.effects:
            if self.trouble and self.rolls.random() < 0.02:
                self.kill_hub()
                return
            self._effect(effect)

    def _effect(self, effect: Effect) -> None:
        if isinstance(effect, Record):
            assert self.hub is not None
            self.outcome, self.final = self.hub, status.render(self.hub)
        elif isinstance(effect, Recreate):
            member = self.pods[effect.pod.uid].member if effect.pod.uid in self.pods else None
            assert member is None or (member.owner is not None and member.annotations), (
                "a pod is deleted that must stay"
            )
            if member is not None:
                self.asked.setdefault(member.slot, set()).add(effect.pod.uid)
                assert len(self.asked[member.slot]) == 1, f"two pods of {member.slot} are deleted"
            self.deletions.append(effect)
        else:
            if isinstance(effect, Release | Abort):
                self.freed |= effect.pods
            self.to_agents.append((self.epoch, effect))

    # ---- the network ----

    def carry_to_agent(self) -> None:
        if not self.to_agents:
            return
        epoch, effect = self._pick(self.to_agents)
        if isinstance(effect, Stop | Release | Abort):
            node = self.nodes[effect.node]
            if node.agent and not node.dead and epoch >= node.obeyed:
                node.obeyed = epoch
                self._obey(effect)

    def carry_to_hub(self) -> None:
        if self.to_hub:
            epoch, event = self._pick(self.to_hub)
            if epoch == self.epoch:
                self.tell(event)

    def _pick(self, queue: list[_Message]) -> _Message:
        """Take any message out, or leave it to be delivered again."""
        place = self.rolls.randrange(min(len(queue), 8)) if self.trouble else 0
        return queue[place] if self.trouble and self.rolls.random() < 0.15 else queue.pop(place)

    def lose(self) -> None:
        for queue in (self.to_agents, self.to_hub):
            lossy = [place for place, (_, message) in enumerate(queue) if not isinstance(message, MemberSeen | PodGone)]
            if lossy:
                queue.pop(self.rolls.choice(lossy))

    # ---- agents ----

    def _obey(self, effect: Stop | Release | Abort) -> None:
        for uid in sorted(effect.pods):
            pod = self.pods.get(uid)
            if pod is None:
                self._say(StepResult(uid, StepPhase.GONE))
            elif isinstance(effect, Stop):
                self._stop(pod, effect.pods[uid])
            elif isinstance(effect, Release):
                self._release(pod)
            else:
                self._abort(pod)

    def _stop(self, pod: Pod, order: OrderKind) -> None:
        pod.reported = {fault: False for fault, answered in pod.reported.items() if not answered}
        if pod.known is not None:
            pod.known.heard_at = self.now
            self._tell_of(pod)
            return
        pod.known = Known(order, self.now)
        if pod.completed:
            pod.known.phase = StepPhase.COMPLETED
        elif order is OrderKind.RESTART and pod.refuses is not None:
            pod.known.phase, pod.known.reason = pod.refuses
            if pod.refuses[0] in (StepPhase.FAILED, StepPhase.COMPLETED):
                pod.old_runs, pod.ended_at = False, self.now
        elif order is OrderKind.HOLD and pod.new is New.RUNS:
            pod.new, pod.known.phase, pod.known.unheld_seconds = New.HELD, StepPhase.STOPPED, 0.5
        self._tell_of(pod)

    def _release(self, pod: Pod) -> None:
        known = pod.known
        if known is None:
            return
        if _waits_for_start(pod):
            known.released = True
        elif known.phase is StepPhase.STOPPED:
            pod.new, known.phase, pod.ended_at = New.RUNS, StepPhase.RUNNING, self.now
        elif known.phase is StepPhase.STOPPING and known.order is OrderKind.HOLD:
            known.released = True
        self._tell_of(pod)

    def _abort(self, pod: Pod) -> None:
        if pod.known is None:
            pod.known = Known(OrderKind.HOLD, self.now)
        if pod.known.phase in (StepPhase.STOPPING, StepPhase.STOPPED):
            self._self_release(pod, "Aborted")

    def _self_release(self, pod: Pod, reason: str) -> None:
        assert pod.known is not None
        starts = pod.new is New.HELD or _waits_for_start(pod)
        pod.known.phase, pod.known.reason = StepPhase.SELF_RELEASED, reason
        if starts:
            pod.new, pod.ran_unheld, pod.ended_at = New.RUNS, reason, self.now
        self._tell_of(pod)

    def work(self, pod: Pod) -> None:
        """Advance a pod's agent by one step: kill the old process, then start the new one.

        It is held unless the pod has been released by then: some agents report the death before the start.
        """
        known = pod.known
        if known is None or not self._agent_of(pod) or known.order is not OrderKind.RESTART:
            return
        if known.phase is StepPhase.STOPPING and pod.old_runs:
            pod.old_runs, pod.ended_at = False, self.now
            if self.rolls.random() < 0.5:
                known.phase, known.reason = StepPhase.STOPPED, NOT_STARTED
                self._tell_of(pod)
        elif known.phase is StepPhase.STOPPING or _waits_for_start(pod):
            self._start_new(pod, known)

    def _start_new(self, pod: Pod, known: Known) -> None:
        if known.phase is StepPhase.STOPPED and self.trouble and self.rolls.random() < 0.1:
            known.phase, known.reason = StepPhase.FAILED, "Failed"
        elif known.released:
            pod.new, known.phase, known.reason, pod.ended_at = New.RUNS, StepPhase.RUNNING, "", self.now
        else:
            pod.new, known.phase, known.reason = New.HELD, StepPhase.STOPPED, ""
        self._tell_of(pod)

    def go_on(self, pod: Pod) -> None:
        """Have a pod's agent report that it still stops, or still starts."""
        known = pod.known
        if known is None or not self._agent_of(pod):
            return
        if known.phase is StepPhase.STOPPING:
            self._say(StepResult(pod.uid, StepPhase.STOPPING, "ProcessExiting"))
        elif known.phase is StepPhase.RUNNING:  # the result was on its way when it began to run
            self._say(StepResult(pod.uid, StepPhase.STOPPED, "Starting"))

    def look_at_holds(self) -> None:
        for pod in self.pods.values():
            known = pod.known
            waits = known is not None and known.phase in (StepPhase.STOPPING, StepPhase.STOPPED)
            if waits and known is not None and self._agent_of(pod) and self.now - known.heard_at >= LIMITS.hold:
                if known.order is OrderKind.RESTART and known.phase is StepPhase.STOPPING:
                    pod.old_runs, pod.new = False, New.HELD  # it finishes what it has begun
                self._self_release(pod, "HoldTimeout")

    def _tell_of(self, pod: Pod) -> None:
        known = pod.known
        if known is not None and known.phase is not StepPhase.STOPPING:
            self._say(self._step_result(pod, known))

    @staticmethod
    def _step_result(pod: Pod, known: Known) -> StepResult:
        return StepResult(pod.uid, known.phase, known.reason, "", {"stop": 0.02}, known.unheld_seconds)

    def _say(self, reported: RoundEvent) -> None:
        if self.hub is not None:
            self.to_hub.append((self.epoch, reported))

    def _hello(self, node: Node) -> list[RoundEvent]:
        if not node.agent or node.dead:
            return []
        mine = [pod for pod in self.pods.values() if pod.member.node == node.name]
        reported: list[RoundEvent] = [self._step_result(pod, pod.known) for pod in mine if pod.known is not None]
        return [*reported, self._node_reported(node)]

    def _connect(self, node: Node) -> None:
        for event in self._hello(node):
            self._say(event)
        for pod in self.pods.values():
            if pod.member.node == node.name and node.agent:
                for fault in pod.reported:
                    self._say(fault)

    def kill_agent(self, node: Node) -> None:
        node.agent = False
        for pod in self.pods.values():
            if pod.member.node == node.name:
                pod.reported = {}
        self._say(self._node_reported(node))

    def start_agent(self, node: Node) -> None:
        if not node.agent and not node.dead:
            node.agent = True
            self._connect(node)

    def _agent_of(self, pod: Pod) -> bool:
        node = self.nodes.get(pod.member.node)
        return node is not None and node.agent and not node.dead

    # ---- kubelets, the API server, and controllers of workloads ----

    def views(self) -> dict[NodeName, NodeView]:
        return {node.name: NodeView(node.name, node.ready, node.dead) for node in self.nodes.values()}

    def _node_reported(self, node: Node) -> NodeChanged:
        return NodeChanged(
            node.name, connected=node.agent and not node.dead, lost=not node.ready, out_of_service=node.dead
        )

    def delete(self) -> None:
        """Have the API server answer a deletion of the round."""
        if not self.deletions:
            return
        effect = self.deletions.pop(0)
        pod = self.pods.get(effect.pod.uid)
        if pod is not None and effect.force:
            assert self.nodes[pod.member.node].dead, "deleted by force where it may run"
            self._remove(pod)
        elif pod is not None:
            self.mark_deleted(pod)

    def mark_deleted(self, pod: Pod) -> None:
        if pod.member.deleting:
            return
        self._seen(pod, deleting=True)
        if self.early_replacement and pod.member.owner is not None:
            self._come_anew(pod.member)

    def end_deleted(self, pod: Pod) -> None:
        """Have kubelet kill the processes of a deleted pod."""
        node = self.nodes.get(pod.member.node)
        if pod.member.deleting and (node is None or (node.ready and not node.dead)):
            self._remove(pod)

    def _remove(self, pod: Pod) -> None:
        del self.pods[pod.uid]
        self._say(PodGone(pod.uid))
        alone = all(other.member.slot != pod.member.slot for other in self.pods.values())
        dropped = self.trouble and self.rolls.random() < 0.1
        if dropped:
            self._say(MemberDropped(pod.uid))  # its owner may have been read before it was changed back
        if alone and pod.member.owner is not None and not pod.completed and not (dropped and self.rolls.random() < 0.5):
            self._come_anew(pod.member)

    def _come_anew(self, before: Member) -> None:
        index = int(before.slot.rpartition("/")[2])
        self.generation += 1
        member = builders.member(index, generation=self.generation, node=NodeName(""), phase=PodPhase.PENDING)
        member = replace(member, annotations=before.annotations)
        self.pods[member.pod.uid] = Pod(member, old_runs=False, started=False)
        self._say(MemberSeen(member))

    def schedule(self, pod: Pod) -> None:
        able = [node.name for node in self.nodes.values() if node.ready and not node.dead]
        if not pod.member.node and not pod.member.deleting and able:
            self._seen(pod, node=self.rolls.choice(able))

    def start(self, pod: Pod) -> None:
        """Have kubelet start a replacement; its process is held at once if that was ordered before."""
        if pod.started or not pod.member.node or pod.member.deleting or not self.nodes[pod.member.node].ready:
            return
        pod.started, pod.ended_at = True, self.now
        known = pod.known
        if known is not None and known.phase is StepPhase.STOPPING and not known.released:
            pod.new, known.phase = New.HELD, StepPhase.STOPPED
        else:
            pod.new = New.RUNS
            pod.ran_unheld = "" if known is not None and known.released else "not reported"
            if known is not None and known.phase is StepPhase.STOPPING:
                known.phase = StepPhase.RUNNING
        self._seen(pod, phase=PodPhase.RUNNING)
        if self._agent_of(pod):
            self._tell_of(pod)

    def complete(self, pod: Pod) -> None:
        if pod.old_runs and pod.known is None and not pod.member.deleting:
            pod.old_runs, pod.completed = False, True
            self._seen(pod, phase=PodPhase.SUCCEEDED)

    def lose_node(self, node: Node) -> None:
        node.ready = False
        node.agent = node.agent and self.rolls.random() < 0.5
        self._say(self._node_reported(node))

    def mend_node(self, node: Node) -> None:
        """Bring the node back, or have an administrator switch it off and set the taint."""
        if node.ready or node.dead:
            return
        if self.rolls.random() < 0.5:
            node.ready = node.agent = True
            self._connect(node)
            return
        node.dead, node.agent = True, False
        for pod in self.pods.values():
            if pod.member.node == node.name:
                pod.old_runs, pod.new = False, New.NONE
        self._say(self._node_reported(node))

    def collect(self) -> None:
        """Have the pod garbage collector remove pods being deleted from nodes that are out of service."""
        for pod in list(self.pods.values()):
            if pod.member.deleting and pod.member.node and self.nodes[pod.member.node].dead:
                self._remove(pod)

    def _seen(self, pod: Pod, **changes: object) -> None:
        pod.member = replace(pod.member, **changes)  # type: ignore[arg-type]
        self._say(MemberSeen(pod.member))

    # ---- time, faults, users ----

    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        self.look_at_holds()
        if self.hub is not None and self.wake_at is not None and self.now >= self.wake_at:
            self.tell()

    def fault(self, pod: Pod) -> None:
        """Cause a fault in a pod; its agent reports it for as long as it lives."""
        if not self._agent_of(pod) or not (pod.old_runs or pod.new is not New.NONE):
            return
        self.faulty.add(pod.uid)
        fault = FaultReported(pod.uid, "Xid79", "fallen off the bus", self.rolls.random() < 0.3, self.now)
        pod.reported[fault] = False
        self._say(fault)

    def grow(self) -> None:
        """Add a member to the gang."""
        self.size += 1
        member = builders.member(self.size - 1, node=NodeName(""), phase=PodPhase.PENDING, created_at=self.now)
        self.pods[member.pod.uid] = Pod(member, old_runs=False, started=False)
        self._say(MemberSeen(member))

    def cancel(self) -> None:
        self._say(Cancelled("its Restart object was deleted"))

    # ---- invariants ----

    def look(self) -> None:
        """Check that no new process runs next to an old one, unless self-released or before the hold order."""
        if self.rolling is not None:
            held = [pod.uid for pod in self.pods.values() if pod.new is New.HELD and pod.uid not in self.faulty]
            assert self.epoch > 1 or len(held) <= self.rolling, f"{held} are away: more than was allowed"
            return
        if not any(pod.old_runs for pod in self.pods.values()):
            return
        beside = [pod for pod in self.pods.values() if pod.new is New.RUNS]
        for pod in beside:
            assert pod.ran_unheld, f"{pod.uid} runs while an old one lives"
            self.excused.add(pod.uid)

    def dropped(self) -> list[FaultReported]:
        """Return the faults that the round has taken, but neither handled nor passed on to the next decision.

        None if it failed before any release: its record has the reason.
        """
        if self.outcome is None or self.outcome.stopped is None:
            return []
        return [each.fault for each in self.answered if not self._is_answered_for(each, self.outcome)]

    def _is_answered_for(self, answered: Answered, ended: Round) -> bool:
        fault, pod = answered.fault, self.pods.get(answered.fault.pod)
        if fault in ended.again or pod is None or pod.member.deleting or pod.completed:
            return True
        node = self.nodes.get(pod.member.node)
        timed_out = pod.known is not None and pod.known.reason == "HoldTimeout"  # the hub may receive it too late
        if answered.unheard or timed_out or node is None or node.dead:
            return True
        not_back = {each.member for each in outcome.failures(ended)}
        if answered.stood in BEFORE_RELEASE and pod.member.pod.name in not_back:
            return True
        assert fault.at is not None
        return pod.ended_at >= fault.at and not fault.needs_recreation


def _waits_for_start(pod: Pod) -> bool:
    """Return whether its old process is dead, and the new one has not been started yet."""
    known = pod.known
    return known is not None and (known.phase, known.reason) == (StepPhase.STOPPED, NOT_STARTED)


def check(state: Round) -> None:
    """Check the machine's own counts."""
    counted = dict.fromkeys(state.tally, 0)
    for one in state.members.values():
        counted[one.phase] = counted.get(one.phase, 0) + 1
    assert counted == dict(state.tally)
    assert state.blocking == sum(one.blocks for one in state.members.values())
    assert state.phase is not Phase.RELEASING or not state.blocking
    assert set(state.newest.values()) <= set(state.members)


def make(rolls: random.Random, *, healthy: bool = False) -> Simulation:
    """Return a random environment with a matching decision; ``healthy``: all run, and may be restarted in place."""
    size = rolls.randint(1, 5)
    early = rolls.random() < 0.3
    pods: dict[PodUid, Pod] = {}
    recreate: set[str] = set()
    for index in range(size):
        member = builders.member(
            index,
            node=NodeName(f"node-{rolls.randrange(size)}"),
            owner=builders.OWNER if rolls.random() < 0.9 else None,
            annotations=builders.OPTED_IN if healthy or rolls.random() < 0.95 else {},
        )
        pod = Pod(member)
        if not healthy and rolls.random() < 0.05:
            pod = Pod(replace(member, phase=PodPhase.PENDING), old_runs=False, started=False)
        elif not healthy and rolls.random() < 0.15:
            pod.refuses = rolls.choice(_REFUSALS)
        elif rolls.random() < 0.15 and member.owner is not None and member.annotations:
            recreate.add(member.slot)
        pods[pod.uid] = pod
    kind = Kind.IN_PLACE if not recreate else Kind.IN_PLACE_AND_RECREATE if len(recreate) < size else Kind.RECREATE_ALL
    decision = Decision(kind, Reason.MEMBER_FAILED, "", frozenset(recreate))
    nodes = {NodeName(f"node-{index}"): Node(NodeName(f"node-{index}")) for index in range(size + 1)}
    rolling = rolls.randint(1, 2) if rolls.random() < 0.15 else None
    return Simulation(rolls, pods, nodes, decision, early_replacement=early, rolling=rolling, size=size)


_REFUSALS = (
    (StepPhase.REFUSED, "NotOptedIn"),
    (StepPhase.REFUSED, "LeaderWorkerSetRecreatesGroup"),
    (StepPhase.REFUSED, "DeviceNotUsable"),
    (StepPhase.STUCK, "CannotKill"),
    (StepPhase.FAILED, "StartFailed"),
    (StepPhase.COMPLETED, ""),
)
