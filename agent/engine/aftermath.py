"""After a restart: do the devices answer, does kubelet agree, and is there exactly one container of the name?

Kubelet acts on its last relist, up to a second old, so a copy of its own can appear after our own work is done.
That is resolved here, before the restart counts as verified.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace

from agent.actuator.outcomes import Outcome
from agent.cri.errors import CriError
from agent.cri.events import ContainerEvent, EventKind
from agent.engine import ports
from agent.model.devices import GpuUuid
from agent.model.workloads import ContainerId, PodView
from agent.restart import intents, verification
from agent.restart.verification import Check, CheckState


@dataclass(frozen=True, slots=True)
class Patience:
    """Seconds: ``kubelet`` to show the survivor in its status, ``devices`` to answer a question."""

    kubelet: float = 15.0
    devices: float = 2.0


class Aftermath:
    """Verifies restarts."""

    def __init__(self, *, outside: ports.Outside, patience: Patience | None = None) -> None:
        self._outside = outside
        self._patience = patience if patience is not None else Patience()

    async def devices_answer(self, devices: frozenset[GpuUuid]) -> Check:
        """Ask the driver whether the container's devices are still there."""
        if not devices:
            return verification.devices_answer(devices, answering=None)
        answering = await self._outside.devices.answering(devices, timeout=self._patience.devices)
        return verification.devices_answer(devices, answering=answering)

    async def settle(self, intent: intents.Intent, outcome: Outcome) -> tuple[Outcome, Sequence[Check]]:
        """Stay until kubelet shows the survivor, resolving any copy that it starts; then look once more."""
        uid = intent.target.pod.uid
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience.kubelet
        async with self._outside.events.subscribe(uid) as changes:
            while (left := deadline - loop.time()) > 0:
                if await self._kubelet_agrees_first(intent, outcome.container, changes=changes, timeout=left):
                    break
                outcome = await self._resolved(intent, outcome)
        outcome = await self._resolved(intent, outcome)
        pod = self._outside.pods.pods().get(uid)
        assert outcome.container is not None
        agrees = verification.kubelet_agrees(pod, container=intent.target.name, expected=outcome.container)
        return outcome, (agrees, await self._one_running(intent, expected=outcome.container))

    async def _resolved(self, intent: intents.Intent, outcome: Outcome) -> Outcome:
        again = await self._outside.actuator.carry_out(intent, material=None)
        return replace(outcome, result=again.result, container=again.container or outcome.container)

    async def _one_running(self, intent: intents.Intent, *, expected: ContainerId) -> Check:
        target = intent.target
        try:
            seen = await self._outside.runtime.list_containers(pod_uid=target.pod.uid, name=target.name)
        except CriError as error:
            return Check("one-running", CheckState.UNKNOWN, str(error))
        return verification.one_running(seen, expected=expected)

    async def _kubelet_agrees_first(
        self,
        intent: intents.Intent,
        survivor: ContainerId | None,
        *,
        changes: asyncio.Queue[ContainerEvent],
        timeout: float,
    ) -> bool:
        """Return True when kubelet's status shows the survivor (or time is up), False when a copy appears first."""
        name = intent.target.name

        def shows_survivor(pod: PodView) -> bool:
            spec = pod.container(name)
            return spec is not None and spec.container_id == survivor

        agreed = asyncio.create_task(
            self._outside.pods.wait_for(intent.target.pod.uid, shows_survivor, timeout=timeout),
            name=f"kubelet-agrees {intent.id}",
        )
        copied = asyncio.create_task(_other_container(changes, name=name, known=survivor), name=f"copy {intent.id}")
        try:
            done, _ = await asyncio.wait({agreed, copied}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (agreed, copied):
                task.cancel()
            await asyncio.gather(agreed, copied, return_exceptions=True)
        return agreed in done


async def _other_container(changes: asyncio.Queue[ContainerEvent], *, name: str, known: ContainerId | None) -> None:
    """Return when another container of that name is created or started."""
    while True:
        event = await changes.get()
        another = event.container.ref.name == name and event.container.id != known
        if another and event.kind in (EventKind.CREATED, EventKind.STARTED):
            return
