"""Handle manual restarts: resolve the target, wait for the necessary facts, and submit the request.

The rules after a fault apply, with two exceptions. The pod need not have opted in. Its budget does not limit the
restart (but the restart counts against it).
"""

import asyncio
import time
from collections.abc import Callable

from kubemend.agent import ports
from kubemend.agent.actuator import progress
from kubemend.agent.clients.podresources import convert
from kubemend.agent.devices.verdict_store import VerdictStore, gpu_keys
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.workloads import ContainerRef
from kubemend.agent.restart import admission, overrides
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restarts.requests import Request
from kubemend.agent.restarts.runtime_access import RuntimeAccess
from kubemend.agent.restarts.scheduler import RestartScheduler
from kubemend.common import aio

CODE = "Requested"
"""The cause of a manual restart."""


class NoSuchPodError(LookupError):
    """No pod of that name exists on this node. The text is one line for people."""


class PodsUnknownError(Exception):
    """The API server has not listed the pods yet. The text is one line for people."""


class ManualRestarts:
    """Accept manual restart requests, and hold them until the runtime is available."""

    def __init__(
        self,
        *,
        verdict_store: VerdictStore,
        pods: ports.Pods,
        devices: ports.Devices,
        holders: ports.Holders,
        access: aio.Promise[RuntimeAccess],
        lacking: Callable[[], str],
        now: Callable[[], float] = time.time,
        timeout: float = 600.0,
        ask_again: float = 1.0,
        watch_delay: float = 5.0,
    ) -> None:
        """``lacking`` returns why there is no runtime; ``timeout`` is for how many seconds a request waits for one.

        ``watch_delay``: for how many seconds the watch may report a pod as Pending that a client has seen running.
        """
        self._verdict_store = verdict_store
        self._pods = pods
        self._devices = devices
        self._holders = holders
        self._lacking = lacking
        self._now = now
        self._timeout = timeout
        self._ask_again = ask_again
        self._watch_delay = watch_delay
        self._access = access

    def target(self, *, namespace: str, pod: str, asked: overrides.RestartOverrides) -> ContainerRef:
        """Return the container that a request names.

        Raises NoSuchPodError, PodsUnknownError, overrides.AmbiguousTargetError or options.BadAnnotationError.
        """
        view = self._pods.by_name(namespace, pod)
        if view is not None:
            return ContainerRef(pod=view.ref, name=overrides.container(view, asked))
        if not self._pods.synced:
            raise PodsUnknownError(
                "pods of this node are unknown: the API server has not listed them yet. See the agent's /readyz."
            )
        raise NoSuchPodError(f"pod {namespace}/{pod} not found on this node. kubectl get pod -o wide shows its node.")

    async def carry_out(
        self, asked: overrides.RestartOverrides, *, target: ContainerRef, requester: str, followed: progress.Progress
    ) -> None:
        """Handle a request until it is verified, refused, or has been on hold for too long.

        ``requester`` includes the reason; the pod's condition shows it.
        """
        asked_at = self._now()
        try:
            async with asyncio.timeout(self._timeout):
                restarts = await self._runtime(followed)
                await self._seen_running(target)
                held = await self._held(target, followed)
        except TimeoutError:
            return  # the last progress event has the reason

        def cause() -> admission.Cause:
            inventory = self._devices.inventory
            devices = gpu_keys(held or (), inventory=inventory)
            return admission.Cause(
                code=CODE,
                message=f"request of {requester}",
                happened_at=asked_at,
                action=self._verdict_store.worst_action(devices, inventory=inventory),
            )

        await restarts.submit(Request(target=target, cause=cause, devices=held, asked=asked, followed=followed))

    async def _runtime(self, followed: progress.Progress) -> RestartScheduler:
        if self._access.value is None:
            _hold(followed, Reason.RUNTIME_UNAVAILABLE, self._lacking())
        return (await self._access.wait()).restarts

    async def _seen_running(self, target: ContainerRef) -> None:
        """Give the watch time to report that the pod runs: the client can have seen that first."""
        pod = self._pods.pods().get(target.pod.uid)
        if pod is not None and pod.phase == "Pending":
            await self._pods.wait_for(target.pod.uid, lambda pod: pod.phase != "Pending", timeout=self._watch_delay)

    async def _held(self, target: ContainerRef, followed: progress.Progress) -> frozenset[DeviceId] | None:
        """Return the container's GPUs; None if kubelet does not report them and all GPUs of the node are usable.

        If a GPU is unusable, a new process might fail on it, so the request waits for kubelet's answer.
        """
        held = await self._ask_kubelet(target)
        if held is None and not self._all_usable():
            _hold(
                followed,
                Reason.DEVICE_NOT_PROVEN,
                "a device of this node is not usable, and kubelet did not report whether the container holds it",
            )
        while held is None and not self._all_usable():
            await asyncio.sleep(self._ask_again)  # the pod-resources API has no watch
            held = await self._ask_kubelet(target)
        return held

    async def _ask_kubelet(self, target: ContainerRef) -> frozenset[DeviceId] | None:
        return convert.held_by(target, await self._holders.current(max_age=self._ask_again))

    def _all_usable(self) -> bool:
        action = self._verdict_store.worst_action(self._verdict_store.devices(), inventory=self._devices.inventory)
        return action.leaves_device_usable


def _hold(followed: progress.Progress, reason: Reason, detail: str) -> None:
    followed.notify(progress.Decided(admission.Decision(admission.Verb.POSTPONE, reason, detail)))
