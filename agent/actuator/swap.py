"""Carry out swaps (``agent.restart.swap``)."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from agent.actuator import progress, turns
from agent.actuator.exec_hold import HoldError
from agent.actuator.holding import Holding
from agent.actuator.outcomes import Outcome, Result
from agent.actuator.standby import Standby
from agent.actuator.steps import LOOK_AGAIN, Run
from agent.actuator.tools import Material, Tools
from agent.cri.errors import CriError
from agent.model.workloads import ContainerId, ContainerState, ContainerView
from agent.restart import intents, steps, swap
from common.pb.runtime.v1 import api_pb2

log = structlog.get_logger(__name__)


class SwapActuator:
    """Carries out one swap at a time per container; many run side by side."""

    def __init__(self, tools: Tools) -> None:
        self._tools = tools

    async def carry_out(
        self,
        intent: intents.Intent,
        *,
        material: Material | None,
        resolution: steps.Resolution = steps.Resolution.FINISH,
        followed: progress.Progress = progress.NOBODY,
        seen: Sequence[ContainerView] | None = None,
        holding: Holding | None = None,
    ) -> Outcome:
        """Bring the intent to an end and say which; with ``holding`` the successor is held at that end.

        ``material`` is None on a replay whose old container is gone. ``seen`` is a listing made just before (it saves
        one call on the fast path). ``followed`` is told of each step. ``UNFINISHED`` means that the time limit (plus
        the grace period) passed, or the runtime stayed away: carry it out again later.
        """
        run = _SwapRun(
            tools=self._tools,
            intent=intent,
            made_from=material,
            resolution=resolution,
            followed=followed,
            seen=tuple(seen or ()),
            holding=holding,
        )
        return await run.to_the_end(look_first=seen is None)

    async def released(self, intent: intents.Intent, *, material: Material | None, holding: Holding) -> None:
        """Do what had to wait while the successor was held."""
        await _SwapRun(tools=self._tools, intent=intent, made_from=material, holding=holding).released()


@dataclass(slots=True, kw_only=True)
class _SwapRun(Run[intents.Intent]):
    made_from: Material | None
    standby: Standby | None = None
    unanswered: bool = False  # a call beside the old one, of which nobody knows whether it was carried out
    frozen: int | None = None  # the old one's pid

    def next_steps(self) -> Sequence[steps.Step]:
        can_clone = self.made_from is not None
        stays = self._stays()
        step = swap.next_step(self.intent, self.seen, resolution=self.resolution, can_clone=can_clone, stays=stays)
        return (step,)

    def _stays(self) -> frozenset[ContainerId]:
        """Return what a round has let run; and what it is about to, while a copy of kubelet's has not been started."""
        if self.holding is None:
            return frozenset()
        let_go = {view.id for view in self.seen if self.holding.has_let_go(view.id)}
        if self.holding.is_to_let_go and all(view.state is not ContainerState.RUNNING for view in self._copies()):
            let_go |= {view.id for view in self.seen if self.holding.stands_still(view.id)}
        return frozenset(let_go)

    def _copies(self) -> list[ContainerView]:
        newer = (view for view in self.seen if view.attempt > self.intent.old_attempt and view.id != self.intent.old)
        return [view for view in newer if view.restart_id != self.intent.id]

    def material(self, name: str | None) -> Material | None:  # noqa: ARG002 - there is only one container
        return self.made_from

    async def containers(self) -> tuple[ContainerView, ...]:
        target = self.intent.target
        found = await self.tools.runtime.list_containers(pod_uid=target.pod.uid, name=target.name)
        self.unanswered = False
        return found

    async def to_the_end(self, *, look_first: bool = True) -> Outcome:
        """Whatever comes, nobody stays held or frozen."""
        try:
            # Slots keep a bare super() from working in a dataclass (bpo-46404).
            outcome = await super(_SwapRun, self).to_the_end(look_first=look_first)
        finally:
            self._end_standby()
            self._let_old_go_on()
        if outcome.result in (Result.UNDONE, Result.FAILED, Result.STUCK):
            await self._thaw_old()
        return outcome

    async def make(self, config: api_pb2.ContainerConfig, *, sandbox_config: api_pb2.PodSandboxConfig) -> None:
        """Create the successor. Where the old container has not been stopped, it stands still from now on.

        Kubelet starts a copy beside it as soon as anything of the pod wakes it, and nobody keeps the two apart when we
        are dead.
        """
        if not self._old_runs or self.intent.grace_seconds > 0:  # who is given time to end must be able to use it
            await super(_SwapRun, self).make(config, sandbox_config=sandbox_config)
            return
        await self._freeze_old()
        self.unanswered = True
        await super(_SwapRun, self).make(config, sandbox_config=sandbox_config)
        self.unanswered = False

    async def start(self, container_id: ContainerId) -> bool:
        """Start it, beside the old container on standby; where that cannot be had it is taken back."""
        if not self._old_runs:
            return await super(_SwapRun, self).start(container_id)
        try:
            await self._prepare_standby(container_id)
        except HoldError as error:
            self.last_error = str(error)
            self.resolution = steps.Resolution.UNDO
            return False
        assert self.standby is not None
        self.unanswered = True
        await self.tools.runtime.start_container(container_id)
        self.unanswered = False
        return True

    async def started(self, container_id: ContainerId) -> None:
        if self.standby is not None:
            await self.standby.engaged()
        await super(_SwapRun, self).started(container_id)

    async def stopped(self, container_id: ContainerId) -> None:
        """The old one is dead: let the successor run, once it has left its devices."""
        if self.standby is None or container_id != self.intent.old:
            return
        async with turns.waiting():
            while not await self.tools.gates.opens(self.intent.id, timeout=LOOK_AGAIN):
                self.tools.gates.raise_if_stuck(self.intent.id)
                self.goes_on()
        await self.make_room(container_id)
        self._end_standby()
        for view in self.seen:
            ours = view.restart_id == self.intent.id and view.state is ContainerState.RUNNING
            if ours and not self.is_held(view.id):
                await self.post_start(view.id)

    def is_held(self, container_id: ContainerId) -> bool:
        return self.standby is not None or super(_SwapRun, self).is_held(container_id)

    def gives_up(self) -> bool:
        """Take the successor back rather than leave it waiting beside the old one; see what is left then.

        What cannot even be taken back stays in the journal: it ends as UNFINISHED.
        """
        if not self._old_runs or not any(view.restart_id == self.intent.id for view in self.seen):
            return True
        self.resolution = steps.Resolution.UNDO
        self.failures = 0
        return False

    def post_start_failed(self) -> bool:
        """Stop it as kubelet does, which then restarts it with its own backoff.

        Where an exit would fail the pod for good, a container with a failed hook is the lesser evil, and is reported.
        """
        return self.intent.order is intents.Order.STOP_FIRST

    @property
    def _old_runs(self) -> bool:
        return any(view.id == self.intent.old and view.state is ContainerState.RUNNING for view in self.seen)

    async def _prepare_standby(self, successor: ContainerId) -> None:
        if self.tools.standbys is None:
            raise HoldError("this node cannot hold containers")
        if self.standby is not None:
            self.standby.hold.release()  # of a start that failed
        old = await self.tools.runtime.container_info(self.intent.old)
        self.standby = await self.tools.standbys.prepare(successor, old_pid=old.pid)
        if self.holding is not None:  # the freezer takes over from what holds it until the old one is dead
            await self.holding.expect(successor, by=self.standby.hold)

    def _end_standby(self) -> None:
        if self.standby is None:
            return
        standby, self.standby = self.standby, None
        ours = {view.state for view in self.seen if view.restart_id == self.intent.id}
        if ContainerState.RUNNING in ours:
            standby.let_run(old_is_dead=not self._old_runs)
        elif self.unanswered or ContainerState.UNKNOWN in ours:
            standby.hold.release()  # the old one stands still until somebody has looked
        else:
            standby.give_up()

    async def _freeze_old(self) -> None:
        """Where that cannot be had, it runs on for the moment until it is stopped."""
        if self.tools.standbys is None:
            return
        pid = (await self.tools.runtime.container_info(self.intent.old)).pid
        try:
            self.tools.standbys.freeze(pid)
        except HoldError as error:
            log.warning("restart.not_frozen", restart=self.intent.id, error=str(error))
        else:
            self.frozen = pid

    def _let_old_go_on(self) -> None:
        """Unless a successor is there, or may be: then it stands still until somebody has looked."""
        ours = any(view.restart_id == self.intent.id and view.state in steps.LIVE for view in self.seen)
        if self.tools.standbys is not None and self.frozen is not None and not (ours or self.unanswered):
            self.tools.standbys.thaw(self.frozen)

    async def _thaw_old(self) -> None:
        """An agent that died may have left it frozen."""
        if self.tools.standbys is None or self.intent.order is intents.Order.STOP_FIRST:
            return
        with contextlib.suppress(CriError):
            old = await self.tools.runtime.container_info(self.intent.old)
            self.tools.standbys.thaw(old.pid)
