"""Restarts that a person asks for by name: what they are about, what must be known first, and the way to the engine.

The same rules hold as after a fault, but for two: the pod need not have opted in, and its budget is not asked (yet the
restart counts against it).
"""

import asyncio
import time
from collections.abc import Callable

from agent.actuator import progress
from agent.engine import ports
from agent.engine.ledger import HealthLedger, gpu_keys
from agent.engine.restarts import Request, Restarts
from agent.model.devices import GpuUuid
from agent.model.workloads import ContainerRef
from agent.podresources import answers
from agent.restart import admission, asking

CODE = "Requested"
"""The cause of a restart that a person has asked for."""


class NoSuchPodError(LookupError):
    """There is no pod of that name on this node. The text is one line for people."""


class PodsUnknownError(Exception):
    """The API server has not told yet which pods there are. The text is one line for people."""


class Requests:
    """Takes people's requests. Works once the runtime is plugged in; until then they are held."""

    def __init__(
        self,
        *,
        ledger: HealthLedger,
        pods: ports.Pods,
        devices: ports.Devices,
        holders: ports.Holders,
        lacking: Callable[[], str],
        now: Callable[[], float] = time.time,
        patience: float = 600.0,
        ask_again: float = 1.0,
    ) -> None:
        """``lacking`` says why there is no runtime; ``patience`` is how many seconds a request waits for one."""
        self._ledger = ledger
        self._pods = pods
        self._devices = devices
        self._holders = holders
        self._lacking = lacking
        self._now = now
        self._patience = patience
        self._ask_again = ask_again
        self._runtime_found = asyncio.Event()
        self._restarts: Restarts | None = None

    def use_runtime(self, *, restarts: Restarts) -> None:
        """Plug the container runtime in, once it has been found and the journal has been replayed."""
        self._restarts = restarts
        self._runtime_found.set()

    def target(self, *, namespace: str, pod: str, asked: asking.Asked) -> ContainerRef:
        """Return the container that a request is about.

        Raises NoSuchPodError, PodsUnknownError, asking.UnclearError or options.BadAnnotationError.
        """
        view = self._pods.by_name(namespace, pod)
        if view is not None:
            return ContainerRef(pod=view.ref, name=asking.container(view, asked))
        if not self._pods.synced:
            raise PodsUnknownError("the API server has not told this node's agent about its pods yet; see its /readyz")
        raise NoSuchPodError(f"there is no pod {namespace}/{pod} on this node; kubectl get pod -o wide tells its node")

    async def carry_out(
        self, asked: asking.Asked, *, target: ContainerRef, who: str, followed: progress.Progress
    ) -> None:
        """See a request through: to the verified end, to its refusal, or until it has been held for too long.

        ``who`` has asked, and why; it ends in the pod's condition.
        """
        asked_at = self._now()
        try:
            async with asyncio.timeout(self._patience):
                restarts = await self._runtime(followed)
                held = await self._held(target, followed)
        except TimeoutError:
            return  # what was told last is why

        def cause() -> admission.Cause:
            inventory = self._devices.inventory
            devices = gpu_keys(held or (), inventory=inventory)
            return admission.Cause(
                code=CODE,
                message=f"request of {who}",
                happened_at=asked_at,
                action=self._ledger.worst_action(devices, inventory=inventory),
            )

        await restarts.handle(Request(target=target, cause=cause, devices=held, asked=asked, followed=followed))

    async def _runtime(self, followed: progress.Progress) -> Restarts:
        if self._restarts is None:
            _hold(followed, admission.Reason.RUNTIME_UNAVAILABLE, self._lacking())
            await self._runtime_found.wait()
        assert self._restarts is not None
        return self._restarts

    async def _held(self, target: ContainerRef, followed: progress.Progress) -> frozenset[GpuUuid] | None:
        """Return the GPUs that the container holds; None when kubelet does not say and all of the node's are usable.

        Where one of them is not, a new process might fail on it: then kubelet's answer is waited for.
        """
        held = await self._ask_kubelet(target)
        if held is None and not self._all_usable():
            _hold(
                followed,
                admission.Reason.DEVICE_NOT_PROVEN,
                "a device of this node is not usable, and kubelet could not be asked whether the container holds it",
            )
        while held is None and not self._all_usable():
            await asyncio.sleep(self._ask_again)  # the pod-resources API has no watch
            held = await self._ask_kubelet(target)
        return held

    async def _ask_kubelet(self, target: ContainerRef) -> frozenset[GpuUuid] | None:
        return answers.held_by(target, await self._holders.current(max_age=self._ask_again))

    def _all_usable(self) -> bool:
        action = self._ledger.worst_action(self._ledger.devices(), inventory=self._devices.inventory)
        return action.leaves_device_usable


def _hold(followed: progress.Progress, reason: admission.Reason, detail: str) -> None:
    followed.tell(progress.Decided(admission.Decision(admission.Verb.HOLD, reason, detail)))
