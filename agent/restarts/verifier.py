"""Verify a restart: the devices answer, kubelet agrees, and each name has exactly one container.

Kubelet acts on its last relist, which is up to 1 s old, so its own container can appear after the restart is done. The
verifier resolves that before the restart counts as verified.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from kubemend.agent.actuator.device_release import GateSession
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.clients.cri.events import ContainerEvent, EventKind
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.outcomes import Outcome, Result
from kubemend.agent.model.workloads import PodView
from kubemend.agent.restart import device_release, intents, steps, strategies, verification
from kubemend.agent.restart.verification import Check, CheckState
from kubemend.agent.restarts.dependencies import Dependencies
from kubemend.agent.restarts.plan_execution import AnyExecution, execution_of
from kubemend.agent.restarts.restart_plan import RestartPlan
from kubemend.common import aio

OLD_RUNS_ON = (Result.UNDONE, Result.NOT_ALIKE, Result.FAILED)
"""Results after which the old container of a swap runs on, if it had not ended by itself."""
_KUBELET_ACTS = 2.0
"""Seconds after which kubelet has acted on its listing, which is up to 1 s old."""


@dataclass(frozen=True, slots=True)
class Timeouts:
    """Timeouts in seconds.

    - ``kubelet``: until kubelet's status shows a swap's current containers.
    - ``pod``: until a whole pod is up again.
    - ``devices``: until the driver answers; a busy processor keeps NVML's worker waiting for seconds.
    - ``api``: until the API server answers.
    """

    kubelet: float = 15.0
    pod: float = 60.0
    devices: float = 10.0
    api: float = 5.0


class RestartVerifier:
    """Verify restarts."""

    def __init__(self, *, dependencies: Dependencies, timeouts: Timeouts | None = None) -> None:
        self._dependencies = dependencies
        self._timeouts = timeouts if timeouts is not None else Timeouts()

    async def adopted_copy(self, plan: RestartPlan) -> Outcome | None:
        """Adopt kubelet's copy of a successor that has been removed again next to the old container.

        Kubelet may still act on what it saw before, and would leave the old one running. None: it starts no copy.
        """
        if not any(isinstance(each, intents.Intent) and each.order.may_wait for each in plan.entries):
            return None
        async with self._dependencies.events.subscribe(plan.target.pod.uid) as changes:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(min(_KUBELET_ACTS, self._timeouts.kubelet)):
                    await _another(plan, Outcome(Result.UNDONE), changes=changes)
        undoing = execution_of(self._dependencies, plan.bare())
        outcome = await _once_answered(lambda: undoing.carry_out(resolution=steps.Resolution.UNDO))
        return None if outcome.result in OLD_RUNS_ON else outcome

    async def devices_answer(self, devices: frozenset[DeviceId] | None) -> Check:
        """Ask the driver whether the container's devices still answer; None: it is unknown which devices it holds."""
        if not devices:
            return verification.devices_answer(devices, answering=None)
        answering = await self._dependencies.devices.answering(devices, timeout=self._timeouts.devices)
        return verification.devices_answer(devices, answering=answering)

    async def devices_free(self, devices: frozenset[DeviceId] | None, *, visit: GateSession) -> Check:
        """Check that the old processes have left the devices; containers that kubelet starts pass no release gate."""
        if devices is None:
            return device_release.unknown_devices()
        return device_release.check(await visit.judgement())

    async def wait_for_kubelet(self, execution: AnyExecution, outcome: Outcome) -> tuple[Outcome, Sequence[Check]]:
        """Wait until kubelet shows the current containers, and resolve any duplicate that it starts; then check again.

        Kubelet never shows a successor as running that has exited already. In that case nothing is pending, so that the
        container's next restart is not delayed.
        """
        plan = execution.plan
        uid = plan.target.pod.uid
        loop = asyncio.get_running_loop()
        whole_pod = strategies.SPECS[plan.strategy].whole_pod
        deadline = loop.time() + (self._timeouts.pod if whole_pod else self._timeouts.kubelet)
        async with self._dependencies.events.subscribe(uid) as changes:
            outcome = await execution.resolve(outcome)
            while outcome.result is not Result.SUCCESSOR_EXITED and (left := deadline - loop.time()) > 0:
                if await self._kubelet_agrees_first(plan, outcome, changes=changes, timeout=left):
                    break
                outcome = await execution.resolve(outcome)
        resolved = outcome
        outcome = await _once_answered(lambda: execution.resolve(resolved))
        pending = plan.pending_on_kubelet(outcome)
        agrees = await self._kubelet_agrees(plan, outcome, pending=pending)
        return outcome, (agrees, await self._one_running(plan, outcome, pending=pending))

    async def _kubelet_agrees(self, plan: RestartPlan, outcome: Outcome, *, pending: frozenset[str]) -> Check:
        """Query the API server before this check fails: the last update from one that hangs proves nothing."""

        def check(pod: PodView | None) -> Check:
            return verification.kubelet_agrees(pod, expected=outcome.current, pending=pending)

        cached = check(self._dependencies.pods.pods().get(plan.target.pod.uid))
        if cached.state is not CheckState.FAILED:
            return cached
        return check(await self._dependencies.pods.ask(plan.target.pod, timeout=self._timeouts.api))

    async def _one_running(self, plan: RestartPlan, outcome: Outcome, *, pending: frozenset[str]) -> Check:
        try:
            seen = await self._dependencies.runtime.list_containers(pod_uid=plan.target.pod.uid)
        except CriError as error:
            return Check("one-running", CheckState.UNKNOWN, str(error))
        return verification.one_running(seen, expected=plan.must_run(outcome), pending=pending)

    async def _kubelet_agrees_first(
        self, plan: RestartPlan, outcome: Outcome, *, changes: "asyncio.Queue[ContainerEvent]", timeout: float
    ) -> bool:
        """Wait for kubelet's status to show the current containers, or for another container event.

        Return True when it shows them or the time is up, False when a current container ends or another one appears.
        """
        complete = not plan.pending_on_kubelet(outcome)

        def shows_current(pod: PodView) -> bool:
            check = verification.kubelet_agrees(pod, expected=outcome.current)
            return complete and check.state is CheckState.PASSED

        agreed = asyncio.create_task(
            self._dependencies.pods.wait_for(plan.target.pod.uid, shows_current, timeout=timeout),
            name=f"kubelet-agrees {plan.id}",
        )
        another = asyncio.create_task(_another(plan, outcome, changes=changes), name=f"another {plan.id}")
        try:
            done, _ = await asyncio.wait({agreed, another}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (agreed, another):
                task.cancel()
            await asyncio.gather(agreed, another, return_exceptions=True)
        return agreed in done


async def _once_answered(look: Callable[[], Awaitable[Outcome]]) -> Outcome:
    """Look again while the runtime is away: the next agent would resume what stays unfinished, next to later restarts.

    ``look`` itself takes until its time limit if the runtime does not answer.
    """
    backoff = aio.Backoff()
    while (outcome := await look()).result is Result.UNFINISHED:
        await backoff.wait()
    return outcome


async def _another(plan: RestartPlan, outcome: Outcome, *, changes: "asyncio.Queue[ContainerEvent]") -> None:
    """Return when a current container ends, or another one of the plan's names is created or started."""
    known = set(outcome.current.values())
    while True:
        event = await changes.get()
        if event.container.id in known:
            if event.kind is EventKind.STOPPED:
                return
        elif event.container.ref.name in plan.names and event.kind in (EventKind.CREATED, EventKind.STARTED):
            return
