"""Describe a request to restart a container."""

import math
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from kubemend.agent.actuator import progress
from kubemend.agent.clients.cri.convert import Admit, admit_all
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.workloads import ContainerRef
from kubemend.agent.restart import admission, overrides
from kubemend.agent.restarts.executor import RoundHooks
from kubemend.common.coordination import FaultKind


async def _not_withdrawn() -> str:
    return ""


@dataclass(frozen=True, slots=True)
class Request:
    """Request the restart of one container.

    - ``cause`` is read again while the request is on hold.
    - ``devices`` must answer after the restart; None: it is unknown which devices the container holds.
    - ``asked`` is set for a manual request.
    - ``followed`` receives the progress.
    - ``withdrawn`` returns why the cause no longer holds, or "". It is called while the request is on hold and right
      before the first step.
    - ``lapsed`` returns the same, but is called only after a budget has put the request on hold: in the meantime the
      target may have ended by itself, and its program may have replaced it.
    - ``kind`` is the kind of the fault that led to the request.
    - ``round_hooks`` are set for a request of a gang's round.
    - ``gang_answered``: the hub has answered already, or need not be asked.
    - ``known_at`` is when the scheduler received it (Unix time).
    - ``admit`` admits the configs that the restart keeps; set by the scheduler.
    """

    target: ContainerRef
    cause: Callable[[], admission.Cause]
    devices: frozenset[DeviceId] | None
    asked: overrides.RestartOverrides | None = None
    followed: progress.Progress = progress.NO_FOLLOWER
    withdrawn: Callable[[], Awaitable[str]] = _not_withdrawn
    lapsed: Callable[[], Awaitable[str]] = _not_withdrawn
    was_postponed: bool = False
    kind: FaultKind = FaultKind.OTHER
    round_hooks: RoundHooks | None = None
    gang_answered: bool = False
    known_at: float = math.inf
    admit: Admit = admit_all

    async def why_gone(self) -> str:
        """Return why the cause no longer holds; "" while it does."""
        return await self.withdrawn() or (await self.lapsed() if self.was_postponed else "")
