"""After a restart: do the devices answer, does kubelet agree, and is there exactly one container of each name?

Kubelet acts on its last relist, up to a second old, so a copy of its own can appear after our own work is done.
That is resolved here, before the restart counts as verified.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from agent.actuator.gates import Visit
from agent.actuator.outcomes import Outcome
from agent.cri.errors import CriError
from agent.cri.events import ContainerEvent, EventKind
from agent.engine import ports
from agent.engine.acts import Act
from agent.model.devices import GpuUuid
from agent.model.workloads import PodView
from agent.restart import gates, verification
from agent.restart.intents import Strategy
from agent.restart.verification import Check, CheckState


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: ``kubelet`` to show a swap's survivors in its status, ``pod`` to have a whole pod up again,
    ``devices`` and the ``api`` server to answer a question."""

    kubelet: float = 15.0
    pod: float = 60.0
    devices: float = 2.0
    api: float = 5.0


class Aftermath:
    """Verifies restarts."""

    def __init__(self, *, outside: ports.Outside, patience: Patience | None = None) -> None:
        self._outside = outside
        self._patience = patience if patience is not None else Patience()

    async def devices_answer(self, devices: frozenset[GpuUuid] | None) -> Check:
        """Ask the driver whether the container's devices are still there; None: it is not known which they are."""
        if not devices:
            return verification.devices_answer(devices, answering=None)
        answering = await self._outside.devices.answering(devices, timeout=self._patience.devices)
        return verification.devices_answer(devices, answering=answering)

    async def devices_free(self, devices: frozenset[GpuUuid] | None, *, visit: Visit) -> Check:
        """Say whether the old processes have left the container's devices; what kubelet started has passed no gate."""
        if devices is None:
            return gates.unknown_devices()
        return gates.check(await visit.judgement())

    async def settle(self, act: Act, outcome: Outcome) -> tuple[Outcome, Sequence[Check]]:
        """Stay until kubelet shows the survivors, resolving any copy that it starts; then look once more."""
        uid = act.target.pod.uid
        loop = asyncio.get_running_loop()
        swap = act.strategy is Strategy.SWAP
        deadline = loop.time() + (self._patience.kubelet if swap else self._patience.pod)
        async with self._outside.events.subscribe(uid) as changes:
            outcome = await act.resolve(outcome)
            while (left := deadline - loop.time()) > 0:
                if await self._kubelet_agrees_first(act, outcome, changes=changes, timeout=left):
                    break
                outcome = await act.resolve(outcome)
        outcome = await act.resolve(outcome)
        awaited = act.awaited(outcome)
        agrees = await self._kubelet_agrees(act, outcome, awaited=awaited)
        return outcome, (agrees, await self._one_running(act, outcome, awaited=awaited))

    async def _kubelet_agrees(self, act: Act, outcome: Outcome, *, awaited: frozenset[str]) -> Check:
        """What an API server that hangs has told last disproves nothing: it is asked before kubelet's consent fails."""

        def check(pod: PodView | None) -> Check:
            return verification.kubelet_agrees(pod, expected=outcome.survivors, awaited=awaited)

        told = check(self._outside.pods.pods().get(act.target.pod.uid))
        if told.state is not CheckState.FAILED:
            return told
        return check(await self._outside.pods.ask(act.target.pod, timeout=self._patience.api))

    async def _one_running(self, act: Act, outcome: Outcome, *, awaited: frozenset[str]) -> Check:
        try:
            seen = await self._outside.runtime.list_containers(pod_uid=act.target.pod.uid)
        except CriError as error:
            return Check("one-running", CheckState.UNKNOWN, str(error))
        return verification.one_running(seen, expected=act.must_run(outcome), awaited=awaited)

    async def _kubelet_agrees_first(
        self, act: Act, outcome: Outcome, *, changes: "asyncio.Queue[ContainerEvent]", timeout: float
    ) -> bool:
        """Return True when kubelet's status shows the survivors (or time is up), False when another one appears."""
        complete = not act.awaited(outcome)

        def shows_survivors(pod: PodView) -> bool:
            check = verification.kubelet_agrees(pod, expected=outcome.survivors)
            return complete and check.state is CheckState.PASSED

        agreed = asyncio.create_task(
            self._outside.pods.wait_for(act.target.pod.uid, shows_survivors, timeout=timeout),
            name=f"kubelet-agrees {act.id}",
        )
        another = asyncio.create_task(_another(act, outcome, changes=changes), name=f"another {act.id}")
        try:
            done, _ = await asyncio.wait({agreed, another}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (agreed, another):
                task.cancel()
            await asyncio.gather(agreed, another, return_exceptions=True)
        return agreed in done


async def _another(act: Act, outcome: Outcome, *, changes: "asyncio.Queue[ContainerEvent]") -> None:
    """Return when a container of the act's names is created or started that is none of the survivors."""
    known = set(outcome.survivors.values())
    while True:
        event = await changes.get()
        new = event.container.ref.name in act.names and event.container.id not in known
        if new and event.kind in (EventKind.CREATED, EventKind.STARTED):
            return
