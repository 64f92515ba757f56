"""Carry out swaps (``agent.restart.swap``)."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import structlog

from kubemend.agent.actuator import progress, turns
from kubemend.agent.actuator.context import NO_PREPARATION, ActuatorContext, StartPreparation, SuccessorSpec
from kubemend.agent.actuator.hold.exec_hold import HoldError
from kubemend.agent.actuator.hold.hold_set import HoldSet, OldDead
from kubemend.agent.actuator.hold.standby import EndedError, Standby
from kubemend.agent.actuator.next_names import NameAhead, NextNames
from kubemend.agent.actuator.outcomes import Outcome, Result
from kubemend.agent.actuator.plan_runner import RELIST_SECONDS, PlanRunner, next_change
from kubemend.agent.clients.cri.errors import CallFailed, CriError, NameReserved, NotFound
from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary
from kubemend.agent.restart import clone, intents, likeness, overlap, steps, swap
from kubemend.common import aio, contained
from kubemend.common.pb.runtime.v1 import api_pb2

log = structlog.get_logger(__name__)

_ENDED_SECONDS = 1.0
"""Seconds within which the processes of a killed container normally end. The runtime's own stop follows in any case."""
_SHOWN_SECONDS = 2.0
"""Seconds within which a runtime shows that a container's process is gone."""
_OLD_MAY_RUN = (Result.UNDONE, Result.NOT_ALIKE, Result.FAILED, Result.STUCK, Result.DEVICE_NOT_USABLE)
"""Results after which the old container may run, and must not stay frozen."""


class SwapActuator:
    """Carry out swaps, one at a time per container, many concurrently."""

    def __init__(self, tools: ActuatorContext) -> None:
        self._tools = tools
        self._next_names = NextNames(tools.runtime)

    async def carry_out(
        self,
        intent: intents.Intent,
        *,
        material: SuccessorSpec | None,
        resolution: steps.Resolution = steps.Resolution.FINISH,
        followed: progress.Progress = progress.NO_FOLLOWER,
        seen: Sequence[ContainerSummary] | None = None,
        preparation: StartPreparation = NO_PREPARATION,
        holding: HoldSet | None = None,
    ) -> Outcome:
        """Carry out the intent and return its outcome; with ``holding`` the successor is held at the end.

        ``material`` is None on a replay whose old container is gone. ``seen`` is a listing made just before (it saves
        one call on the fast path). ``followed`` receives each step. ``UNFINISHED`` means that the time limit (plus the
        grace period) passed, or the runtime was unavailable: carry it out again later.
        """
        run = _SwapRun(
            tools=self._tools,
            next_names=self._next_names,
            intent=intent,
            made_from=material,
            resolution=resolution,
            followed=followed,
            seen=tuple(seen or ()),
            preparation=preparation,
            holding=holding,
        )
        return await run.run_to_end(list_first=seen is None)

    async def released(self, intent: intents.Intent, *, material: SuccessorSpec | None, holding: HoldSet) -> None:
        """Do the work that was postponed while the successor was held."""
        run = _SwapRun(
            tools=self._tools, next_names=self._next_names, intent=intent, made_from=material, holding=holding
        )
        await run.released()

    def reserve_ahead(self, name: NameAhead) -> None:
        """Begin to reserve a name before it is decided whether its container is restarted."""
        self._next_names.reserve_ahead(name)

    async def give_back_ahead(self, old: ContainerId) -> None:
        """Release the name that was reserved ahead, unless a restart has taken it over. Never fails."""
        await self._next_names.give_back_ahead(old)

    async def give_back(self, intent: intents.Intent) -> None:
        """Release the name that is reserved for an intent.

        Call it when kubelet shows the successor running, or when the restart is over. Never fails.
        """
        await self._next_names.give_back(intent)


@dataclass(slots=True, kw_only=True)
class _SwapRun(PlanRunner[intents.Intent]):
    next_names: NextNames
    made_from: SuccessorSpec | None
    stopped_old: bool = False
    standby: Standby | None = None
    dying: bool = False  # the old one did not freeze, because its process is ending or has ended
    ended_at: float | None = None  # when the old one was first seen to have ended
    unanswered: bool = False  # a call next to the old one may or may not have taken effect
    frozen: int | None = None  # the old one's pid
    alike: set[ContainerId] = field(default_factory=set)
    unlike: str | None = None
    refused: str | None = None
    not_overlapped: overlap.Obstacle | None = overlap.Obstacle.NOT_BESIDE

    def next_steps(self) -> Sequence[steps.Step]:
        can_clone = self.made_from is not None
        stays = self._stays()
        step = swap.next_step(
            self.intent,
            self.seen,
            resolution=self.resolution,
            can_clone=can_clone,
            is_unlike=self.unlike is not None,
            stays=stays,
            kubelet_first=self._kubelet_is_first(),
        )
        return (step,)

    def _kubelet_is_first(self) -> bool:
        """Return whether kubelet is about to create the successor, where the runtime stalls two calls for one name.

        CRI-O lets a CreateContainer wait until its timeout (kubelet's: two minutes) if another one for the same name is
        in progress, even when that one has ended (``getResourceOrWait`` in server/utils.go, 1.34). A container that has
        ended by itself wakes kubelet, whose call would come during this agent's.
        """
        if not self._is_rebuilt or self._old_runs:
            return False
        now = asyncio.get_running_loop().time()
        if self.ended_at is None:
            self.ended_at = now
        return now - self.ended_at < swap.KUBELETS_TURN and self.tools.kubelet_creates(self.intent.target)

    async def examine(self) -> None:
        """Compare a successor that was made from a rebuilt config with the old container. Nothing has been stopped.

        CRI-O answers a second CreateContainer of one name with the container that has it, so this also finds out that
        the container is kubelet's.
        """
        original = self.made_from.original if self.made_from is not None else None
        if original is None:
            return
        for view in self.seen:
            if view.restart_id == self.intent.id and view.state is ContainerState.CREATED and view.id not in self.alike:
                await self._compare(view, original)

    async def _compare(self, view: ContainerSummary, original: likeness.Original) -> None:
        """Retries while the runtime does not answer: the time limit bounds it, and nothing is done before."""
        backoff = aio.Backoff(first=0.02, limit=2.0)
        while True:
            try:
                status = await self.tools.runtime.container_status(view.id)
                break
            except NotFound:
                await self.refresh()
                return
            except CriError as error:
                self.last_error = str(error)
                await backoff.wait()
        restart_id = status.annotations.get(clone.RESTART_ID_ANNOTATION)
        if restart_id != self.intent.id:
            self.seen = tuple(replace(each, restart_id=restart_id) if each is view else each for each in self.seen)
            return
        assert self.made_from is not None
        successor = self.made_from.successor
        self.unlike = likeness.difference(
            original,
            likeness.Original(status.id, status.spec or {}),
            config=successor.config,
            termination_path=successor.termination_path,
        )
        if self.unlike is None:
            self.alike.add(view.id)
        else:
            self.last_error = f"the successor would differ: {self.unlike}"
            log.warning("restart.not_alike", restart=self.intent.id, field=self.unlike)

    def _stays(self) -> frozenset[ContainerId]:
        """Return the containers that a round has released, or will release unless kubelet's container is running."""
        if self.holding is None:
            return frozenset()
        released = {view.id for view in self.seen if self.holding.has_released(view.id)}
        if self.holding.must_release and all(view.state is not ContainerState.RUNNING for view in self._copies()):
            released |= {view.id for view in self.seen if self.holding.is_frozen(view.id)}
        return frozenset(released)

    def _copies(self) -> list[ContainerSummary]:
        newer = (view for view in self.seen if view.attempt > self.intent.old_attempt and view.id != self.intent.old)
        return [view for view in newer if view.restart_id != self.intent.id]

    def material(self, name: str | None) -> SuccessorSpec | None:  # noqa: ARG002 - there is only one container
        return self.made_from

    async def containers(self) -> tuple[ContainerSummary, ...]:
        target = self.intent.target
        found = await self.tools.runtime.list_containers(pod_uid=target.pod.uid, name=target.name)
        self.unanswered = False
        return found

    async def run_to_end(self, *, list_first: bool = True) -> Outcome:
        """Carry out the swap; whatever happens, no container stays held or frozen."""
        try:
            # Slots keep a bare super() from working in a dataclass (bpo-46404).
            outcome = await super(_SwapRun, self).run_to_end(list_first=list_first)
        finally:
            self._end_standby()
            self._thaw_unless_replaced()
        if outcome.result in _OLD_MAY_RUN:
            await self._thaw_old()
        return outcome

    async def make(self, config: api_pb2.ContainerConfig, *, sandbox_config: api_pb2.PodSandboxConfig) -> None:
        """Create the successor. A running old container is frozen first.

        Kubelet starts a copy of a successor that waits in CREATED as soon as anything of the pod wakes it, and after an
        agent crash nothing else would keep both from running. So the name of such a copy is reserved, unless the
        successor is started at once beside the frozen old container. A program that dies of the fault is listed as
        running, but its process cannot be frozen any more.
        """
        waits = not self.stopped_old and not (self._old_runs and self.intent.order.starts_first)
        freezes = self._old_runs and self.intent.grace_seconds <= 0  # a frozen container cannot use its grace period
        if freezes and not await self._freeze_old():
            if self._is_rebuilt and self.dying and await self._has_ended(gone=True):
                return  # kubelet may create its successor first (``_kubelet_is_first``)
            waits = True
        if waits:
            await self._reserve_next(config, sandbox_config=sandbox_config)
        self.unanswered |= freezes
        await self._make(config, sandbox_config=sandbox_config)
        self.unanswered = False

    async def _reserve_next(self, config: api_pb2.ContainerConfig, *, sandbox_config: api_pb2.PodSandboxConfig) -> None:
        """Reserve the next name.

        CRI-O has no use for it: it would give the reservation to kubelet as its container.
        """
        if not self._is_rebuilt:
            await self.next_names.reserve(self.intent, config, sandbox_config=sandbox_config)

    async def _reserve_before_stop(self) -> None:
        """Reserve the next name, unless a new container runs beside the old one, whose end kubelet sees in a moment.

        Kubelet adopts a successor that has been started, and copies one that waits in CREATED.
        """
        if self.made_from is not None and self.standby is None and not self._copies():
            made = self.made_from
            await self._reserve_next(made.successor.config, sandbox_config=made.sandbox_config)

    async def _make(self, config: api_pb2.ContainerConfig, *, sandbox_config: api_pb2.PodSandboxConfig) -> None:
        try:
            await self._create(config, sandbox_config=sandbox_config)
        except NameReserved:
            name, attempt = config.metadata.name, config.metadata.attempt
            await self.next_names.clear(self.intent.sandbox_id, name=name, attempt=attempt)
            raise
        except CallFailed as error:
            self.refused = f"the runtime refuses it: {error}"
            raise

    async def _create(self, config: api_pb2.ContainerConfig, *, sandbox_config: api_pb2.PodSandboxConfig) -> None:
        """Create the successor, unless kubelet creates a container of that name first. Raises CriError.

        Where another call creates a container of the same name, CRI-O lets this one wait for minutes, even when the
        other has ended (``getResourceOrWait`` in server/utils.go, 1.34).
        """
        if not self._is_rebuilt:
            return await super(_SwapRun, self).make(config, sandbox_config=sandbox_config)
        creating = asyncio.ensure_future(super(_SwapRun, self).make(config, sandbox_config=sandbox_config))
        target = self.intent.target
        try:
            async with self.tools.events.subscribe(target.pod.uid) as changes:
                while True:
                    change = asyncio.ensure_future(next_change(changes, timeout=RELIST_SECONDS))
                    await asyncio.wait({creating, change}, return_when=asyncio.FIRST_COMPLETED)
                    change.cancel()
                    if creating.done():
                        return creating.result()
                    seen: Sequence[ContainerSummary] = ()
                    with contextlib.suppress(CriError):
                        seen = await self.tools.runtime.list_containers(pod_uid=target.pod.uid, name=target.name)
                    for view in seen:
                        if view.attempt == config.metadata.attempt and view.restart_id != self.intent.id:
                            raise NameReserved("CreateContainer: kubelet's container has the name", holder=view.id)
        finally:
            creating.cancel()
            await asyncio.gather(creating, return_exceptions=True)

    async def start(self, container_id: ContainerId) -> bool:
        """Start the successor; next to a running old container, on standby.

        If it cannot be held, the swap continues in the other order; if there is none, it is undone. If the old
        container has ended by itself, the successor needs no hold, and waits only for the devices.
        """
        if not self._old_runs:
            return await super(_SwapRun, self).start(container_id)
        try:
            await self._prepare_standby(container_id)
        except HoldError as error:
            if not await self._has_ended(gone=isinstance(error, EndedError)):
                self._cannot_hold(error)
            return False
        assert self.standby is not None
        self.unanswered = True
        try:
            await self.tools.runtime.start_container(container_id)
        except CriError:
            await self._remove_unless_it_can_start(container_id)
            raise
        self.unanswered = False
        return True

    async def _has_ended(self, *, gone: bool) -> bool:
        """Return whether the old container has ended. If its process is ``gone``, wait until the runtime shows that."""
        async with turns.waiting(), self.tools.events.subscribe(self.intent.target.pod.uid) as changes:
            await self.refresh()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_SHOWN_SECONDS):
                    while gone and self._old_runs:
                        await next_change(changes, timeout=RELIST_SECONDS)
                        await self.refresh()
        return not self._old_runs

    def _cannot_hold(self, error: HoldError) -> None:
        self.last_error = str(error)
        if (otherwise := self.intent.order.otherwise) is None:
            self.resolution = steps.Resolution.UNDO
            return
        log.warning("restart.not_held", restart=self.intent.id, order=otherwise.value, error=str(error))
        self.intent = replace(self.intent, order=otherwise)

    async def _remove_unless_it_can_start(self, container_id: ContainerId) -> None:
        """Remove a successor that the runtime failed to start.

        The failure counts as its exit, on which kubelet would act. It has run nothing, and the old container is
        unchanged.
        """
        await self.refresh()
        if self._old_runs and any(v.id == container_id and v.state is ContainerState.EXITED for v in self.seen):
            await self.remove(container_id)

    async def started(self, container_id: ContainerId) -> None:
        if self.standby is not None:
            await self.standby.engaged()
            await self._overlap(container_id)
        await super(_SwapRun, self).started(container_id)

    async def _overlap(self, successor: ContainerId) -> None:
        """Have the successor import while the old container dies, if the pod allows it and nothing forbids it."""
        assert self.standby is not None
        assert self.tools.standbys is not None
        if self._overlap_requested is None or self.standby.driver is not None or self._overlap_forbidden is not None:
            return
        with contained.within(contained.Part.CONTAINER, successor) as work:
            self.not_overlapped = await self.tools.standbys.overlap(self.standby)
        if work.error is not None:
            self.not_overlapped = overlap.Obstacle.INTERNAL_ERROR

    def outcome(self, result: Result, *, detail: str = "") -> Outcome:
        """Return the outcome, which says whether the successor imported early if the pod allows that.

        Nothing can overlap the end of a container that has ended by itself.
        """
        found = super(_SwapRun, self).outcome(result, detail=detail)
        if self._overlap_requested is None or not self.stopped_old:
            return found
        note = overlap.note(self.intent.target.name, self._overlap_forbidden or self.not_overlapped)
        return replace(found, notes=(*found.notes, note))

    @property
    def _overlap_requested(self) -> overlap.Request | None:
        return self.made_from.overlap_request if self.made_from is not None else None

    @property
    def _overlap_forbidden(self) -> overlap.Obstacle | None:
        request = self._overlap_requested
        if request is None:
            return None
        name = self.intent.target.name
        cleans = self.preparation.cleans(name) or name in self.preparation.kept
        return overlap.obstacle(request, in_round=self.holding is not None, cleans=cleans)

    async def stop(self, container_id: ContainerId) -> None:
        """Stop a container; the frozen old one of a round by the kernel, and only then by the runtime.

        The gang waits for the old processes to end, not for the runtime, which starts a program for its kill and
        another one to clean up. If they do not end in time, the runtime's stop is followed as any other.
        """
        if container_id == self.intent.old:
            await self._reserve_before_stop()
        begun = asyncio.get_running_loop().time()
        by_round = self.holding is not None and self.standby is not None and container_id == self.intent.old
        if not by_round or not await self._is_killed():
            await super(_SwapRun, self).stop(container_id)
            return
        self.mark(container_id, ContainerState.EXITED)
        await self.stopped(container_id)
        if self.standby is None and self.holding is not None:
            now = asyncio.get_running_loop().time()
            stop = self.phases.get(steps.StepKind.STOP.value, 0.0) + now - begun
            seconds = {**self.phases, steps.StepKind.STOP.value: stop}
            self.holding.on_dead(OldDead(self.intent.id, seconds, has_started=True))
        await self.tools.runtime.stop_container(container_id, grace=0.0)

    async def _is_killed(self) -> bool:
        assert self.tools.standbys is not None
        assert self.standby is not None
        return await self.tools.standbys.kill(self.standby, timeout=_ENDED_SECONDS)

    async def stopped(self, container_id: ContainerId) -> None:
        """Release the successor: the old one is dead. Wait until it has left its devices before.

        In a terminating pod it stays held, until it is removed: kubelet may not have seen it, and CRI-O gives such a
        container up to two minutes after SIGTERM.
        """
        self.stopped_old |= container_id == self.intent.old
        if self.standby is None or container_id != self.intent.old:
            return
        begun = asyncio.get_running_loop().time()
        try:
            async with turns.waiting():
                while not await self.tools.gates.opens(self.intent.id, timeout=RELIST_SECONDS):
                    if self.is_ending():
                        return
                    self.tools.gates.raise_if_shut(self.intent.id)
                    self.report_left(self.tools.gates.last_left(self.intent.id), name=self.intent.target.name)
                    self.extend_time()
        finally:
            self.waited_at_gate(since=begun, within=steps.StepKind.STOP)
        if self.is_ending():
            return
        await self.clean_before_start(container_id)
        self._end_standby()
        for view in self.seen:
            ours = view.restart_id == self.intent.id and view.state is ContainerState.RUNNING
            if ours and not self.is_held(view.id):
                await self.post_start(view.id)

    def is_held(self, container_id: ContainerId) -> bool:
        return self.standby is not None or super(_SwapRun, self).is_held(container_id)

    def gives_up(self) -> bool:
        """Remove the successor rather than leave it waiting next to the old one; then list again.

        A rebuilt config that the runtime refuses counts as one that differs. If even that fails, the intent stays in
        the journal: the outcome is UNFINISHED.
        """
        if not any(view.restart_id == self.intent.id for view in self.seen):
            if not self._is_rebuilt or self.refused is None:
                return True
            self.unlike = self.refused  # a config that was rebuilt; the pod can still be reset
            self.failures = 0
            return False
        if not self._old_runs:
            return True
        self.resolution = steps.Resolution.UNDO
        self.failures = 0
        return False

    def post_start_failed(self) -> bool:
        """Return whether to stop the container as kubelet does, which then restarts it with its own backoff.

        Where an exit would fail the pod for good, a container with a failed hook is the lesser evil, and is reported.
        """
        return self.intent.order.exit_is_restarted

    @property
    def _is_rebuilt(self) -> bool:
        """Return whether the runtime does not return configs (CRI-O), so that the successor's was rebuilt."""
        return self.made_from is not None and self.made_from.original is not None

    @property
    def _old_runs(self) -> bool:
        return any(view.id == self.intent.old and view.state is ContainerState.RUNNING for view in self.seen)

    async def _prepare_standby(self, successor: ContainerId) -> None:
        if self.tools.standbys is None:
            raise HoldError("this node cannot hold containers")
        if self.standby is not None:
            self.standby.release()  # of a start that failed
        pid = self.frozen
        if pid is None:
            pid = (await self.tools.runtime.container_status(self.intent.old)).pid
        self.standby = await self.tools.standbys.prepare(successor, old_pid=pid)
        if self.holding is not None:  # the freezer takes over the hold until the old one is dead
            await self.holding.expect(successor, by=self.standby.hold)

    def _end_standby(self) -> None:
        if self.standby is None:
            return
        standby, self.standby = self.standby, None
        ours = {view.state for view in self.seen if view.restart_id == self.intent.id}
        if ContainerState.RUNNING in ours:
            standby.release_successor(old_is_dead=not self._old_runs)
        elif self.unanswered or ContainerState.UNKNOWN in ours:
            standby.release()  # the old one stays frozen until the containers are listed again
        else:
            standby.give_up()

    async def _freeze_old(self) -> bool:
        """Freeze the old container, and return whether it is frozen.

        If that fails, it runs until it is stopped a moment later, or ends by itself.
        """
        if self.tools.standbys is None:
            return False
        pid = (await self.tools.runtime.container_status(self.intent.old)).pid
        try:
            self.tools.standbys.freeze(pid)
        except HoldError as error:
            self.dying = isinstance(error, EndedError)
            log.warning("restart.not_frozen", restart=self.intent.id, error=str(error))
            return False
        self.frozen = pid
        self.dying = not await self.tools.standbys.is_frozen(pid)
        return not self.dying

    def _thaw_unless_replaced(self) -> None:
        """Thaw the old container unless a successor exists, or may exist: then it stays frozen until listed again."""
        ours = any(view.restart_id == self.intent.id and view.state in steps.LIVE for view in self.seen)
        if self.tools.standbys is not None and self.frozen is not None and not (ours or self.unanswered):
            self.tools.standbys.thaw(self.frozen)

    async def _thaw_old(self) -> None:
        """Thaw the old container: a previous agent may have left it frozen."""
        if self.tools.standbys is None or self.intent.order is intents.SwapOrder.STOP_FIRST:
            return
        with contextlib.suppress(CriError):
            old = await self.tools.runtime.container_status(self.intent.old)
            self.tools.standbys.thaw(old.pid)
