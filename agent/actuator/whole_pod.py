"""Share the parts of a rerun, a reset and the rules: all of them list a whole pod."""

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kubemend.agent import ports
from kubemend.agent.actuator import listings, progress
from kubemend.agent.actuator.context import ActuatorContext, StartPreparation
from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.actuator.restart_state import RestartState
from kubemend.agent.actuator.runtime_ops import RuntimeOps
from kubemend.agent.actuator.strategy import Listing
from kubemend.agent.clients.cri import errors as cri_errors
from kubemend.agent.clients.cri.events import ContainerEvent
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRole,
    ContainerSpec,
    ContainerState,
    ContainerSummary,
)
from kubemend.agent.restart import intents, reset, steps
from kubemend.agent.restart.successor_spec import PreStopHook, SuccessorSpec
from kubemend.common import aio

NOTICED_AFTER = 30.0
"""Seconds after which kubelet must have seen a container even without confirmation: it relists once a second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRestart:
    """The restart of a whole pod, and its services. ``successor_specs`` and ``pre_stop_hooks`` are by container name.

    ``successor_specs`` is None if kubelet starts the containers, as on a replay. ``pods`` have kubelet's status.
    """

    tools: ActuatorContext
    pods: ports.Pods
    intent: intents.PodIntent
    successor_specs: Mapping[str, SuccessorSpec] | None
    pre_stop_hooks: Mapping[str, PreStopHook]
    resolution: steps.Resolution
    followed: progress.Progress
    preparation: StartPreparation
    holding: HoldSet | None

    def ops(self, listing: Listing, *, pre_stop_hooks: Mapping[str, PreStopHook]) -> RuntimeOps:
        """Return its calls."""
        return RuntimeOps(
            tools=self.tools,
            intent=self.intent,
            listing=listing,
            state=RestartState(resolution=self.resolution),
            specs=self.successor_specs or {},
            pre_stop_hooks=pre_stop_hooks,
            preparation=self.preparation,
            holding=self.holding,
            followed=self.followed,
        )


class PodListing:
    """All containers of a pod. ``exits`` are the ends of those that decide what may start next."""

    def __init__(self, runtime: ports.RestartCalls, intent: intents.PodIntent) -> None:
        self.exits: dict[ContainerId, reset.Exit] = {}
        self._runtime = runtime
        self._intent = intent

    async def containers(self) -> tuple[ContainerSummary, ...]:
        seen = await self._runtime.list_containers(pod_uid=self._intent.target.pod.uid)
        await self._ask_exits(seen)
        return seen

    def is_first(self, seen: Iterable[ContainerSummary]) -> bool:
        old, names = self._intent.old_ids, self._intent.names
        news = (view for view in seen if view.ref.name in names and view.id not in old)
        return all(view.state is ContainerState.CREATED for view in news)

    def current(self, seen: Iterable[ContainerSummary]) -> dict[str, ContainerId]:
        """Return the newest container of each name, if it is not an old one."""
        views = tuple(seen)
        found = {planned.name: reset.successors(self._intent, views, planned.name) for planned in self._intent.plan}
        return {name: made[-1].id for name, made in found.items() if made}

    def end_detail(self, end: steps.Step) -> str:
        """Return by which container's end the rest was left to kubelet."""
        if end.name is None:
            return ""
        found = self.exits.get(end.container) if end.container is not None else None
        code = found.code if found is not None else "unknown"
        return f"{end.name} ended with exit code {code}; kubelet does the rest"

    async def _ask_exits(self, seen: Sequence[ContainerSummary]) -> None:
        """Record the exit codes of ended init containers: they decide whether the next one may start.

        Also that of a target that may have ended for good, or before it was stopped.
        """
        is_asked = self._intent.completes or self._intent.grace_seconds > 0
        asked = [view for view in seen if is_asked and view.id == self._intent.target_old]
        for planned in self._intent.plan:
            if planned.role is not ContainerRole.MAIN:
                asked += reset.successors(self._intent, seen, planned.name)
        for view in asked:
            if view.state in steps.LIVE or view.id in self.exits:
                continue
            try:
                info = await self._runtime.container_status(view.id)
            except cri_errors.NotFound:
                continue  # gone since the listing
            self.exits[view.id] = reset.Exit(info.exit_code, info.finished_at)


def is_stopped(ops: RuntimeOps, intent: intents.PodIntent) -> bool:
    """Return whether this agent has asked for the end of the target."""
    return intent.target_old is not None and ops.tools.runtime.has_ended(intent.target_old)


async def look_again(ops: RuntimeOps, intent: intents.PodIntent) -> None:
    """List again before anything that runs is ended: kubelet may have replaced the target since the last listing."""
    if not ops.state.fresh and reset.is_whole(intent, ops.state.seen) and not is_stopped(ops, intent):
        await ops.refresh()


class KubeletView:
    """What kubelet has seen of a pod, by the status that it publishes."""

    def __init__(self, pods: ports.Pods, intent: intents.PodIntent) -> None:
        self._pods = pods
        self._uid = intent.target.pod.uid
        self._created: dict[ContainerId, float] = {}  # by the loop's clock; the wall clock may be set later

    def containers(self) -> Sequence[ContainerSpec]:
        """Return the containers in kubelet's status of the pod."""
        pod = self._pods.pods().get(self._uid)
        return pod.containers if pod is not None else ()

    def noticed(self, seen: Iterable[ContainerSummary]) -> frozenset[ContainerId]:
        """Return the listed containers that kubelet has seen; judged by age if the API server is unavailable."""
        shown = {spec.container_id for spec in self.containers()}
        now, wall = asyncio.get_running_loop().time(), time.time()
        found = set()
        for view in seen:
            age = max(0.0, wall - view.created_at / _NANOSECONDS)
            if view.id in shown or now - self._created.setdefault(view.id, now - age) > NOTICED_AFTER:
                found.add(view.id)
        return frozenset(found)

    async def wait(self, step: steps.Step, changes: "asyncio.Queue[ContainerEvent]") -> None:
        """Wait for a change; also for kubelet's status, if the step needs it."""
        if step.reason not in (steps.StepReason.NOT_STARTED, steps.StepReason.NOT_SHOWN):
            await listings.next_change(changes)
            return
        before = self.containers()
        await aio.first_of(
            self._pods.wait_for(self._uid, lambda pod: pod.containers != before, timeout=listings.RELIST_SECONDS),
            listings.next_change(changes),
        )


_NANOSECONDS = 1_000_000_000  # in a second
