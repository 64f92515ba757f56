"""What is still to be said to the hub. The newest of each thing counts, so a slow reader costs no memory."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

from agent.coordination import wire
from agent.coordination.faults import OpenFaults
from agent.coordination.membership import Change, Member
from agent.model.devices import GpuUuid
from agent.model.loads import Load
from agent.model.rounds import Standing
from agent.model.workloads import PodUid
from common import contained
from common.pb.coordination.v1 import coordination_pb2 as pb

MOST: Final = 1024
"""Pods, and results, that may wait to be told. With more a Hello, which tells all, is the shorter way."""
SETTLING: Final = 0.5
"""Seconds for which a pod's change waits for those that come with it: in a round a member changes ten times, and the
controller is told of its steps anyway."""

Loads = Mapping[tuple[PodUid, GpuUuid], Load]


class Members(Protocol):
    """The members on this node (``agent.coordination.members.Members``)."""

    def all(self) -> tuple[Member, ...]: ...
    def member(self, uid: PodUid) -> Member | None: ...
    def change(self, uid: PodUid, *, told: Member | None) -> Change | None: ...


@dataclass(frozen=True, slots=True)
class Introduction:
    """What a Hello says besides its members (coordination/v1 ``Hello``); ``epoch`` and ``standings`` are of now."""

    node: str
    instance: str
    version: str
    can_hold: bool
    epoch: Callable[[], int]
    standings: Callable[[], tuple[Standing, ...]]


class Outbox:
    """What waits. Only open faults do while there is no stream: the Hello of the next one tells all else.

    A change of a pod waits for ``settling`` seconds, nothing else does.
    """

    def __init__(
        self, *, introduction: Introduction, members: Members, faults: OpenFaults, settling: float = SETTLING
    ) -> None:
        self._introduction = introduction
        self._members = members
        self._faults = faults
        self._settling = settling
        self._settles: asyncio.TimerHandle | None = None
        self._unsettled: dict[PodUid, None] = {}
        self._told: dict[PodUid, Member] = {}
        self._changed: dict[PodUid, None] = {}
        self._results: dict[tuple[str, PodUid], Standing] = {}
        self._samples: Loads | None = None
        self._hello_due = self._open = self._leaving = False
        self._something = asyncio.Event()

    @property
    def is_open(self) -> bool:
        """Whether there is a stream."""
        return self._open

    def open(self) -> None:
        """Begin with a Hello: there is a stream."""
        self._open = True
        self.say_hello()

    def close(self) -> None:
        """Keep nothing: the stream has ended."""
        self._open = False
        self._forget()

    def say_hello(self) -> None:
        """Tell all anew."""
        self._hello_due = True
        self.wake()

    def changed(self, uid: PodUid) -> None:
        """Tell how a pod looks, if it looks different, when that has settled."""
        if self._open:
            self._unsettled[uid] = None
            if self._settles is None:
                self._settles = asyncio.get_running_loop().call_later(self._settling, self.settle)

    def settle(self) -> None:
        """Tell of all changes now."""
        self._changed |= self._unsettled
        self._stay_settled()
        self._bounded()

    def result(self, standing: Standing) -> None:
        """Tell where a member stands in its round; its containers will look different, too."""
        if self._open:
            self._results[standing.round, standing.pod.uid] = standing
            self.changed(standing.pod.uid)
            self._bounded()

    def samples(self, loads: Loads) -> None:
        """Tell how devices do, unless later samples come first."""
        if self._open:
            self._samples = loads
            self.wake()

    def leave(self) -> None:
        """Have ``next`` return None as soon as nothing is left."""
        self._leaving = True
        self.settle()
        self.wake()

    def wake(self) -> None:
        """Look again whether there is something to say."""
        self._something.set()

    async def next(self) -> pb.AgentMessage | None:
        """Wait for something to say and return it, the most urgent first. None: all has been said, and we leave."""
        while (message := self._picked()) is None and not self._leaving:
            self._something.clear()
            await self._something.wait()
        return message

    def _picked(self) -> pb.AgentMessage | None:
        while True:
            with contained.within(contained.Part.HUB, "something to be told"):  # it is not picked again
                return self._pick()

    def _pick(self) -> pb.AgentMessage | None:
        if self._hello_due:
            return self._hello()
        if (fault := self._faults.next()) is not None:
            return wire.fault(fault.fault, age=fault.age, alone=fault.alone)
        if self._results:
            key = next(iter(self._results))
            standing = self._results.pop(key)
            return pb.AgentMessage(result=wire.result(standing, self._members.member(standing.pod.uid)))
        return self._change() or self._sampled()

    def _hello(self) -> pb.AgentMessage:
        """Return a Hello. What was waiting is in it."""
        self._hello_due = False
        about, members = self._introduction, self._members.all()
        self._forget()
        worded = []
        for member in members:
            with contained.within(contained.Part.MEMBER, member.pod):
                worded.append(wire.member(member))
        self._told = {member.pod.uid: member for member in members}
        self._faults.say_again()
        return pb.AgentMessage(
            hello=pb.Hello(
                protocol=wire.PROTOCOL,
                node=about.node,
                instance=about.instance,
                agent_version=about.version,
                epoch=about.epoch(),
                members=worded,
                results=[wire.result(each, self._told.get(each.pod.uid)) for each in about.standings()],
                can_hold=about.can_hold,
            )
        )

    def _change(self) -> pb.AgentMessage | None:
        while self._changed:
            uid = next(iter(self._changed))
            del self._changed[uid]
            with contained.within(contained.Part.MEMBER, uid):
                change = self._members.change(uid, told=self._told.get(uid))
                if isinstance(change, Member):
                    self._told[uid] = change
                elif change is not None:
                    del self._told[uid]
                if change is not None:
                    return wire.change(change)
        return None

    def _sampled(self) -> pb.AgentMessage | None:
        if self._samples is None:
            return None
        loads, self._samples = self._samples, None
        return pb.AgentMessage(samples=wire.samples(loads))

    def _bounded(self) -> None:
        if max(len(self._changed), len(self._results)) > MOST:
            self._forget()
            self._hello_due = True
        self.wake()

    def _stay_settled(self) -> None:
        self._unsettled = {}
        if self._settles is not None:
            self._settles.cancel()
            self._settles = None

    def _forget(self) -> None:
        self._stay_settled()
        self._changed.clear()
        self._results.clear()
        self._samples = None
