"""Make the calls of a restart, with all that belongs to each: hooks, log links, the updated listing.

The order of the calls is decided elsewhere (``agent.restart``, driven by ``agent.actuator.plan_runner``).
"""

import abc
import asyncio
import time
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import structlog

from kubemend.agent.actuator import hooks, turns
from kubemend.agent.actuator.context import (
    NO_PREPARATION,
    ActuatorContext,
    PreStopHook,
    StartPreparation,
    SuccessorSpec,
)
from kubemend.agent.actuator.hold.hold_set import HoldSet
from kubemend.agent.clients.cri import errors as cri_errors
from kubemend.agent.model.workloads import ContainerId, ContainerRef, ContainerState, ContainerSummary
from kubemend.agent.restart import clone, intents, reservations
from kubemend.common import aio
from kubemend.common.pb.runtime.v1 import api_pb2

log = structlog.get_logger(__name__)

_Intent = TypeVar("_Intent", intents.Intent, intents.PodIntent)


@dataclass(slots=True, kw_only=True)
class RuntimeOps(abc.ABC, Generic[_Intent]):
    """The runtime, as one restart uses it. ``seen`` is the last listing, updated by the restart's own calls.

    ``fresh``: no call has changed anything since the listing; only a fresh listing proves the end. ``preparation`` is
    done before starts, ``holding`` holds the containers that are started.
    """

    tools: ActuatorContext
    intent: _Intent
    preparation: StartPreparation = NO_PREPARATION
    holding: HoldSet | None = None
    seen: tuple[ContainerSummary, ...] = ()
    fresh: bool = True
    last_error: str = ""
    phases: dict[str, float] = field(default_factory=dict)
    pre_stops: dict[str, str] = field(default_factory=dict)

    @abc.abstractmethod
    def material(self, name: str | None) -> SuccessorSpec | None:
        """Return the inputs for a container; None if they are not available."""

    @abc.abstractmethod
    async def containers(self) -> tuple[ContainerSummary, ...]:
        """Return the containers that the rule is about. Raises CriError."""

    def pre_stop_hook(self, name: str) -> PreStopHook | None:
        """Return a container's preStop hook."""
        material = self.material(name)
        return material.pre_stop_hook if material is not None else None

    def post_start_failed(self) -> bool:
        """Return whether a container whose postStart hook has failed is stopped, as kubelet does."""
        return True

    async def start(self, container_id: ContainerId) -> bool:
        """Have the runtime start it; return False if that was not done."""
        await self.clean_before_start(container_id)
        if self.holding is not None and self.holding.takes(self.name_of(container_id)):
            await self.holding.expect(container_id)
        await self.tools.runtime.start_container(container_id)
        return True

    async def started(self, container_id: ContainerId) -> None:
        """Handle the start of a container."""
        if self.holding is None:
            return
        name = self.name_of(container_id)
        if self.holding.takes(name):
            await self.holding.hold(container_id)
        else:
            self.holding.note_started(container_id, name=name)

    async def stopped(self, container_id: ContainerId) -> None:
        """Handle the stop of a container."""

    async def clean_before_start(self, container_id: ContainerId) -> None:
        """Move files to keep and clean up, as the pod requests or its deaths.

        No old container may run any more, and this one not yet, or it is held.
        """
        name = self.name_of(container_id)
        if self.material(name) is None:
            return
        begun = asyncio.get_running_loop().time()
        if (keeping := self.preparation.kept.get(name)) is not None:
            await keeping.before_start(container_id)
            self.add_phase_time(_KEEP_PHASE, since=begun)
        if self.preparation.cleans(name):
            begun = asyncio.get_running_loop().time()
            await self.preparation.clean(name, is_first=self.is_first)
            self.add_phase_time(_CLEAN_PHASE, since=begun)

    @property
    def is_first(self) -> bool:
        """Return whether no new container has run in place of the stopped ones."""
        return True

    def is_held(self, container_id: ContainerId) -> bool:
        """Return whether a started container waits before it runs."""
        return self.holding is not None and self.holding.takes(self.name_of(container_id))

    async def refresh(self) -> None:
        """List the containers. Retries without limit: a listing is needed to decide, and the time limit bounds it."""
        backoff = aio.Backoff(first=0.02, limit=2.0)
        while True:
            try:
                self.seen = await self.containers()
            except cri_errors.CriError as error:
                self.last_error = str(error)
                await backoff.wait()
            else:
                self.fresh = True
                return

    async def stop(self, container_id: ContainerId) -> None:
        """Stop a container. The preStop hook runs first and uses up part of the grace period, as in kubelet.

        A container that is frozen for a round cannot use a grace period: only SIGKILL reaches it.
        """
        is_frozen = self.holding is not None and self.holding.is_frozen(container_id)
        grace, last = 0.0 if is_frozen else self.intent.grace_seconds, self.pre_stop_hook(self.name_of(container_id))
        if grace > 0 and last is not None:
            done = await hooks.run_pre_stop(
                last.hook, runtime=self.tools.runtime, container_id=container_id, pod_ip=last.pod_ip, grace=grace
            )
            grace = done.grace
            self.note_pre_stop(self.name_of(container_id), failure=done.failure)
        await self.tools.runtime.stop_container(container_id, grace=grace)
        self.mark(container_id, ContainerState.EXITED)
        await self.stopped(container_id)

    def note_pre_stop(self, name: str, *, failure: str | None) -> None:
        """Record why a container's preStop hook failed, for people to read."""
        if failure is not None:
            self.pre_stops[name] = f"{name}'s preStop hook failed: {failure}"

    async def create(self, name: str | None) -> None:
        """Create the successor of that name. Raises CriError."""
        material = self.material(name)
        assert material is not None
        successor = material.successor
        config, own = successor.config, successor.termination_log
        if own is not None and self.tools.files.make_termination_log(own):
            config = clone.with_own_termination_log(successor)
        await self.make(config, sandbox_config=material.sandbox_config)

    async def make(self, config: api_pb2.ContainerConfig, *, sandbox_config: api_pb2.PodSandboxConfig) -> None:
        """Create a container. Raises CriError."""
        container_id = await self.tools.runtime.create_container(
            sandbox_id=self.intent.sandbox_id, config=config, sandbox_config=sandbox_config
        )
        created = ContainerSummary(
            id=container_id,
            ref=ContainerRef(pod=self.intent.target.pod, name=config.labels[reservations.NAME_LABEL]),
            sandbox_id=self.intent.sandbox_id,
            attempt=config.metadata.attempt,
            state=ContainerState.CREATED,
            created_at=max([time.time_ns(), *(view.created_at + 1 for view in self.seen)]),
            restart_id=self.intent.id,
        )
        self.seen = (*self.seen, created)
        self.fresh = False

    async def start_with_hooks(self, container_id: ContainerId) -> None:
        """Start a container, and do what belongs to a start. Raises CriError."""
        if not await self.start(container_id):
            return
        self.mark(container_id, ContainerState.RUNNING)
        await self.after_start(container_id)

    async def after_start(self, container_id: ContainerId) -> None:
        """Do what belongs to a start that has taken effect: the link to its log, the postStart hook."""
        await self.started(container_id)
        name = self.name_of(container_id)
        material = self.material(name)
        if material is None:
            return
        ref = ContainerRef(pod=self.intent.target.pod, name=name)
        self.tools.files.link_log(ref, container_id=container_id, log_file=material.log_file)
        if not self.is_held(container_id):
            await self.post_start(container_id)

    async def released(self) -> None:
        """Do the work that was postponed while containers were held: run the postStart hooks of the successors."""
        assert self.holding is not None
        held = self.holding.names
        if not any(material.post_start for name in held if (material := self.material(name)) is not None):
            return
        await self.refresh()
        ours = [view for view in self.seen if view.restart_id == self.intent.id and view.ref.name in held]
        await asyncio.gather(*(self.post_start(view.id) for view in ours if view.state is ContainerState.RUNNING))

    async def post_start(self, container_id: ContainerId) -> None:
        """Run the container's postStart hook, if it has one."""
        material = self.material(self.name_of(container_id))
        if material is None or material.post_start is None:
            return
        if self.holding is not None and not self.holding.runs_hook(container_id):
            return
        try:
            async with turns.waiting():
                await hooks.run_post_start(
                    material.post_start,
                    runtime=self.tools.runtime,
                    container_id=container_id,
                    pod_ip=material.pod_ip,
                )
        except hooks.HookFailedError as error:
            log.warning("restart.post_start_failed", restart=self.intent.id, container=container_id, error=str(error))
            self.last_error = str(error)
            if self.post_start_failed():
                async with turns.waiting(after=0.0 if self.intent.grace_seconds > 0 else turns.SLOW):
                    await self.tools.runtime.stop_container(container_id, grace=self.intent.grace_seconds)
                await self.refresh()

    async def remove(self, container_id: ContainerId) -> None:
        """Remove a container. Raises CriError."""
        await self.tools.runtime.remove_container(container_id)
        self._removed(container_id)
        self.seen = tuple(view for view in self.seen if view.id != container_id)
        self.fresh = False

    def _removed(self, container_id: ContainerId) -> None:
        """Remove the file that was created for a successor."""
        view = next((view for view in self.seen if view.id == container_id), None)
        if view is None or view.restart_id != self.intent.id:
            return
        material = self.material(view.ref.name)
        if material is not None and (own := material.successor.termination_log) is not None:
            self.tools.files.remove_termination_log(own)

    def add_phase_time(self, phase: str, *, since: float) -> None:
        """Add the time since ``since`` (of the loop's clock) to a phase."""
        self.phases[phase] = self.phases.get(phase, 0.0) + asyncio.get_running_loop().time() - since

    def name_of(self, container_id: ContainerId) -> str:
        """Return the name of a listed container; the target's if it is not listed."""
        return next((view.ref.name for view in self.seen if view.id == container_id), self.intent.target.name)

    def mark(self, container_id: ContainerId, state: ContainerState) -> None:
        """Record the effect of a call on a container."""
        self.seen = tuple(replace(view, state=state) if view.id == container_id else view for view in self.seen)
        self.fresh = False


_CLEAN_PHASE = "clean"
_KEEP_PHASE = "keep"
