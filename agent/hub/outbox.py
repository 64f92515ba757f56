"""Queue the messages to the hub. Only the newest of each kind is kept, so a slow reader costs no memory."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from kubemend.agent.hub import wire
from kubemend.agent.hub.member_states import Change, Member
from kubemend.agent.hub.open_faults import OpenFaults
from kubemend.agent.model.devices import GpuUuid
from kubemend.agent.model.loads import Load
from kubemend.agent.model.rounds import Standing
from kubemend.agent.model.workloads import PodUid
from kubemend.common import contained
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb

MOST: Final = 1024
"""Limit of queued pods and of queued results. Beyond it one Hello, which contains all of them, is shorter."""
SETTLING: Final = 0.5
"""Seconds for which a pod's change waits for further ones: in a round a member changes ten times, and the controller
receives the results of its steps anyway."""

Loads = Mapping[tuple[PodUid, GpuUuid], Load]


class Members(Protocol):
    """The members on this node (``agent.hub.members.Members``)."""

    def all(self) -> tuple[Member, ...]: ...
    def member(self, uid: PodUid) -> Member | None: ...
    def change(self, uid: PodUid, *, told: Member | None) -> Change | None: ...


@dataclass(frozen=True, slots=True)
class HelloInfo:
    """Fields of a Hello besides its members (coordination/v1 ``Hello``). ``epoch`` and ``standings`` are current."""

    node: str
    instance: str
    version: str
    can_hold: bool
    epoch: Callable[[], int]
    standings: Callable[[], tuple[Standing, ...]]


class Outbox:
    """Queue messages.

    Without a stream only open faults are queued: the Hello of the next stream contains everything else. A pod's change
    is delayed by ``settling`` seconds, nothing else is.
    """

    def __init__(
        self, *, introduction: HelloInfo, members: Members, faults: OpenFaults, settling: float = SETTLING
    ) -> None:
        self._introduction = introduction
        self._members = members
        self._faults = faults
        self._settling = settling
        self._settle_timer: asyncio.TimerHandle | None = None
        self._unsettled: dict[PodUid, None] = {}
        self._sent: dict[PodUid, Member] = {}
        self._changed: dict[PodUid, None] = {}
        self._results: dict[tuple[str, PodUid], Standing] = {}
        self._samples: Loads | None = None
        self._hello_due = self._open = self._leaving = False
        self._wake_event = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Return whether there is a stream."""
        return self._open

    def open(self) -> None:
        """Start a stream with a Hello."""
        self._open = True
        self.say_hello()

    def close(self) -> None:
        """Drop everything queued, because the stream has ended."""
        self._open = False
        self._forget()

    def say_hello(self) -> None:
        """Send the full state again."""
        self._hello_due = True
        self.wake()

    def changed(self, uid: PodUid) -> None:
        """Send a pod's change, if any, after the settling time."""
        if self._open:
            self._unsettled[uid] = None
            if self._settle_timer is None:
                self._settle_timer = asyncio.get_running_loop().call_later(self._settling, self.settle)

    def settle(self) -> None:
        """Send all changes now."""
        self._changed |= self._unsettled
        self._cancel_settling()
        self._bounded()

    def result(self, standing: Standing) -> None:
        """Send a member's state in its round. The change of its containers follows later."""
        if self._open:
            self._results[standing.round, standing.pod.uid] = standing
            self.changed(standing.pod.uid)
            self._bounded()

    def samples(self, loads: Loads) -> None:
        """Send device samples, unless newer samples replace them first."""
        if self._open:
            self._samples = loads
            self.wake()

    def leave(self) -> None:
        """Make ``next`` return None as soon as the queue is empty."""
        self._leaving = True
        self.settle()
        self.wake()

    def wake(self) -> None:
        """Check again for a message to send."""
        self._wake_event.set()

    async def next(self) -> pb.AgentMessage | None:
        """Wait for a message and return it, the most urgent first. None: the queue is empty, and the agent leaves."""
        while (message := self._next_message()) is None and not self._leaving:
            self._wake_event.clear()
            await self._wake_event.wait()
        return message

    def _next_message(self) -> pb.AgentMessage | None:
        while True:
            with contained.within(contained.Part.HUB, "a message to the hub"):  # it is not picked again
                return self._pick()

    def _pick(self) -> pb.AgentMessage | None:
        if self._hello_due:
            return self._hello()
        if (fault := self._faults.next()) is not None:
            return wire.fault(fault.fault, age=fault.age, alone=fault.alone)
        if self._results:
            key = next(iter(self._results))
            return pb.AgentMessage(result=wire.result(self._results.pop(key)))
        return self._next_change() or self._next_samples()

    def _hello(self) -> pb.AgentMessage:
        """Return a Hello. It includes what was queued."""
        self._hello_due = False
        about, members = self._introduction, self._members.all()
        self._forget()
        wire_members = []
        for member in members:
            with contained.within(contained.Part.MEMBER, member.pod):
                wire_members.append(wire.member(member))
        self._sent = {member.pod.uid: member for member in members}
        self._faults.say_again()
        return pb.AgentMessage(
            hello=pb.Hello(
                protocol=wire.PROTOCOL,
                node=about.node,
                instance=about.instance,
                agent_version=about.version,
                epoch=about.epoch(),
                members=wire_members,
                results=[wire.result(each) for each in about.standings()],
                can_hold=about.can_hold,
            )
        )

    def _next_change(self) -> pb.AgentMessage | None:
        while self._changed:
            uid = next(iter(self._changed))
            del self._changed[uid]
            with contained.within(contained.Part.MEMBER, uid):
                change = self._members.change(uid, told=self._sent.get(uid))
                if isinstance(change, Member):
                    self._sent[uid] = change
                elif change is not None:
                    del self._sent[uid]
                if change is not None:
                    return wire.change(change)
        return None

    def _next_samples(self) -> pb.AgentMessage | None:
        if self._samples is None:
            return None
        loads, self._samples = self._samples, None
        return pb.AgentMessage(samples=wire.samples(loads))

    def _bounded(self) -> None:
        if max(len(self._changed), len(self._results)) > MOST:
            self._forget()
            self._hello_due = True
        self.wake()

    def _cancel_settling(self) -> None:
        self._unsettled = {}
        if self._settle_timer is not None:
            self._settle_timer.cancel()
            self._settle_timer = None

    def _forget(self) -> None:
        self._cancel_settling()
        self._changed.clear()
        self._results.clear()
        self._samples = None
