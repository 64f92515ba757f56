"""Build a round's next state. A builder lives for one call of ``machine``; its input and output are frozen."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from kubemend.common.coordination import OrderKind
from kubemend.controller.gangs import members
from kubemend.controller.model.members import NodeName, PodUid
from kubemend.controller.model.rounds import Abort, Effect, FaultReported, Record, Recreate, Release, Stop
from kubemend.controller.rounds.states import MemberPhase, MemberState, Phase, Round

PHASE_TRANSITIONS: Final[Mapping[Phase, frozenset[Phase]]] = MappingProxyType(
    {
        Phase.STOPPING: frozenset({Phase.RELEASING, Phase.DONE, Phase.DEGRADED, Phase.FAILED}),
        Phase.RELEASING: frozenset({Phase.DONE, Phase.DEGRADED, Phase.FAILED}),
        Phase.DONE: frozenset(),
        Phase.DEGRADED: frozenset(),
        Phase.FAILED: frozenset(),
    }
)

_ENDS = frozenset({MemberPhase.COMPLETED, MemberPhase.GONE, MemberPhase.FAILED})

MEMBER_TRANSITIONS: Final[Mapping[MemberPhase, frozenset[MemberPhase]]] = MappingProxyType(
    {
        MemberPhase.WAITING: _ENDS
        | {MemberPhase.STOPPING, MemberPhase.STOPPED, MemberPhase.LEAVING, MemberPhase.RUNNING},
        # From STOPPING directly to RUNNING: a previous leader had released it, which was not known here.
        MemberPhase.STOPPING: _ENDS | {MemberPhase.STOPPED, MemberPhase.LEAVING, MemberPhase.RUNNING},
        MemberPhase.LEAVING: _ENDS,
        MemberPhase.JOINING: _ENDS
        | {MemberPhase.STOPPED, MemberPhase.LEAVING, MemberPhase.RELEASING, MemberPhase.RUNNING},
        MemberPhase.STOPPED: _ENDS | {MemberPhase.LEAVING, MemberPhase.RELEASING, MemberPhase.RUNNING},
        MemberPhase.RELEASING: _ENDS | {MemberPhase.RUNNING},
        MemberPhase.RUNNING: _ENDS,
        MemberPhase.COMPLETED: frozenset(),
        MemberPhase.GONE: frozenset(),
        MemberPhase.FAILED: frozenset(),
    }
)


LEFT_OUT: Final = "LeftOut"
"""Reason of an Abort: the others are released, and this one is not among them."""


class RoundBuilder:
    """The members and counts of a round, changed together, and the effects."""

    def __init__(self, state: Round, *, now: float) -> None:
        self.state = state
        self.now = now
        self.phase = state.phase
        self.members = state.members.copy()
        self.newest = state.newest.copy()
        self.awaited = dict(state.awaited)
        self.replaced = set(state.replaced)
        self.connected = set(state.connected)
        self.dead = set(state.dead)
        self.lost = set(state.lost)
        self.tally = dict(state.tally)
        self.blocking = state.blocking
        self.check_at = state.check_at
        self.renewed_at = state.renewed_at
        self.resend_at = state.resend_at
        self.old_dead = state.old_dead
        self.stopped = state.stopped
        self.ended = state.ended
        self.reason, self.detail = state.reason, state.detail
        self.again, self.again_at = list(state.again), state.again_at
        self.proven = False
        self._stops: defaultdict[NodeName, dict[PodUid, OrderKind]] = defaultdict(dict)
        self._releases: defaultdict[NodeName, set[PodUid]] = defaultdict(set)
        self._aborts: defaultdict[NodeName, set[PodUid]] = defaultdict(set)
        self._recreates: dict[PodUid, Recreate] = {}
        self._by_node: dict[NodeName, list[PodUid]] = {}  # computed on demand

    @property
    def elapsed(self) -> float:
        """Return the seconds since the round began."""
        return max(self.now - self.state.started_at, 0.0)

    @property
    def waited(self) -> float:
        """Return the seconds that its deadlines count."""
        return self.now - self.state.counted_from

    @property
    def awaits_agents(self) -> bool:
        """Return whether agents may still be connecting to this leader, which has resumed the round."""
        return self.state.resumed and self.waited < self.state.limits.redial

    def count(self, *phases: MemberPhase) -> int:
        """Return how many pods are in these phases."""
        return sum(self.tally.get(phase, 0) for phase in phases)

    def on_node(self, node: NodeName) -> tuple[PodUid, ...]:
        """Return the pods on a node. Thousands of nodes may be queried at once, so all are indexed together."""
        if not self._by_node:
            for uid, one in self.members.items():
                self._by_node.setdefault(one.member.node, []).append(uid)
        return tuple(self._by_node.get(node, ()))

    def add(self, one: MemberState) -> None:
        """Add a pod; it is the one that counts for its slot from now on."""
        uid = one.member.pod.uid
        assert uid not in self.members, f"{one.member.pod} is in the round already"
        self.members[uid] = one
        self._by_node.clear()
        self.newest[one.member.slot] = uid
        self.awaited.pop(one.member.slot, None)
        self._counted(one, 1)

    def vacate(self, slot: str) -> None:
        """Have no pod count for a slot any more: a pod with another name has taken its place."""
        self.newest.pop(slot)
        self.awaited.pop(slot, None)

    def note_dead(self) -> None:
        """Record since when no old container runs; a member may still be found to have one."""
        if self.blocking:
            self.old_dead = None
        elif self.old_dead is None:
            self.old_dead = self.elapsed

    def forget(self, uid: PodUid) -> None:
        """Remove a pod from the round."""
        one = self.members.pop(uid)
        self._by_node.clear()
        if self.newest.get(one.member.slot) == uid:
            self.newest.pop(one.member.slot)
        self._counted(one, -1)

    def change(self, uid: PodUid, **changes: Any) -> MemberState:
        """Change a pod's state; its phase only as ``MEMBER_TRANSITIONS`` allows."""
        before = self.members[uid]
        phase = changes.get("phase", before.phase)
        if phase is not before.phase:
            assert phase in MEMBER_TRANSITIONS[before.phase], f"{before.member.pod}: {before.phase} to {phase}"
            changes.setdefault("since", self.now)
            self.tally[before.phase] -= 1
            self.tally[phase] = self.tally.get(phase, 0) + 1
        after = before._replace(**changes)
        self.members[uid] = after
        if "member" in changes and after.member.node != before.member.node:
            self._by_node.clear()
        self.blocking += after.blocks - before.blocks
        return after

    def enter(self, phase: Phase) -> None:
        """Enter a phase, as ``PHASE_TRANSITIONS`` allows. Nothing is released while an old container may run."""
        assert phase in PHASE_TRANSITIONS[self.phase], f"{self.state.ref.id}: {self.phase} to {phase}"
        assert phase is not Phase.RELEASING or not self.blocking, (
            f"{self.state.ref.id}: {self.blocking} are not stopped"
        )
        self.phase = phase

    def stop(self, uid: PodUid) -> None:
        """Send or repeat a pod's order, which renews its hold; nothing is sent before it has a node."""
        one = self.members[uid]
        if one.order is not None and one.member.node:
            self._stops[one.member.node][uid] = one.order

    def release(self, uid: PodUid) -> None:
        """Have a pod's agent release it."""
        one = self.members[uid]
        assert self.state.rolling or not self.blocking, f"{one.member.pod} would run next to old ones"
        if one.member.node:
            self._stops[one.member.node].pop(uid, None)
            self._releases[one.member.node].add(uid)

    def abort(self, uid: PodUid) -> None:
        """Have a pod's agent drop the round."""
        one = self.members[uid]
        if one.order is not None and one.member.node:
            self._stops[one.member.node].pop(uid, None)
            self._aborts[one.member.node].add(uid)

    def recreate(self, uid: PodUid) -> None:
        """Request a pod's deletion; a repetition is identical."""
        one = self.members[uid]
        assert members.bar(one.member, namespaces=self.state.namespaces) is None, f"{one.member.pod} must stay"
        if one.member.node:
            self._stops[one.member.node].pop(uid, None)
        self._recreates[uid] = Recreate(
            one.member.pod,
            reason=one.reason,
            message=one.detail,
            device_failure=one.device,
            force=one.member.node in self.dead,
        )

    def remember(self, fault: FaultReported) -> None:
        """Record a fault to decide about right after this round; from the first such fault on the round ends sooner."""
        if not self.again:
            self.again_at = self.now
        self.again.append(fault)

    def effects(self) -> tuple[Effect, ...]:
        """Return the effects, in an order that is safe."""
        reason = self.reason if self.phase is Phase.FAILED else LEFT_OUT
        found: list[Effect] = [Stop(node, MappingProxyType(pods)) for node, pods in self._stops.items() if pods]
        found += self._recreates.values()
        found += [Release(node, frozenset(pods)) for node, pods in self._releases.items() if pods]
        found += [Abort(node, frozenset(pods), reason) for node, pods in self._aborts.items() if pods]
        if self.phase.is_final and not self.state.phase.is_final:
            found.append(Record())
        return tuple(found)

    def frozen(self) -> Round:
        """Return the round in its current state."""
        return replace(
            self.state,
            phase=self.phase,
            members=MappingProxyType(self.members),
            newest=MappingProxyType(self.newest),
            awaited=MappingProxyType(self.awaited),
            replaced=frozenset(self.replaced),
            connected=frozenset(self.connected),
            dead=frozenset(self.dead),
            lost=frozenset(self.lost),
            tally=MappingProxyType(self.tally),
            blocking=self.blocking,
            check_at=self.check_at,
            renewed_at=self.renewed_at,
            resend_at=self.resend_at,
            old_dead=self.old_dead,
            stopped=self.stopped,
            ended=self.ended,
            reason=self.reason,
            detail=self.detail,
            again=tuple(self.again),
            again_at=self.again_at,
        )

    def _counted(self, one: MemberState, by: int) -> None:
        self.tally[one.phase] = self.tally.get(one.phase, 0) + by
        self.blocking += by * one.blocks
