"""Keep the old container of a swap frozen while its successor exists, and the successor on standby until it is dead.

The mechanisms are in ``agent.actuator.hold``; the order of a swap's calls is ``agent.actuator.swap_calls``'.
"""

import asyncio
import contextlib
from pathlib import Path

import structlog

from kubemend.agent.actuator import listings, turns
from kubemend.agent.actuator.hold.exec_hold import HoldError
from kubemend.agent.actuator.hold.standby import EndedError, Standby
from kubemend.agent.actuator.runtime_ops import RuntimeOps
from kubemend.agent.clients.cri.errors import NotFound
from kubemend.agent.model.workloads import ContainerId, ContainerState
from kubemend.agent.restart import intents, overlap, steps
from kubemend.agent.restart.successor_spec import SuccessorSpec
from kubemend.common import contained

log = structlog.get_logger(__name__)

_ENDED_SECONDS = 1.0
"""Seconds within which the processes of a killed container normally end. The runtime's own stop follows in any case."""
_SHOWN_SECONDS = 2.0
"""Seconds within which a runtime shows that a container's process is gone."""


class SwapStandby:
    """The old container of one swap, and the successor that is on standby next to it, if there is one.

    ``is_frozen``: the old one has been seen frozen, so that it ends by nothing but a kill. ``dying``: it could not be
    frozen, because its process is ending or has ended. ``end`` and ``thaw_unless_replaced`` must be called at the end,
    so that no container stays held or frozen.
    """

    def __init__(self, ops: RuntimeOps, intent: intents.Intent, *, spec: SuccessorSpec | None) -> None:
        self.is_frozen = False
        self.dying = False
        self._ops = ops
        self._state = ops.state
        self._standbys = ops.tools.standbys
        self._intent = intent
        self._overlap_request = spec.overlap_request if spec is not None else None
        self._not_overlapped: overlap.Obstacle | None = overlap.Obstacle.NO_STANDBY
        self._standby: Standby | None = None
        self._known_pid = spec.old_pid if spec is not None else None
        self._frozen_pid: int | None = None
        self._checked: Path | HoldError | None = None

    @property
    def is_on(self) -> bool:
        """Return whether a successor is on standby."""
        return self._standby is not None

    @property
    def held_process(self) -> int | None:
        """Return the process of a successor that is held at its first instruction; None if it may run."""
        return self._standby.hold.asker if self._standby is not None and self._standby.driver is None else None

    @property
    def old_runs(self) -> bool:
        """Return whether the old container runs, by the last listing."""
        old = self._state.find(self._intent.old)
        return old is not None and old.state is ContainerState.RUNNING

    async def freeze_old(self) -> bool:
        """Freeze the old container, and return whether it is frozen. Raises CriError.

        If that fails, it runs until it is stopped a moment later, or ends by itself.
        """
        if self._standbys is None:
            return False
        pid = self._known_pid or await self._old_pid()
        self.is_frozen = False
        try:
            self._standbys.freeze(pid, of=self._intent.old)
        except HoldError as error:
            self.dying = isinstance(error, EndedError)
            log.warning("restart.not_frozen", restart=self._intent.id, error=str(error))
            return False
        self._frozen_pid = pid
        self.is_frozen = await self._standbys.is_frozen(pid, of=self._intent.old)
        self.dying = not self.is_frozen
        return self.is_frozen

    async def old_has_ended(self, *, gone: bool) -> bool:
        """Return whether the old container has ended. If its process is ``gone``, wait until the runtime shows that."""
        async with turns.waiting(), self._ops.tools.events.subscribe(self._intent.target.pod.uid) as changes:
            await self._ops.refresh()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SHOWN_SECONDS):
                    while gone and self.old_runs:
                        await listings.next_change(changes)
                        await self._ops.refresh()
        return not self.old_runs

    async def check_frozen(self) -> None:
        """Find out whether a successor can be held next to the frozen old container; ``prepare`` raises the error."""
        assert self._standbys is not None
        try:
            self._checked = await self._standbys.check_old(self._frozen_pid, of=self._intent.old)
        except HoldError as error:
            self._checked = error

    async def prepare(self, successor: ContainerId) -> None:
        """Freeze the old container and prepare the start of its successor. Raises HoldError and CriError."""
        if self._standbys is None:
            raise HoldError("this node cannot hold containers")
        if self._standby is not None:
            self._standby.release()  # of a start that failed
        checked, self._checked = self._checked, None  # of this start only
        if isinstance(checked, HoldError):
            raise checked
        pid = self._frozen_pid if self._frozen_pid is not None else await self._old_pid()
        self._standby = await self._standbys.prepare(successor, old_pid=pid, old=self._intent.old, checked=checked)
        if self._ops.holding is not None:  # the freezer takes over the hold until the old one is dead
            await self._ops.holding.expect(successor, by=self._standby.hold)

    async def engage(self) -> None:
        """Verify that a started successor is held."""
        if self._standby is not None:
            await self._standby.engaged()

    async def let_import(self, successor: ContainerId) -> None:
        """Let a held successor import if the pod allows that and nothing forbids it."""
        standby = self._standby
        if standby is None or self._overlap_request is None or standby.driver is not None:
            return
        if self._overlap_forbidden() is not None:
            return
        assert self._standbys is not None
        with contained.within(contained.Part.CONTAINER, successor) as work:
            self._not_overlapped = await self._standbys.overlap(standby)
        if work.error is not None:
            self._not_overlapped = overlap.Obstacle.INTERNAL_ERROR

    async def kill_old(self) -> bool:
        """Kill the old container, next to which a successor waits; return whether all of its processes have ended."""
        assert self._standbys is not None
        assert self._standby is not None
        return await self._standbys.kill(self._standby, timeout=_ENDED_SECONDS)

    def end(self) -> None:
        """Release the successor, if one is on standby; if it is gone, thaw the old one. May be called again."""
        if self._standby is None:
            return
        standby, self._standby = self._standby, None
        ours = {view.state for view in self._state.seen if view.restart_id == self._intent.id}
        if ContainerState.RUNNING in ours:
            standby.release_successor(old_is_dead=not self.old_runs)
        elif self._state.unanswered or ContainerState.UNKNOWN in ours:
            standby.release()  # the old one stays frozen until the containers are listed again
        else:
            standby.give_up()

    def thaw_unless_replaced(self) -> None:
        """Thaw the old container unless a successor exists, or may exist: then it stays frozen until listed again."""
        ours = any(view.restart_id == self._intent.id and view.state in steps.LIVE for view in self._state.seen)
        if self._standbys is not None and self._frozen_pid is not None and not (ours or self._state.unanswered):
            try:
                self._standbys.thaw(self._frozen_pid, of=self._intent.old)
            except HoldError as error:  # ``thaw_old`` tries again
                log.warning("restart.not_thawed", restart=self._intent.id, error=str(error))

    async def thaw_old(self) -> None:
        """Thaw the old container: a previous agent may have left it frozen. Raises CriError and HoldError."""
        if self._standbys is None:
            return
        with contextlib.suppress(NotFound):
            self._standbys.thaw(await self._old_pid(), of=self._intent.old)

    def overlap_note(self) -> str | None:
        """Return whether the successor imported while the old one died; None if the pod does not ask for that."""
        if self._overlap_request is None:
            return None
        return overlap.note(self._intent.target.name, self._overlap_forbidden() or self._not_overlapped)

    def _overlap_forbidden(self) -> overlap.Obstacle | None:
        if self._overlap_request is None:
            return None
        name, preparation = self._intent.target.name, self._ops.preparation
        cleans = preparation.cleans(name) or name in preparation.kept
        return overlap.obstacle(self._overlap_request, in_round=self._ops.holding is not None, cleans=cleans)

    async def _old_pid(self) -> int | None:
        return (await self._ops.tools.runtime.container_status(self._intent.old)).pid
