"""Carry out swaps: ask the rule for the next step, do it, look again, until the rule says done.

All knowledge of what is right lives in ``agent.restart.swap``; here are the calls, their deadlines and their
failures. A lost answer is not an error: the runtime is listed again and the rule goes on from what is there.
"""

import asyncio
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

import structlog

from agent.actuator import hooks
from agent.actuator.host_files import HostFiles
from agent.actuator.outcomes import Outcome, Result
from agent.cri import errors as cri_errors
from agent.cri.events import ContainerEvent
from agent.model.workloads import ContainerId, ContainerState, ContainerView, Hook, PodUid, SandboxId
from agent.restart import clone, host_files, intents, swap
from common import aio
from common.pb.runtime.v1 import api_pb2

log = structlog.get_logger(__name__)


class Runtime(hooks.Execs, Protocol):
    """The calls of ``agent.cri.client.CriClient`` that a swap makes; each raises CriError and has a deadline."""

    async def list_containers(
        self, *, pod_uid: PodUid | None = None, name: str | None = None
    ) -> tuple[ContainerView, ...]: ...

    async def create_container(
        self,
        *,
        sandbox_id: SandboxId,
        config: api_pb2.ContainerConfig,
        sandbox_config: api_pb2.PodSandboxConfig,
    ) -> ContainerId: ...

    async def start_container(self, container_id: ContainerId) -> None: ...

    async def stop_container(self, container_id: ContainerId, *, grace: float) -> None: ...

    async def remove_container(self, container_id: ContainerId) -> None: ...


class PodEvents(Protocol):
    """Something that tells when a pod's containers change (``agent.sources.containers.ContainerWatch``)."""

    def subscribe(self, pod_uid: PodUid) -> AbstractAsyncContextManager[asyncio.Queue[ContainerEvent]]:
        """Yield a queue that receives an item at every change of the pod's containers."""


@dataclass(frozen=True, slots=True)
class Material:
    """What is needed to make the successor; absent (None) on a replay whose old container is gone."""

    successor: clone.Successor
    sandbox_config: api_pb2.PodSandboxConfig
    post_start: Hook | None = None
    pod_ip: str | None = None

    @property
    def log_file(self) -> Path:
        """The successor's log on the host."""
        return Path(host_files.log_file(self.sandbox_config.log_directory, self.successor.log_path))


@dataclass(slots=True)
class _Run:
    """The moving parts of one swap."""

    intent: intents.Intent
    material: Material | None
    seen: tuple[ContainerView, ...]
    fresh: bool = True
    failures: int = 0
    phases: dict[str, float] = field(default_factory=dict)
    last_error: str = ""

    def mark(self, container_id: ContainerId, state: ContainerState) -> None:
        self.seen = tuple(replace(view, state=state) if view.id == container_id else view for view in self.seen)
        self.fresh = False


class SwapActuator:
    """Carries out one swap at a time per container; many run side by side."""

    def __init__(self, *, runtime: Runtime, events: PodEvents, files: HostFiles, time_limit: float = 60.0) -> None:
        self._runtime = runtime
        self._events = events
        self._files = files
        self._time_limit = time_limit

    async def carry_out(
        self,
        intent: intents.Intent,
        *,
        material: Material | None,
        resolution: swap.Resolution = swap.Resolution.FINISH,
        seen: Sequence[ContainerView] | None = None,
    ) -> Outcome:
        """Bring the intent to an end and say which.

        ``seen`` is a listing made just before (it saves one call on the fast path). ``UNFINISHED`` means that the
        time limit (plus the grace period) passed, or the runtime stayed away: carry it out again later.
        """
        run = _Run(intent=intent, material=material, seen=tuple(seen) if seen is not None else ())
        async with self._events.subscribe(intent.target.pod.uid) as changes:
            try:
                async with asyncio.timeout(self._time_limit + intent.grace_seconds):
                    if seen is None:
                        await self._look(run)
                    return await self._drive(run, resolution=resolution, changes=changes)
            except TimeoutError:
                return self._outcome(run, Result.UNFINISHED, detail=run.last_error or "time limit reached")

    async def _drive(
        self, run: _Run, *, resolution: swap.Resolution, changes: asyncio.Queue[ContainerEvent]
    ) -> Outcome:
        backoff = aio.Backoff(first=0.02, limit=2.0)
        while True:
            step = swap.next_step(run.intent, run.seen, resolution=resolution, can_clone=run.material is not None)
            if step.kind is swap.StepKind.DONE and run.fresh:
                return self._outcome(run, _RESULT[step.why], container=step.container)
            try:
                await self._perform(step, run, changes=changes)
            except cri_errors.DeadlineExceeded as error:
                if step.kind is swap.StepKind.STOP:
                    return await self._stuck(run, error)
                await self._after_failure(run, error, backoff=backoff)
            except cri_errors.NameReserved as error:
                # Kubelet is creating the same attempt; its container shows up in a moment and is adopted.
                run.last_error = str(error)
                await self._next_change(changes, timeout=backoff.next_wait())
                await self._look(run)
            except cri_errors.CriError as error:
                await self._after_failure(run, error, backoff=backoff)
            if run.failures >= _MOST_FAILURES:
                return self._outcome(run, Result.FAILED, detail=run.last_error)

    async def _perform(self, step: swap.Step, run: _Run, *, changes: asyncio.Queue[ContainerEvent]) -> None:
        begun = asyncio.get_running_loop().time()
        match step.kind:
            case swap.StepKind.STOP:
                await self._stop(run)
            case swap.StepKind.CREATE:
                await self._create(run)
            case swap.StepKind.START:
                assert step.container is not None
                await self._start(run, step.container)
            case swap.StepKind.REMOVE:
                assert step.container is not None
                await self._remove(run, step.container)
            case swap.StepKind.WAIT:
                await self._next_change(changes, timeout=1.0)
                await self._look(run)
            case swap.StepKind.DONE:
                await self._look(run)
        phase = "confirm" if step.kind is swap.StepKind.DONE else step.kind.value
        run.phases[phase] = run.phases.get(phase, 0.0) + asyncio.get_running_loop().time() - begun
        log.debug("swap.step", restart=run.intent.id, step=step.kind.value, why=step.why.value)

    async def _look(self, run: _Run) -> None:
        """List what is there. Patient: without that nothing can be decided, and the time limit bounds it."""
        backoff = aio.Backoff(first=0.02, limit=2.0)
        target = run.intent.target
        while True:
            try:
                run.seen = await self._runtime.list_containers(pod_uid=target.pod.uid, name=target.name)
            except cri_errors.CriError as error:
                run.last_error = str(error)
                await backoff.wait()
            else:
                run.fresh = True
                return

    async def _stop(self, run: _Run) -> None:
        await self._runtime.stop_container(run.intent.old, grace=run.intent.grace_seconds)
        run.mark(run.intent.old, ContainerState.EXITED)

    async def _create(self, run: _Run) -> None:
        assert run.material is not None
        container_id = await self._runtime.create_container(
            sandbox_id=run.intent.sandbox_id,
            config=run.material.successor.config,
            sandbox_config=run.material.sandbox_config,
        )
        created = ContainerView(
            id=container_id,
            ref=run.intent.target,
            sandbox_id=run.intent.sandbox_id,
            attempt=run.intent.old_attempt + 1,
            state=ContainerState.CREATED,
            created_at=max((view.created_at for view in run.seen), default=0) + 1,
            restart_id=run.intent.id,
        )
        run.seen = (*run.seen, created)
        run.fresh = False

    async def _start(self, run: _Run, container_id: ContainerId) -> None:
        material = run.material
        if material is not None:
            self._files.empty_termination_log(material.successor.termination_log)
        await self._runtime.start_container(container_id)
        run.mark(container_id, ContainerState.RUNNING)
        if material is None:
            return
        self._files.link_log(run.intent.target, container_id=container_id, log_file=material.log_file)
        if material.post_start is not None:
            await self._run_hook(run, material, container_id=container_id)

    async def _run_hook(self, run: _Run, material: Material, *, container_id: ContainerId) -> None:
        assert material.post_start is not None
        try:
            await hooks.run_post_start(
                material.post_start, runtime=self._runtime, container_id=container_id, pod_ip=material.pod_ip
            )
        except hooks.HookFailedError as error:
            log.warning(
                "swap.post_start_failed", restart=run.intent.id, container=str(run.intent.target), error=str(error)
            )
            run.last_error = str(error)
            if run.intent.order is intents.Order.STOP_FIRST:
                # As kubelet does; it then restarts the container with its own backoff. Where an exit would fail
                # the pod for good, a container with a failed hook is the lesser evil, and is reported.
                await self._runtime.stop_container(container_id, grace=run.intent.grace_seconds)
                await self._look(run)

    async def _remove(self, run: _Run, container_id: ContainerId) -> None:
        await self._runtime.stop_container(container_id, grace=0)
        await self._runtime.remove_container(container_id)
        run.seen = tuple(view for view in run.seen if view.id != container_id)
        run.fresh = False

    async def _stuck(self, run: _Run, error: cri_errors.CriError) -> Outcome:
        """The kill did not work (a process in D state). Take back a waiting successor; never retry for ever."""
        log.error("swap.kill_without_effect", restart=run.intent.id, container=run.intent.old, error=str(error))
        await self._look(run)
        waiting = [view.id for view in run.seen if view.restart_id == run.intent.id and view.state in _NOT_STARTED]
        try:
            for container_id in waiting:
                await self._runtime.remove_container(container_id)
        except cri_errors.CriError as again:
            return self._outcome(run, Result.UNFINISHED, detail=f"{error}; {again}")
        return self._outcome(run, Result.STUCK, detail=str(error))

    async def _after_failure(self, run: _Run, error: cri_errors.CriError, *, backoff: aio.Backoff) -> None:
        if not isinstance(error, cri_errors.RuntimeUnavailable):
            run.failures += 1
        run.last_error = str(error)
        log.warning("swap.call_failed", restart=run.intent.id, error=str(error))
        await backoff.wait()
        await self._look(run)

    @staticmethod
    async def _next_change(changes: asyncio.Queue[ContainerEvent], *, timeout: float) -> None:
        """Wait for the pod's containers to change; look again after ``timeout`` seconds in any case."""
        try:
            async with asyncio.timeout(timeout):
                await changes.get()
        except TimeoutError:
            return

    @staticmethod
    def _outcome(run: _Run, result: Result, *, container: ContainerId | None = None, detail: str = "") -> Outcome:
        return Outcome(
            result=result,
            container=container,
            phases=MappingProxyType(dict(run.phases)),
            detail=detail or run.last_error,
        )


_MOST_FAILURES = 3
_NOT_STARTED = (ContainerState.CREATED, ContainerState.UNKNOWN)

_RESULT = {
    swap.Why.SWAPPED: Result.SWAPPED,
    swap.Why.ADOPTED: Result.ADOPTED,
    swap.Why.SUCCESSOR_EXITED: Result.SUCCESSOR_EXITED,
    swap.Why.UNDONE: Result.UNDONE,
    swap.Why.NOTHING_TO_CLONE: Result.FAILED,
}
