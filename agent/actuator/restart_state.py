"""Keep the state of a restart in progress: its last listing of containers, its time limit, and its errors."""

import asyncio
import contextlib
import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary
from kubemend.agent.restart import reservations, steps
from kubemend.common.pb.runtime.v1 import api_pb2


class TimeLimit:
    """The time limit of a restart, which is extended while the restart progresses. All times are in seconds."""

    def __init__(self) -> None:
        self._timeout: asyncio.Timeout | None = None
        self._each = 0.0
        self._latest = math.inf
        self._pauses = 0
        self._paused_at = 0.0

    def start(self, *, first: float, each: float, longest: float) -> asyncio.Timeout:
        """Return the context that ends after ``first``.

        An extension gives it ``each`` from then on; ``longest`` bounds it.
        """
        self._each = each
        self._latest = asyncio.get_running_loop().time() + longest
        self._timeout = asyncio.timeout(first)
        return self._timeout

    def extend(self) -> None:
        """Extend the limit, because something has progressed. Nothing happens if it has not started or has passed."""
        timeout, due = self._timeout, asyncio.get_running_loop().time() + self._each
        if timeout is not None and not timeout.expired() and (before := timeout.when()) is not None:
            timeout.reschedule(max(before, min(due, self._latest)))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Do not count the time of the block, which has a limit of its own; its end is progress. Blocks may overlap."""
        timeout, clock = self._timeout, asyncio.get_running_loop().time
        if timeout is None or timeout.expired():
            yield
            return
        if not self._pauses:
            self._paused_at = clock()
            timeout.reschedule(None)
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if not self._pauses:
                self._latest += clock() - self._paused_at
                timeout.reschedule(min(clock() + self._each, self._latest))


@dataclass(slots=True, kw_only=True)
class RestartState:
    """The state of one restart in progress.

    ``seen`` is the last listing, updated by the restart's own calls. ``fresh``: no call has changed anything since the
    listing; only a fresh listing proves the end. ``unanswered``: a call may have taken effect that ``seen`` does not
    show, because its answer is missing; the next listing shows it. ``taken`` are names that could not be reserved,
    because another container has them. ``resources`` are those that old containers had at their end, by name, if that
    took long: kubelet may have resized them since the plan was made.

    ``resolution``: whether the restart is completed or undone. ``last_error`` is the last failure and ``hook_failures``
    are those of preStop hooks, by container name, for people. ``phases`` are the seconds of each phase, ``limit`` is
    the time limit.
    """

    seen: tuple[ContainerSummary, ...] = ()
    fresh: bool = True
    unanswered: bool = False
    taken: frozenset[reservations.Name] = frozenset()
    resources: dict[str, api_pb2.LinuxContainerResources] = field(default_factory=dict)
    resolution: steps.Resolution = steps.Resolution.FINISH
    last_error: str = ""
    hook_failures: dict[str, str] = field(default_factory=dict)
    phases: dict[str, float] = field(default_factory=dict)
    limit: TimeLimit = field(default_factory=TimeLimit)

    def listed(self, found: tuple[ContainerSummary, ...]) -> None:
        """Record a listing."""
        self.seen = found
        self.fresh = True
        self.unanswered = False

    def created(self, container: ContainerSummary) -> None:
        """Record the effect of a creation."""
        self.seen = (*self.seen, container)
        self.fresh = False

    def mark(self, container_id: ContainerId, state: ContainerState) -> None:
        """Record the effect of a start or a stop."""
        self.seen = tuple(replace(view, state=state) if view.id == container_id else view for view in self.seen)
        self.fresh = False

    def removed(self, container_id: ContainerId) -> None:
        """Record the effect of a removal."""
        self.seen = tuple(view for view in self.seen if view.id != container_id)
        self.fresh = False

    def find(self, container_id: ContainerId | None) -> ContainerSummary | None:
        """Return a container of the listing."""
        return next((view for view in self.seen if view.id == container_id), None)

    def add_phase_time(self, phase: str, *, since: float) -> None:
        """Add the time since ``since`` (of the loop's clock) to a phase."""
        self.add_phase_seconds(phase, asyncio.get_running_loop().time() - since)

    def add_phase_seconds(self, phase: str, seconds: float) -> None:
        """Add seconds to a phase; negative ones are time that counts as another phase."""
        self.phases[phase] = self.phases.get(phase, 0.0) + seconds
