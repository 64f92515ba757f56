"""Create, start and stop the containers of a swap, so that kubelet never finds none, and no two run.

These are the plain calls (``agent.actuator.runtime_ops``) with what a swap does before and after them.
"""

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

import structlog

from kubemend.agent.actuator import listings, turns
from kubemend.agent.actuator.device_waits import DeviceWaits
from kubemend.agent.actuator.hold.exec_hold import HoldError
from kubemend.agent.actuator.hold.hold_set import OldDead
from kubemend.agent.actuator.hold.standby import EndedError
from kubemend.agent.actuator.next_names import NextNames
from kubemend.agent.actuator.runtime_ops import RuntimeOps
from kubemend.agent.actuator.swap_proof import SwapProof
from kubemend.agent.actuator.swap_standby import SwapStandby
from kubemend.agent.clients.cri.errors import CallFailed, CriError, NameReserved
from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary
from kubemend.agent.restart import intents, steps
from kubemend.agent.restart.successor_spec import SuccessorSpec
from kubemend.common.pb.runtime.v1 import api_pb2

log = structlog.get_logger(__name__)


class SwapCalls:
    """The calls of one swap.

    ``intent`` has the other order once the successor could not be held. ``stopped_old``: the old container has been
    stopped, and has not ended by itself. ``refused`` is why the runtime refuses to create the successor.
    """

    def __init__(
        self,
        ops: RuntimeOps,
        intent: intents.Intent,
        *,
        spec: SuccessorSpec | None,
        standby: SwapStandby,
        proof: SwapProof,
        next_names: NextNames,
    ) -> None:
        self.intent = intent
        self.stopped_old = False
        self.refused: str | None = None
        self._is_rest_ended = False
        self._ops = ops
        self._tools = ops.tools
        self._state = ops.state
        self._holding = ops.holding
        self._spec = spec
        self._standby = standby
        self._proof = proof
        self._next_names = next_names
        self._devices = DeviceWaits(ops)

    @property
    def is_rebuilt(self) -> bool:
        """Return whether the runtime does not return configs (CRI-O), so that the successor's was rebuilt."""
        return self._spec is not None and self._spec.is_rebuilt

    @property
    def starts_on_standby(self) -> bool:
        """Return whether the successor is started next to the running old container."""
        return self._standby.old_runs and self.intent.order.starts_first

    def copies(self) -> list[ContainerSummary]:
        """Return the containers that kubelet has created in place of the old one."""
        old, seen = self.intent.old, self._state.seen
        newer = (view for view in seen if view.attempt > self.intent.old_attempt and view.id != old)
        return [view for view in newer if view.restart_id != self.intent.id]

    async def create(self, name: str) -> None:
        assert self._spec is not None
        await self._ops.read_resources(self.intent.old)
        await self.make(self._ops.successor_config(name), sandbox_config=self._spec.sandbox_config)

    async def make(self, config: api_pb2.ContainerConfig, *, sandbox_config: api_pb2.PodSandboxConfig) -> None:
        """Create the successor. A running old container is frozen first.

        Kubelet starts a copy of a successor that waits in CREATED as soon as anything of the pod wakes it, and after an
        agent crash nothing else would keep both from running. So the name of such a copy is reserved, unless the
        successor is started at once next to the frozen old container. A program that dies of the fault is listed as
        running, but its process cannot be frozen any more.
        """
        standby = self._standby
        waits = not self.stopped_old and not self.starts_on_standby
        freezes = standby.old_runs and self.intent.grace_seconds <= 0  # a frozen container cannot use its grace period
        if freezes and not await standby.freeze_old():
            if self.is_rebuilt and standby.dying and await standby.old_has_ended(gone=True):
                return  # kubelet may create its successor first (``SwapStrategy``)
            waits = True
        if waits:
            await self._reserve_next(config, sandbox_config=sandbox_config)
        self._state.unanswered |= freezes
        making = self._make(config, sandbox_config=sandbox_config)
        if freezes and not waits:
            await turns.side_by_side(making, standby.check_frozen())  # the runtime takes longer than the check
        else:
            await making
        self._state.unanswered = False

    async def _reserve_next(self, config: api_pb2.ContainerConfig, *, sandbox_config: api_pb2.PodSandboxConfig) -> None:
        """Reserve the next name.

        CRI-O has no use for it: it would give the reservation to kubelet as its container.
        """
        if not self.is_rebuilt:
            await self._next_names.reserve(self.intent, config, sandbox_config=sandbox_config)

    async def renew_name(self) -> None:
        """Reserve the next name once more, if the successor waits and the reservation is gone."""
        spec = self._spec
        if spec is not None and not self._ops.is_ending():
            await self._next_names.renew(self.intent, spec.successor.config, sandbox_config=spec.sandbox_config)

    async def _reserve_before_stop(self) -> None:
        """Reserve the next name, unless a new container runs next to the old one, whose end kubelet sees in a moment.

        Nothing is created in a pod that ends. Kubelet adopts a successor that has been started, and copies one that
        waits in CREATED.
        """
        if self._spec is not None and not (self._standby.is_on or self.copies() or self._ops.is_ending()):
            await self._reserve_next(self._spec.successor.config, sandbox_config=self._spec.sandbox_config)

    async def _make(self, config: api_pb2.ContainerConfig, *, sandbox_config: api_pb2.PodSandboxConfig) -> None:
        try:
            await self._make_unless_kubelet_does(config, sandbox_config=sandbox_config)
        except NameReserved:
            name, attempt = config.metadata.name, config.metadata.attempt
            await self._next_names.clear(self.intent.sandbox_id, name=name, attempt=attempt)
            raise
        except CallFailed as error:
            self.refused = f"the runtime refuses it: {error}"
            raise

    async def _make_unless_kubelet_does(
        self, config: api_pb2.ContainerConfig, *, sandbox_config: api_pb2.PodSandboxConfig
    ) -> None:
        """Create the successor, unless kubelet creates a container of that name first. Raises CriError.

        Where another call creates a container of the same name, CRI-O lets this one wait for minutes, even when the
        other has ended (``getResourceOrWait`` in server/utils.go, 1.34).
        """
        if not self.is_rebuilt:
            await self._ops.make(config, sandbox_config=sandbox_config)
            return
        creating = asyncio.ensure_future(self._ops.make(config, sandbox_config=sandbox_config))
        target = self.intent.target
        try:
            async with self._tools.events.subscribe(target.pod.uid) as changes:
                while True:
                    change = asyncio.ensure_future(listings.next_change(changes))
                    await asyncio.wait({creating, change}, return_when=asyncio.FIRST_COMPLETED)
                    change.cancel()
                    if creating.done():
                        creating.result()
                        return
                    seen: Sequence[ContainerSummary] = ()
                    with contextlib.suppress(CriError):
                        seen = await self._tools.runtime.list_containers(pod_uid=target.pod.uid, name=target.name)
                    for view in seen:
                        if view.attempt == config.metadata.attempt and view.restart_id != self.intent.id:
                            raise NameReserved("CreateContainer: kubelet's container has the name", holder=view.id)
        finally:
            creating.cancel()
            await asyncio.gather(creating, return_exceptions=True)

    async def start(self, container_id: ContainerId) -> None:
        """Start the successor; next to a running old container, on standby, and compare it during that time.

        One that differs stays held at its first instruction, until it is removed.
        """
        if not self._standby.old_runs:
            await self.end_rest_of_old()
            await self._ops.start_prepared(container_id)
            await self._started(container_id)
        elif await self._prepare_standby(container_id):
            await turns.side_by_side(self._start_held(container_id), self._proof.compare(container_id))
            await self._let_import(container_id)

    async def end_rest_of_old(self) -> None:
        """Have the processes end that are left of an old container that has ended by itself. Raises CriError.

        Other runtimes end them before they report that; CRI-O does not if the pod's containers share a PID namespace.
        """
        old = self._state.find(self.intent.old)
        ended = old is not None and old.state is ContainerState.EXITED and not self.stopped_old
        if self._spec is None or not self.is_rebuilt or not ended or self._is_rest_ended:
            return
        if self._spec.successor.config.linux.security_context.namespace_options.pid != api_pb2.CONTAINER:
            await self._tools.runtime.stop_container(self.intent.old, grace=0.0)
        self._is_rest_ended = True

    async def _prepare_standby(self, container_id: ContainerId) -> bool:
        """Prepare the start of the successor, held, next to the frozen old container; return False if it must not be.

        If it cannot be held, the swap continues in the other order; if there is none, it is undone. If the old
        container has ended by itself, the successor needs no hold, and waits only for the devices.
        """
        try:
            await self._standby.prepare(container_id)
        except HoldError as error:
            if not await self._standby.old_has_ended(gone=isinstance(error, EndedError)):
                self._cannot_hold(error)
            return False
        return True

    async def _start_held(self, container_id: ContainerId) -> None:
        self._state.unanswered = True
        try:
            await self._tools.runtime.start_container(container_id)
        except CriError:
            await self._remove_unless_it_can_start(container_id)
            raise
        self._state.unanswered = False
        await self._started(container_id)

    async def _let_import(self, container_id: ContainerId) -> None:
        if self._proof.unlike is None:
            await self._standby.let_import(container_id)

    def _cannot_hold(self, error: HoldError) -> None:
        self._state.last_error = str(error)
        if (otherwise := self.intent.order.otherwise) is None:
            self._state.resolution = steps.Resolution.UNDO
            return
        log.warning("restart.not_held", restart=self.intent.id, order=otherwise.value, error=str(error))
        self.intent = replace(self.intent, order=otherwise)

    async def _remove_unless_it_can_start(self, container_id: ContainerId) -> None:
        """Remove a successor that the runtime failed to start.

        The failure counts as its exit, on which kubelet would act. It has run nothing, and the old container is
        unchanged.
        """
        await self._ops.refresh()
        view = self._state.find(container_id)
        if self._standby.old_runs and view is not None and view.state is ContainerState.EXITED:
            await self._ops.remove(container_id)

    async def complete_start(self, container_id: ContainerId) -> None:
        """Do what belongs to a start. On standby, the successor has its postStart hook once the old one is dead."""
        await self._started(container_id)
        await self._let_import(container_id)

    async def _started(self, container_id: ContainerId) -> None:
        self._state.mark(container_id, ContainerState.RUNNING)
        await self._standby.engage()
        await self._ops.hold_started(container_id)
        self._ops.link_log(container_id)
        if not self.is_held(container_id):
            await self._post_start(container_id)

    async def _post_start(self, container_id: ContainerId) -> None:
        """Run the postStart hook. Kubelet restarts a container whose hook has failed, with its own backoff.

        Where an exit would fail the pod for good, a container with a failed hook is the lesser evil, and is reported.
        """
        await self._ops.post_start(container_id, stops_failed=self.intent.order.exit_is_restarted)

    async def stop(self, container_id: ContainerId) -> None:
        """Stop a container; the frozen old one of a round by the kernel, and only then by the runtime.

        The gang waits for the old processes to end, not for the runtime, which starts a program for its kill and
        another one to clean up. If they do not end in time, the runtime's stop is followed as any other. If it may have
        completed, the runtime must show how it ended.
        """
        if container_id == self.intent.old:
            await self._reserve_before_stop()
        begun = asyncio.get_running_loop().time()
        is_standby = self._standby.is_on and container_id == self.intent.old
        by_round = self._holding is not None and is_standby and not self._may_have_completed
        seems_newest = is_standby and self._is_from_the_future(container_id)
        if not by_round or seems_newest or not await self._standby.kill_old():
            await self._ops.stop(container_id)
            if seems_newest and not (self._may_have_completed or self._ops.preparation.kept):
                await self._ops.remove(container_id)  # at once: its end would fail a ``Never`` pod
            await self.complete_stop(container_id)
            return
        self._state.mark(container_id, ContainerState.EXITED)
        await self.complete_stop(container_id)
        if not self._standby.is_on and self._holding is not None:
            now = asyncio.get_running_loop().time()
            stop = self._state.phases.get(steps.StepKind.STOP.value, 0.0) + now - begun
            seconds = {**self._state.phases, steps.StepKind.STOP.value: stop}
            self._holding.on_dead(OldDead(self.intent.id, seconds, has_started=True))
        await self._tools.runtime.stop_container(container_id, grace=0.0)

    def _is_from_the_future(self, container_id: ContainerId) -> bool:
        """Return whether a container was created before the clock was set back: kubelet takes it for the newest."""
        view = self._state.find(container_id)
        return view is not None and view.created_at > time.time_ns()

    async def complete_stop(self, container_id: ContainerId) -> None:
        """Release the successor: the old one is dead. Wait until it has left its devices before.

        In a terminating pod it stays held, until it is removed: kubelet may not have seen it, and CRI-O gives such a
        container up to two minutes after SIGTERM.
        """
        self.stopped_old |= container_id == self.intent.old
        if not self._standby.is_on or container_id != self.intent.old:
            return
        begun = asyncio.get_running_loop().time()
        try:
            async with turns.waiting():
                while not await self._devices.wait_to_open():
                    if self._ops.is_ending():
                        return
                    self._devices.check()
        finally:
            self._devices.count(since=begun, within=steps.StepKind.STOP)
        if self._ops.is_ending():
            return
        ours = [
            view.id
            for view in self._state.seen
            if view.restart_id == self.intent.id and view.state is ContainerState.RUNNING
        ]
        if await self._has_completed():
            for successor in ours:
                await self._ops.remove(successor)
            return
        for successor in ours or [container_id]:
            await self._ops.prepare_release(successor, held=self._standby.held_process)
        self._standby.end()
        for successor in ours:
            if not self.is_held(successor):
                await self._post_start(successor)

    @property
    def _may_have_completed(self) -> bool:
        """Return whether the old container may end for good by itself: it has not been seen frozen."""
        return self.intent.completes and self.intent.grace_seconds <= 0 and not self._standby.is_frozen

    async def _has_completed(self) -> bool:
        """Return whether the old container has ended for good by itself, for example while it could not be frozen.

        Kubelet sees the end of the held successor only if it lists within the milliseconds before that is removed.
        """
        if not self._may_have_completed:
            return False
        status = await self._ops.status_of(self.intent.old)
        return status is not None and status.state is ContainerState.EXITED and status.exit_code == 0

    def is_held(self, container_id: ContainerId) -> bool:
        return self._standby.is_on or self._ops.is_held(container_id)
