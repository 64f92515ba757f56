"""Queue the messages to the hub. Only the newest of each kind is kept, so a slow reader costs no memory."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from kubemend.agent.hub import wire
from kubemend.agent.hub.open_faults import OpenFaults
from kubemend.agent.model.devices import DeviceId, Load
from kubemend.agent.model.rounds import StepResult
from kubemend.agent.model.workloads import PodUid
from kubemend.common import contained
from kubemend.common.coordination import PROTOCOL
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb

MOST: Final = 1024
"""Limit of queued results. Beyond it one Hello, which contains all of them, is shorter."""

Loads = Mapping[tuple[PodUid, DeviceId], Load]


@dataclass(frozen=True, slots=True)
class HelloInfo:
    """Fields of a Hello (coordination/v1). ``epoch`` and ``step_results`` return the current ones."""

    node: str
    epoch: Callable[[], int]
    step_results: Callable[[], tuple[StepResult, ...]]


class Outbox:
    """Queue messages.

    Without a stream only open faults are queued: the Hello of the next stream contains everything else.
    """

    def __init__(self, *, introduction: HelloInfo, faults: OpenFaults) -> None:
        self._introduction = introduction
        self._faults = faults
        self._results: dict[tuple[str, PodUid], StepResult] = {}
        self._samples: Loads | None = None
        self._hello_due = self._open = self._leaving = False
        self._wake_event = faults.added

    @property
    def is_open(self) -> bool:
        """Return whether there is a stream."""
        return self._open

    def open(self) -> None:
        """Start a stream with a Hello."""
        self._open = True
        self.send_hello()

    def close(self) -> None:
        """Drop everything queued, because the stream has ended."""
        self._open = False
        self._forget()

    def send_hello(self) -> None:
        """Send the full state again."""
        self._hello_due = True
        self.wake()

    def result(self, step_result: StepResult) -> None:
        """Send a member's state in its round."""
        if self._open:
            self._results[step_result.round, step_result.pod.uid] = step_result
            self._bounded()

    def samples(self, loads: Loads) -> None:
        """Send device samples, unless newer samples replace them first."""
        if self._open:
            self._samples = loads
            self.wake()

    def leave(self) -> None:
        """Make ``next`` return None as soon as the queue is empty."""
        self._leaving = True
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
        return self._next_samples()

    def _hello(self) -> pb.AgentMessage:
        """Return a Hello, and drop the queued messages that it includes."""
        self._hello_due = False
        about = self._introduction
        self._forget()
        self._faults.report_again()
        return pb.AgentMessage(
            hello=pb.Hello(
                protocol=PROTOCOL,
                node=about.node,
                epoch=about.epoch(),
                results=[wire.result(each) for each in about.step_results()],
            )
        )

    def _next_samples(self) -> pb.AgentMessage | None:
        if self._samples is None:
            return None
        loads, self._samples = self._samples, None
        return pb.AgentMessage(samples=wire.samples(loads))

    def _bounded(self) -> None:
        if len(self._results) > MOST:
            self._forget()
            self._hello_due = True
        self.wake()

    def _forget(self) -> None:
        self._results.clear()
        self._samples = None
