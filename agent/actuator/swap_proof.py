"""Prove that the successor of a swap is the old container again (``agent.restart.likeness``)."""

import asyncio
from dataclasses import replace

import structlog

from kubemend.agent.actuator.runtime_ops import RuntimeOps
from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.clients.cri.errors import CriError, InvalidAnswer, NotFound
from kubemend.agent.model.workloads import ContainerId, ContainerState
from kubemend.agent.restart import clone, intents, likeness
from kubemend.agent.restart.successor_spec import SuccessorSpec
from kubemend.common import aio

log = structlog.get_logger(__name__)


class SwapProof:
    """Compares the successor of one swap. ``unlike`` is how it differs; None if no difference is known.

    ``at_once`` bounds the comparisons of a node: a pod controls how large its containers' specs are.
    """

    def __init__(
        self, ops: RuntimeOps, intent: intents.Intent, *, spec: SuccessorSpec | None, at_once: asyncio.Semaphore
    ) -> None:
        self.unlike: str | None = None
        self._ops = ops
        self._intent = intent
        self._spec = spec
        self._at_once = at_once
        self._alike: set[ContainerId] = set()

    async def compare_waiting(self) -> None:
        """Compare the successor that waits for its start, if there is one."""
        for view in self._ops.state.seen:
            if view.restart_id == self._intent.id and view.state is ContainerState.CREATED:
                await self.compare(view.id)

    async def compare(self, successor: ContainerId) -> None:
        """Compare a successor with the old container, unless that has been done.

        CRI-O answers a second CreateContainer of one name with the container that has it, so this also finds out that
        the container is kubelet's.

        Retries while the runtime does not answer: the time limit bounds it, and nothing is stopped before. What cannot
        be compared counts as different. A plain copy of a config needs no comparison.
        """
        backoff = aio.Backoff(first=0.02, limit=2.0)
        spec = self._needed
        while spec is not None and successor not in self._alike and self.unlike is None:
            try:
                async with self._at_once:
                    is_there = await self._compare(successor, spec)
            except InvalidAnswer as error:
                self._note(successor, str(error))
            except CriError as error:
                self._ops.state.last_error = str(error)
                await backoff.wait()
            else:
                if not is_there:
                    await self._ops.refresh()
                return

    def close(self) -> None:
        """Count a successor that has not been compared as different: it will not be any more."""
        ours = {view.id for view in self._ops.state.seen if view.restart_id == self._intent.id}
        if self._needed is not None and self.unlike is None and ours - self._alike:
            self.unlike = "it has not been compared"

    @property
    def _needed(self) -> SuccessorSpec | None:
        return self._spec if self._spec is not None and self._spec.needs_proof else None

    async def _compare(self, successor: ContainerId, spec: SuccessorSpec) -> bool:
        """Return whether the successor exists. Raises CriError."""
        old, new = await aio.side_by_side(self._status(self._intent.old), self._status(successor))
        if new is not None:
            self._note(successor, self._difference(old, new, spec) if self._is_ours(new) else None)
        return new is not None

    def _note(self, successor: ContainerId, unlike: str | None) -> None:
        self.unlike = unlike
        if unlike is None:
            self._alike.add(successor)
            return
        self._ops.state.last_error = f"the successor would differ: {unlike}"
        log.warning("restart.successor_differs", restart=self._intent.id, field=unlike)

    async def _status(self, container_id: ContainerId) -> ContainerStatus | None:
        try:
            return await self._ops.tools.runtime.container_status(container_id)
        except NotFound:
            return None

    def _is_ours(self, new: ContainerStatus) -> bool:
        restart_id = new.annotations.get(clone.RESTART_ID_ANNOTATION)
        state = self._ops.state
        if restart_id != self._intent.id:
            state.seen = tuple(
                replace(each, restart_id=restart_id) if each.id == new.id else each for each in state.seen
            )
        return restart_id == self._intent.id

    def _difference(self, old: ContainerStatus | None, new: ContainerStatus, spec: SuccessorSpec) -> str | None:
        if old is None:  # kubelet has removed the dead container; a copy of its config needs no proof
            return "the old container does not exist any more" if spec.is_rebuilt else None
        return likeness.difference(
            *(likeness.Container(each.id, each.spec or {}, each.resources) for each in (old, new)),
            config=spec.successor.config,
            termination_path=spec.successor.termination_path,
        )
