"""Wait for the devices of a restart: before a start at the release gate, after a kill while the driver frees memory."""

import asyncio

from kubemend.agent.actuator import listings, progress
from kubemend.agent.actuator.runtime_ops import RuntimeOps
from kubemend.agent.clients.cri.events import ContainerEvent
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import steps
from kubemend.common import aio

DEVICE_PHASE = "device"
"""The phase in which a successor waits for the old process to leave its devices."""

FREEING_PHASE = "free"
"""The phase in which the driver frees the device memory of a killed container, from when that was noticed."""

PROOF_PHASE = "proof"
"""The phase in which a successor waits for the proof of its devices."""

_GIB = 1 << 30
_LISTING_VALID = 0.05  # seconds for which a start may wait and still rely on the previous listing
_SHORTEST_PHASE = 0.001  # seconds at a gate from which on they are a phase of their own


class DeviceWaits:
    """The waits of one restart for its devices. While they progress, the time limit is extended."""

    def __init__(self, ops: RuntimeOps) -> None:
        self._ops = ops
        self._gates = ops.tools.gates

    async def is_open(self) -> bool:
        """Return whether a start need not wait, after a moment in which the gate may open."""
        begun = asyncio.get_running_loop().time()
        opens = await self._gates.opens(self._ops.intent.id, timeout=_LISTING_VALID)
        self.count(since=begun)
        return opens

    async def wait_to_open(self) -> bool:
        """Wait for the gate until the next listing is due; return whether it is open."""
        return await self._gates.opens(self._ops.intent.id, timeout=listings.RELIST_SECONDS)

    async def wait_for_change(self, changes: "asyncio.Queue[ContainerEvent]") -> None:
        """Wait for the gate, or for a change: kubelet does not wait, and its own container takes precedence."""
        await aio.first_of(self._gates.opens(self._ops.intent.id), listings.next_change(changes))
        self.check()

    def check(self) -> None:
        """Report the processes that a gate still waits for. Raises the CriError of a gate that will not open."""
        restart = self._ops.intent.id
        self._gates.raise_if_shut(restart)
        self.report_left(self._gates.last_left(restart), name=self._ops.intent.target.name)
        self._ops.state.limit.extend()  # gates have their own timeout

    def count(self, *, since: float, within: steps.StepKind | None = None) -> None:
        """Count a wait as the phases ``device`` and ``proof``, and not as the step ``within`` which it was made."""
        state = self._ops.state
        waited = asyncio.get_running_loop().time() - since
        if waited < _SHORTEST_PHASE:
            return
        proved = min(waited, self._gates.proof_seconds(self._ops.intent.id, since=since))
        for name, seconds in ((DEVICE_PHASE, waited - proved), (PROOF_PHASE, proved)):
            if seconds >= _SHORTEST_PHASE:
                state.add_phase_seconds(name, seconds)
        if within is not None:
            state.add_phase_seconds(within.value, -waited)

    def report_left(self, left: int, *, name: str) -> None:
        """Report the device memory that a killed container still has, in bytes, unless it has none."""
        if not left:
            return
        if self._ops.holding is not None:
            self._ops.holding.doing, self._ops.holding.detail = progress.DRIVER_FREEING, f"{left / _GIB:.1f} GiB left"
        self._ops.followed.notify(progress.Freeing(name, left))

    async def follow_freeing(self, container_id: ContainerId, *, within: steps.StepKind) -> None:
        """Report the device memory that a killed container still has, until cancelled; count the time as ``free``.

        After SIGKILL nothing of the program runs: the driver frees its memory, which takes an H100 240 ms for each GiB
        that is pinned. That takes as long as it takes, and while memory is freed the time limit is extended.
        """
        ops, interval = self._ops, self._ops.tools.poll_intervals.memory
        await asyncio.sleep(ops.intent.grace_seconds + interval)
        least: int | None = None
        since: float | None = None
        try:
            while left := await self._gates.memory_left(ops.intent.id):
                since = asyncio.get_running_loop().time() if since is None else since
                if least is None or left < least:
                    least = left
                    ops.state.limit.extend()
                self.report_left(left, name=ops.name_of(container_id))
                await asyncio.sleep(interval)
        finally:
            if since is not None:
                freed = asyncio.get_running_loop().time() - since
                ops.state.add_phase_seconds(FREEING_PHASE, freed)
                ops.state.add_phase_seconds(within.value, -freed)
