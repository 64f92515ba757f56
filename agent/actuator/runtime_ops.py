"""Make the calls of a restart, with all that belongs to each: hooks, log links, the updated listing.

The order of the calls is decided elsewhere (``agent.restart``, driven by ``agent.actuator.plan_runner``). A swap makes
some of them differently (``agent.actuator.swap_calls``).
"""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import structlog

from kubemend.agent.actuator import hooks, progress, turns
from kubemend.agent.actuator.context import NO_PREPARATION, ActuatorContext, StartPreparation
from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.actuator.layer_keeping import LayerKeeping
from kubemend.agent.actuator.restart_state import RestartState
from kubemend.agent.actuator.strategy import Listing
from kubemend.agent.clients.cri import errors as cri_errors
from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.model.workloads import ContainerId, ContainerRef, ContainerState, ContainerSummary, Hook
from kubemend.agent.restart import clone, intents, reservations
from kubemend.agent.restart.successor_spec import PreStopHook, SuccessorSpec
from kubemend.common import aio
from kubemend.common.pb.runtime.v1 import api_pb2

log = structlog.get_logger(__name__)

_CLEAN_PHASE = "clean"
_KEEP_PHASE = "keep"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeOps:
    """The runtime, as one restart uses it.

    ``specs`` and ``pre_stop_hooks`` are by container name; a container without a spec is neither created nor prepared.
    ``preparation`` is done before starts, ``holding`` holds the containers that are started, ``followed`` receives the
    progress.
    """

    tools: ActuatorContext
    intent: intents.Intent | intents.PodIntent
    listing: Listing
    state: RestartState = field(default_factory=RestartState)
    specs: Mapping[str, SuccessorSpec] = field(default_factory=dict)
    pre_stop_hooks: Mapping[str, PreStopHook] = field(default_factory=dict)
    preparation: StartPreparation = NO_PREPARATION
    holding: HoldSet | None = None
    followed: progress.Progress = progress.NO_FOLLOWER

    async def refresh(self) -> None:
        """List the containers. Retries without limit: a listing is needed to decide, and the time limit bounds it."""
        backoff = aio.Backoff(first=0.02, limit=2.0)
        while True:
            try:
                found = await self.listing.containers()
            except cri_errors.CriError as error:
                self.state.last_error = str(error)
                await backoff.wait()
            else:
                self.state.listed(found)
                return

    async def status_of(self, container_id: ContainerId) -> ContainerStatus | None:
        """Read a status; return None, after another listing, if the container is gone.

        Retries while the runtime does not answer: the time limit bounds it, and nothing is done before.
        """
        backoff = aio.Backoff(first=0.02, limit=2.0)
        while True:
            try:
                return await self.tools.runtime.container_status(container_id)
            except cri_errors.NotFound:
                await self.refresh()
                return None
            except cri_errors.CriError as error:
                self.state.last_error = str(error)
                await backoff.wait()

    async def reserve(self, name: str, *, attempt: int) -> None:
        """Reserve a name that kubelet could take. Raises CriError."""
        spec = self.specs[name]
        config = reservations.config(spec.successor.config, attempt=attempt)
        try:
            await self.make(config, sandbox_config=spec.sandbox_config)
        except cri_errors.NameReserved as error:
            log.warning("restart.not_reserved", restart=self.intent.id, container=name, error=str(error))
            self.state.taken |= {(name, attempt)}  # kubelet cannot take it either

    async def create(self, name: str) -> None:
        """Create the successor of that name. Raises CriError."""
        await self.make(self.successor_config(name), sandbox_config=self.specs[name].sandbox_config)

    def successor_config(self, name: str) -> api_pb2.ContainerConfig:
        """Return the config to create a successor from, once the file for its termination message exists."""
        successor = self.specs[name].successor
        config = successor.config
        if successor.termination_log is not None and self.tools.files.make_termination_log(successor.termination_log):
            config = clone.with_own_termination_log(successor)
        resources = self.state.resources.get(name)
        return clone.with_resources(config, resources) if resources is not None else config

    async def make(self, config: api_pb2.ContainerConfig, *, sandbox_config: api_pb2.PodSandboxConfig) -> None:
        """Create a container. Raises CriError."""
        container_id = await self.tools.runtime.create_container(
            sandbox_id=self.intent.sandbox_id, config=config, sandbox_config=sandbox_config
        )
        self.state.created(
            ContainerSummary(
                id=container_id,
                ref=ContainerRef(pod=self.intent.target.pod, name=config.labels[reservations.NAME_LABEL]),
                sandbox_id=self.intent.sandbox_id,
                attempt=config.metadata.attempt,
                state=ContainerState.CREATED,
                created_at=max([time.time_ns(), *(view.created_at + 1 for view in self.state.seen)]),
                restart_id=self.intent.id,
            )
        )

    async def start(self, container_id: ContainerId) -> None:
        """Start a container, and do what belongs to a start. Raises CriError."""
        await self.start_prepared(container_id)
        self.state.mark(container_id, ContainerState.RUNNING)
        await self.complete_start(container_id)

    async def start_prepared(self, container_id: ContainerId) -> None:
        """Have the runtime start a container, after the work that is requested before. Raises CriError."""
        await self.prepare_start(container_id)
        if self.holding is not None and self.holding.must_hold(self.name_of(container_id)):
            await self.holding.expect(container_id)
        await self.tools.runtime.start_container(container_id)

    async def prepare_start(self, container_id: ContainerId) -> None:
        """Move files to keep and clean up, as the pod requests or its deaths.

        No old container may run any more, and this one not yet.
        """
        await self.keep(container_id)
        await self._clean(container_id)

    async def keep(self, container_id: ContainerId) -> None:
        """Move the files to keep. No old container may run any more, and this one not yet."""
        if (keeping := self._kept_of(container_id)) is not None:
            begun = asyncio.get_running_loop().time()
            await keeping.before_start(container_id)
            self.state.add_phase_time(_KEEP_PHASE, since=begun)

    async def prepare_release(self, container_id: ContainerId, *, held: int | None) -> None:
        """Do the same for a container that was started next to the old one.

        ``held`` is its process at the first instruction, None: it was not held.
        """
        if (keeping := self._kept_of(container_id)) is not None:
            begun = asyncio.get_running_loop().time()
            await keeping.before_release(container_id, held=held)
            self.state.add_phase_time(_KEEP_PHASE, since=begun)
        await self._clean(container_id)

    def _kept_of(self, container_id: ContainerId) -> LayerKeeping | None:
        return self.preparation.kept.get(self.name_of(container_id))

    async def _clean(self, container_id: ContainerId) -> None:
        name = self.name_of(container_id)
        if self.preparation.cleans(name):
            begun = asyncio.get_running_loop().time()
            await self.preparation.clean(name, is_first=self.listing.is_first(self.state.seen))
            self.state.add_phase_time(_CLEAN_PHASE, since=begun)

    async def complete_start(self, container_id: ContainerId) -> None:
        """Do what belongs to a start that has taken effect: the hold, the link to the log, the postStart hook."""
        await self.hold_started(container_id)
        self.link_log(container_id)
        if not self.is_held(container_id):
            await self.post_start(container_id)

    async def hold_started(self, container_id: ContainerId) -> None:
        """Hold a started container, if a round requests that."""
        if self.holding is None:
            return
        name = self.name_of(container_id)
        if self.holding.must_hold(name):
            await self.holding.hold(container_id)
        else:
            self.holding.note_started(container_id, name=name)

    def link_log(self, container_id: ContainerId) -> None:
        """Make the link by which log collectors find a successor's log."""
        name = self.name_of(container_id)
        if (spec := self.specs.get(name)) is not None:
            ref = ContainerRef(pod=self.intent.target.pod, name=name)
            self.tools.files.link_log(ref, container_id=container_id, log_file=spec.log_file)

    def is_held(self, container_id: ContainerId) -> bool:
        """Return whether a started container waits before it runs."""
        return self.holding is not None and self.holding.must_hold(self.name_of(container_id))

    async def post_start(self, container_id: ContainerId, *, stops_failed: bool = True) -> None:
        """Run the container's postStart hook, if it has one.

        ``stops_failed``: a container whose hook has failed is stopped, as kubelet does.
        """
        spec = self.specs.get(self.name_of(container_id))
        if spec is None or spec.post_start is None:
            return
        if self.holding is not None and not self.holding.runs_hook(container_id):
            return
        hook = self._run_hook(spec.post_start, container_id, pod_ip=spec.pod_ip, stops_failed=stops_failed)
        container = ContainerRef(self.intent.target.pod, self.name_of(container_id))
        with self.state.limit.paused():
            async with turns.waiting():
                await self.tools.running_hooks.run(container, hook)

    async def _run_hook(self, hook: Hook, container_id: ContainerId, *, pod_ip: str | None, stops_failed: bool) -> None:
        try:
            await hooks.run_post_start(hook, runtime=self.tools.runtime, container_id=container_id, pod_ip=pod_ip)
        except hooks.HookFailedError as error:
            log.warning("restart.post_start_failed", restart=self.intent.id, container=container_id, error=str(error))
            self.state.last_error = str(error)
            if stops_failed:
                await self.tools.runtime.stop_container(container_id, grace=self.intent.grace_seconds)
                await self.refresh()

    async def released(self, *, stops_failed: bool = True) -> None:
        """Do the work that was postponed while containers were held: run the postStart hooks of the successors."""
        assert self.holding is not None
        held = self.holding.names
        if not any(spec.post_start for name, spec in self.specs.items() if name in held):
            return
        await self.refresh()
        ours = [view for view in self.state.seen if view.restart_id == self.intent.id and view.ref.name in held]
        running = [view.id for view in ours if view.state is ContainerState.RUNNING]
        await asyncio.gather(*(self.post_start(container, stops_failed=stops_failed) for container in running))

    async def stop(self, container_id: ContainerId) -> None:
        """Stop a container. The preStop hook runs first and uses up part of the grace period, as in kubelet.

        A container that is frozen for a round cannot use a grace period: only SIGKILL reaches it.
        """
        is_frozen = self.holding is not None and self.holding.is_frozen(container_id)
        grace, name = 0.0 if is_frozen else self.intent.grace_seconds, self.name_of(container_id)
        if grace > 0 and (last := self.pre_stop_hooks.get(name)) is not None:
            done = await hooks.run_pre_stop(
                last.hook, runtime=self.tools.runtime, container_id=container_id, pod_ip=last.pod_ip, grace=grace
            )
            grace = done.grace
            if done.failure is not None:
                self.state.hook_failures[name] = f"{name}'s preStop hook failed: {done.failure}"
        await self.tools.runtime.stop_container(container_id, grace=grace)
        self.state.mark(container_id, ContainerState.EXITED)

    async def read_resources(self, container_id: ContainerId) -> None:
        """Read again which resources an old container has, for its successor, if its end may have taken long."""
        name = self.name_of(container_id)
        may_be_long = self.intent.grace_seconds > 0 or sum(self.state.phases.values()) > turns.SLOW
        if may_be_long and name in self.specs:
            status = await self.status_of(container_id)
            if status is not None and status.resources is not None:
                self.state.resources[name] = status.resources

    async def complete_stop(self, container_id: ContainerId) -> None:
        """Do nothing: nothing else belongs to a stop."""

    async def remove(self, container_id: ContainerId) -> None:
        """Remove a container, and the file that was created for a successor. Raises CriError."""
        await self.tools.runtime.remove_container(container_id)
        view = self.state.find(container_id)
        if view is not None and view.restart_id == self.intent.id:
            spec = self.specs.get(view.ref.name)
            if spec is not None and (own := spec.successor.termination_log) is not None:
                self.tools.files.remove_termination_log(own)
        self.state.removed(container_id)

    def is_ending(self) -> bool:
        """Return whether the pod is terminating: then nothing is started in it any more."""
        target = self.intent.target
        if reason := self.tools.ending(target.pod.uid, self.intent.sandbox_id):
            self.state.last_error = f"the pod is ending: {reason}"
        return bool(reason)

    def name_of(self, container_id: ContainerId) -> str:
        """Return the name of a listed container; the target's if it is not listed."""
        view = self.state.find(container_id)
        return view.ref.name if view is not None else self.intent.target.name


def hooks_of(specs: Mapping[str, SuccessorSpec]) -> Mapping[str, PreStopHook]:
    """Return the preStop hooks of the containers that successors replace, by container name."""
    return {name: spec.pre_stop_hook for name, spec in specs.items() if spec.pre_stop_hook is not None}
