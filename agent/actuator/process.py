"""Carry out restarts of a program by the launcher in its container (``agent.restart.process``)."""

import asyncio
from dataclasses import dataclass, field
from types import MappingProxyType

import structlog

from kubemend.agent import ports
from kubemend.agent.actuator import device_release, progress, turns
from kubemend.agent.actuator.context import ActuatorContext
from kubemend.agent.actuator.device_waits import DEVICE_PHASE
from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.clients.cri import errors as cri_errors
from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import ContainerState
from kubemend.agent.restart import intents, process, steps
from kubemend.agent.restart.process import Launcher, LauncherUnavailable
from kubemend.agent.restart.steps import StepKind, StepReason

log = structlog.get_logger(__name__)

_GATE_SECONDS = 2.0
"""Seconds at a gate before the order is repeated, so that the launcher continues to hold the program."""
_LEAST_WAIT = 0.05


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds, beyond the grace period.

    - ``stop``: for a launcher to report that the program is dead. Freeing pinned memory takes 240 ms for each GiB.
    - ``start``: to start it again; a spare is given 60 s to finish its imports.
    - ``silence``: for a launcher that has answered before to answer again.
    """

    stop: float = 60.0
    start: float = 150.0
    silence: float = 5.0


class ProcessActuator:
    """Have launchers restart their programs."""

    def __init__(self, tools: ActuatorContext, *, timeouts: Timeouts | None = None) -> None:
        self._tools = tools
        self._timeouts = timeouts if timeouts is not None else Timeouts()

    async def carry_out(
        self,
        intent: intents.ProcessIntent,
        *,
        resolution: steps.Resolution = steps.Resolution.FINISH,
        followed: progress.Progress = progress.NO_FOLLOWER,
        holding: HoldSet | None = None,
    ) -> Outcome:
        """Carry out the intent and return its outcome. With ``holding`` the program is dead and not started at the end.

        The caller then freezes the container: a frozen one has been held before.

        ``STEPPED_DOWN``: the launcher does not do what it was ordered, or has ended; another strategy must restart the
        container. A launcher that holds the program, and is not heard of again, starts it by itself. ``UNFINISHED``:
        the runtime was unavailable; carry it out again later.
        """
        if self._tools.launchers is None:
            return Outcome(Result.STEPPED_DOWN, detail="this agent speaks with no launchers")
        run = _Run(self._tools, self._tools.launchers, self._timeouts, intent, resolution, followed, holding)
        if holding is not None and holding.is_frozen(intent.container):
            return run.outcome(Result.RESTARTED)
        try:
            return await run.run_to_end()
        except device_release.ProcessStuckError as error:
            return run.outcome(Result.STEPPED_DOWN, str(error))
        except device_release.DeviceUnusableError as error:
            await run.discard()
            return run.outcome(Result.DEVICE_NOT_USABLE, str(error))
        except cri_errors.NotFound:
            return run.outcome(Result.STEPPED_DOWN, "the container has ended and been removed")
        except cri_errors.CriError as error:
            return run.outcome(Result.UNFINISHED, str(error))

    async def released(self, intent: intents.ProcessIntent) -> None:
        """Have the program started after the round's release. A launcher that does not hear it starts it by itself."""
        if self._tools.launchers is None:
            return
        try:
            container = (await self._tools.runtime.container_status(intent.container)).without_config()
        except cri_errors.CriError as error:
            log.warning("restart.not_released", restart=intent.id, error=str(error))
            return
        answer = await self._tools.launchers.release(container, intent)
        if isinstance(answer, LauncherUnavailable):
            log.warning("restart.not_released", restart=intent.id, error=answer.reason)


@dataclass(slots=True)
class _Run:
    tools: ActuatorContext
    launchers: ports.Launchers
    timeouts: Timeouts
    intent: intents.ProcessIntent
    resolution: steps.Resolution
    followed: progress.Progress
    holding: HoldSet | None
    phases: dict[str, float] = field(default_factory=dict)
    is_free: bool = False
    ordered: set[steps.Step] = field(default_factory=set)

    async def run_to_end(self) -> Outcome:
        container = (await self.tools.runtime.container_status(self.intent.container)).without_config()
        if container.state is not ContainerState.RUNNING:
            return self.outcome(Result.STEPPED_DOWN, "the container has ended")
        launcher = await self.launchers.status(container)
        began = _now()
        stop_until, start_until = began + self.intent.grace_seconds + self.timeouts.stop, 0.0
        silent_since: float | None = None
        while True:
            if not isinstance(launcher, LauncherUnavailable):
                silent_since = None
            elif await self._may_answer(silent_since := silent_since or _now()):
                launcher = await self.launchers.status(container)
                continue
            seen = await self._seen(container, launcher)
            launcher = seen.launcher
            step = process.next_step(self.intent, seen, resolution=self.resolution)
            if step.reason is StepReason.LAUNCHER_STOPS:
                return await self._stopped()
            if step.kind is StepKind.DONE:
                return self._ended(step, launcher)
            if reason := self.tools.ending(self.intent.target.pod.uid, self.intent.sandbox_id):
                return self.outcome(Result.UNDONE, f"the pod is ending: {reason}")  # its launcher gets a signal
            if step.kind is StepKind.START:
                start_until = start_until or _now() + self.timeouts.start
            if _now() > (start_until or stop_until):
                return self.outcome(Result.STEPPED_DOWN, f"the launcher remains in state {_state(launcher)}")
            launcher = await self._take(step, container, launcher)
            if step.reason is StepReason.OLD_ON_DEVICE:
                stop_until = _now() + self.timeouts.stop

    async def _seen(self, container: ContainerStatus, launcher: Launcher | LauncherUnavailable) -> process.Program:
        held = isinstance(launcher, Launcher) and launcher.state is process.State.HELD
        if not (held and isinstance(launcher, Launcher) and launcher.order == self.intent.id):
            return process.Program(launcher)
        found = await self.launchers.remains(container, launcher)
        if isinstance(found, LauncherUnavailable):
            return process.Program(found)
        return process.Program(launcher, found, is_free=self.is_free, held_by_round=self.holding is not None)

    async def _may_answer(self, since: float) -> bool:
        """Return, after a moment, whether a silent launcher may still answer: on a busy node it may be late."""
        if _now() - since >= self.timeouts.silence:
            return False
        state = (await self.tools.runtime.container_status(self.intent.container)).state
        await asyncio.sleep(_LEAST_WAIT)
        return state is ContainerState.RUNNING

    async def _take(
        self, step: steps.Step, container: ContainerStatus, launcher: Launcher | LauncherUnavailable
    ) -> Launcher | LauncherUnavailable:
        if step in self.ordered:  # a launcher that ignores its orders could answer them without end
            await asyncio.sleep(_LEAST_WAIT)
        if step.kind is not StepKind.WAIT:
            self.ordered.add(step)
        begun = _now()
        slow = 0.0 if self.intent.grace_seconds > 0 else turns.SLOW
        async with turns.waiting(after=slow):
            match step.kind, step.reason:
                case StepKind.START, _:
                    found = await self.launchers.release(container, self.intent)
                case StepKind.WAIT, StepReason.OLD_ON_DEVICE:
                    self.is_free = await self._at_gate()
                    renews = not self.is_free or self.holding is not None  # a round freezes it in a moment
                    found = await self.launchers.stop(container, self.intent) if renews else launcher
                case StepKind.WAIT, StepReason.LAUNCHER_RESTARTS:
                    await asyncio.sleep(_LEAST_WAIT)
                    found = await self.launchers.status(container)
                case _:
                    found = await self.launchers.stop(container, self.intent)
        phase = DEVICE_PHASE if step.reason is StepReason.OLD_ON_DEVICE else StepKind.STOP.value
        phase = StepKind.START.value if step.kind is StepKind.START else phase
        took = _now() - begun
        self.phases[phase] = self.phases.get(phase, 0.0) + took
        log.debug("restart.step", restart=self.intent.id, step=step.kind.value, reason=step.reason.value)
        error = found.reason if isinstance(found, LauncherUnavailable) else ""
        self.followed.notify(progress.StepTaken(step, self.intent.target.name, None, took, error))
        return found

    async def _at_gate(self) -> bool:
        opens = await self.tools.gates.opens(self.intent.id, timeout=_GATE_SECONDS)
        self.tools.gates.raise_if_shut(self.intent.id)
        return opens

    async def _stopped(self) -> Outcome:
        """Leave a container that ends to kubelet; one that goes on after a signal needs another strategy."""
        target = self.intent.target.pod
        if reason := await self.tools.stopping(self.intent.container, target, self.intent.sandbox_id):
            return self.outcome(Result.UNDONE, f"{process.STOPS}: {reason}")
        return self.outcome(Result.STEPPED_DOWN, process.STOPS)

    async def discard(self) -> None:
        """Have the container end: nothing may start on its devices. Its restartPolicy and its owner decide then.

        A round recreates its member elsewhere, and has it held until then: the end could count as the pod's failure.
        """
        if self.holding is not None:
            return
        try:
            container = (await self.tools.runtime.container_status(self.intent.container)).without_config()
        except cri_errors.CriError as error:
            log.warning("restart.not_discarded", restart=self.intent.id, error=str(error))
            return
        answer = await self.launchers.discard(container, self.intent)
        if isinstance(answer, LauncherUnavailable):
            log.warning("restart.not_discarded", restart=self.intent.id, error=answer.reason)

    def _ended(self, step: steps.Step, launcher: Launcher | LauncherUnavailable) -> Outcome:
        match step.reason:
            case StepReason.RELAUNCHED | StepReason.HELD_FOR_ROUND:
                return self.outcome(Result.RESTARTED)
            case StepReason.LAUNCHER_WON:
                return self.outcome(Result.RESTARTED, "the launcher had restarted the program by itself")
            case StepReason.UNDONE:
                return self.outcome(Result.UNDONE)
            case StepReason.OLD_LEFT:
                reason = "the launcher reports that the program has ended, but processes of it live"
            case StepReason.ORDER_REFUSED:
                assert isinstance(launcher, Launcher)
                reason = f"the launcher has refused: {launcher.error or 'no reason'}"
            case _:
                reason = launcher.reason if isinstance(launcher, LauncherUnavailable) else step.reason.value
        return self.outcome(Result.STEPPED_DOWN, reason)

    def outcome(self, result: Result, detail: str = "") -> Outcome:
        current = {self.intent.target.name: self.intent.container}
        return Outcome(result, MappingProxyType(current), phases=MappingProxyType(dict(self.phases)), detail=detail)


def _state(launcher: Launcher | LauncherUnavailable) -> str:
    return launcher.state.value if isinstance(launcher, Launcher) else "silent"


def _now() -> float:
    return asyncio.get_running_loop().time()
