"""Restart containers that opted in and exit with an error at once, without kubelet's backoff.

The runtime's event is the cause. ``agent.restart.exits`` decides which exits are left to kubelet. If a hub is set,
exits of gang members are reported to it (``agent.hub``). Members that the hub answers with ALONE are restarted here.
"""

import asyncio
import functools
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import structlog

from kubemend.agent import ports
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.clients.cri.events import ContainerEvent, EventKind
from kubemend.agent.clients.podresources import convert
from kubemend.agent.devices.verdict_store import gpu_keys
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.workloads import (
    ContainerRef,
    ContainerState,
    ContainerSummary,
    PodRef,
    PodView,
    RestartPolicy,
    SandboxId,
)
from kubemend.agent.restart import admission, exits
from kubemend.agent.restarts.dependencies import DeviceFacts
from kubemend.agent.restarts.requests import Request
from kubemend.agent.restarts.scheduler import RestartScheduler
from kubemend.common import contained
from kubemend.common.coordination import FaultKind

log = structlog.get_logger(__name__)

_NANOSECOND = 1e-9
_FRESH = 1.0
"""Seconds for which an answer about the pod's end stays valid."""


class Ends(Protocol):
    """Find out whether pods are ending (``agent.sources.pod_ends.PodEnds``)."""

    async def was_stopped(self, ended: ContainerSummary) -> bool: ...
    async def present_reason(self, pod: PodRef, sandbox: SandboxId) -> str: ...
    async def outside_reason(
        self, ended: ContainerSummary, how: exits.Exit, *, lag: float, quick: float = exits.QUICK
    ) -> str: ...


@dataclass(frozen=True, slots=True)
class Ended:
    """A container that has ended, how, and when (Unix time)."""

    container: ContainerSummary
    how: exits.Exit
    at: float


async def outside_reason(
    target: ContainerRef, *, pods: ports.Pods, events: ports.Events, runtime: ports.ContainerEnds, ends: Ends
) -> str:
    """Return why the end of a ``Never`` container is not its own; empty if it is, or if the container runs.

    A fault that came before the end admits the restart of such a container (``agent.restart.admission``). A stop by
    another component, or the end of the pod, is final nevertheless. An unknown fact prevents the restart.
    """
    pod = pods.pods().get(target.pod.uid)
    if pod is None or pod.policy_of(target.name) is not RestartPolicy.NEVER:
        return ""
    views = [view for view in events.containers() if view.ref == target]
    newest = max(views, key=lambda view: view.generation, default=None)
    if newest is None or newest.state is not ContainerState.EXITED:
        return ""
    try:
        info = (await runtime.container_status(newest.id)).without_config()
    except CriError as error:
        return f"the runtime does not report how it ended: {error}"
    how = exits.Exit(target.name, info.exit_code, info.reason, asked=await ends.was_stopped(newest))
    if how.looks_like_a_stop:
        return "it was stopped"
    reason = await ends.outside_reason(newest, how, lag=0.0, quick=0.0)
    return f"the pod is ending: {reason}" if reason else ""


class Exits:
    """Restart exited containers. ``run`` follows the events of the runtime."""

    def __init__(
        self,
        *,
        restarts: RestartScheduler,
        pods: ports.Pods,
        runtime: ports.ContainerEnds,
        ends: Ends,
        rounds: ports.RoundMembers,
        device_facts: DeviceFacts,
        now: Callable[[], float],
        reported: Callable[[PodView], bool] = lambda _: False,
        opted_in_namespaces: frozenset[str] = frozenset(),
        own_pod_uid: str | None = None,
    ) -> None:
        """``reported``: whether a pod's exits are reported to the hub, which decides about them."""
        self._restarts = restarts
        self._pods = pods
        self._runtime = runtime
        self._ends = ends
        self._rounds = rounds
        self._device_facts = device_facts
        self._now = now
        self._reported = reported
        self._namespaces = opted_in_namespaces
        self._own_pod_uid = own_pod_uid

    async def run(self, steps: "asyncio.Queue[ContainerEvent]") -> None:
        """Follow container exits, from the runtime's events, as long as the agent runs."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                step = await steps.get()
                if step.kind is EventKind.STOPPED and self._is_handled_here(step.container):
                    tasks.create_task(self._handle(step), name=f"exit of {step.container.ref}")

    async def restart(self, ended: Ended) -> None:
        """Restart an exited container unless it is left to kubelet. The hub, if asked, has answered ALONE."""
        with contained.within(contained.Part.FAULT, ended.container.ref):
            await self._restart(ended)

    def _is_handled_here(self, view: ContainerSummary) -> bool:
        """Return whether this object handles the pod's exits. Exits of other pods cost no runtime call."""
        with contained.within(contained.Part.FAULT, view.ref):
            pod = self._pods.pods().get(view.ref.pod.uid)
            if pod is None or self._reported(pod):
                return False
            refused = admission.no_fault_reason(
                pod, view.ref.name, opted_in_namespaces=self._namespaces, own_pod_uid=self._own_pod_uid
            )
            return refused is None and not self._is_ours(view)
        return False

    def _is_ours(self, view: ContainerSummary) -> bool:
        busy = self._rounds.busy(view.ref.pod.uid) or self._rounds.expects_end(view.id)
        return busy or self._runtime.has_ended(view.id)

    async def _handle(self, step: ContainerEvent) -> None:
        with contained.within(contained.Part.FAULT, step.container.ref):
            ended = await self._ended(step)
            if ended is not None:
                await self._restart(ended)

    async def _ended(self, step: ContainerEvent) -> Ended | None:
        """Return how a container ended; None if the runtime does not report it (then it is left to kubelet)."""
        name, at = step.container.ref.name, step.created_at * _NANOSECOND
        if step.exit_code is not None:
            return Ended(step.container, exits.Exit(name, step.exit_code, step.reason), at)
        try:
            info = await self._runtime.container_status(step.container_id)
        except CriError as error:
            log.info("exit.unknown", container=str(step.container.ref), error=str(error))
            return None
        if info.state is not ContainerState.EXITED:
            return None
        return Ended(step.container, exits.Exit(name, info.exit_code, info.reason), info.finished_at * _NANOSECOND)

    async def _restart(self, ended: Ended) -> None:
        view = ended.container
        pod = self._pods.pods().get(view.ref.pod.uid)
        if pod is None:
            return
        how = replace(ended.how, asked=await self._ends.was_stopped(view))
        left = exits.left_reason(pod, how, opted_in_namespaces=self._namespaces, own_pod_uid=self._own_pod_uid)
        log.info(
            "exit.seen" if left is None else "exit.left_to_kubelet",
            container=str(view.ref),
            container_id=view.id,
            exit_code=ended.how.exit_code,
            reason=left.value if left is not None else None,
        )
        if left is not None:
            return
        ending = _Ending(self._ends, ended, lag=max(0.0, self._now() - ended.at))
        try:
            held = await self._held(pod, view)
            request = Request(
                target=view.ref,
                cause=functools.partial(self._cause, ended, held),
                devices=held,
                withdrawn=ending.reason,
                kind=FaultKind.EXIT,
                gang_answered=True,
            )
            await self._restarts.submit(request)
        finally:
            await ending.close()

    async def _held(self, pod: PodView, view: ContainerSummary) -> frozenset[DeviceId] | None:
        spec = pod.container(view.ref.name)
        if spec is not None and not spec.holds_devices:
            return frozenset()
        return convert.held_by(view.ref, await self._device_facts.holders.current(max_age=1.0))

    def _cause(self, ended: Ended, held: frozenset[DeviceId] | None) -> admission.Cause:
        """Return the cause. Its action refuses the restart if a device needs more than one."""
        verdict_store, inventory = self._device_facts.verdict_store, self._device_facts.devices.inventory
        devices = gpu_keys(held, inventory=inventory) if held is not None else verdict_store.devices()
        action = verdict_store.worst_action(devices, inventory=inventory)
        how = ended.how
        reason = f" ({how.reason})" if how.reason not in ("", "Error") else ""
        return admission.Cause(
            code=f"Exit{how.exit_code}",
            message=f"container {how.name} ended with exit code {how.exit_code}{reason}",
            happened_at=ended.at,
            action=action,
            devices_known=held is not None or action.leaves_device_usable,
            container=ended.container.id,
        )


class _Ending:
    """Find out whether the pod is ending. The query starts at the exit, so that the answer is ready in time."""

    def __init__(self, ends: Ends, ended: Ended, *, lag: float) -> None:
        self._ends = ends
        self._view = ended.container
        self._clock = asyncio.get_running_loop().time
        self._asked_at = self._clock()
        first = ends.outside_reason(ended.container, ended.how, lag=lag, quick=0.0)
        self._asked = asyncio.create_task(first, name=f"is {ended.container.ref.pod} ending")

    async def reason(self) -> str:
        """Return why the pod is ending; empty if it is not. Reuse an answer while it is fresh."""
        if self._asked.done() and self._clock() - self._asked_at > _FRESH:
            self._asked_at = self._clock()
            again = self._ends.present_reason(self._view.ref.pod, self._view.sandbox_id)
            self._asked = asyncio.create_task(again, name=f"is {self._view.ref.pod} ending")
        reason = await asyncio.shield(self._asked)
        return f"the pod is ending: {reason}" if reason else ""

    async def close(self) -> None:
        """Cancel the query."""
        self._asked.cancel()
        await asyncio.gather(self._asked, return_exceptions=True)
