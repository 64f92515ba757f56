"""What one member of a round holds: whatever starts in its pod under some names, until it is let go."""

import asyncio
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

import structlog

from agent.actuator.cgroups import Cgroup
from agent.actuator.exec_hold import HoldError
from agent.actuator.standby import Held
from agent.model.workloads import ContainerId

log = structlog.get_logger(__name__)


class Freezer(Protocol):
    """What containers are held with (``agent.actuator.freezer.Freezer``)."""

    def beside(self, pid: int | None) -> Cgroup | None:
        """Return the cgroup of the container that a process is in: those of its pod's others are beside it."""

    async def arm(self, container_id: ContainerId) -> Held | None:
        """Be ready for the start of a container; None where it cannot be held at its first instruction."""

    async def freeze(
        self, container_id: ContainerId, *, mark: str, armed: Held | None = None, near: Cgroup | None = None
    ) -> float:
        """Stop a container that has been started; return for how many seconds at most it ran. Raises HoldError."""

    def thaw(self, container_id: ContainerId) -> bool:
        """Let a container go on; whether it runs then."""

    def kill(self, container_id: ContainerId) -> None: ...


@dataclass(slots=True)
class Fate:
    """What has become of what is held; ``heir`` is that of whoever has taken it over."""

    let_go: bool = False
    killed: bool = False
    heir: "Fate | None" = None

    @property
    def last(self) -> "Fate":
        """Return what counts now."""
        return self if self.heir is None else self.heir.last


class Holding:
    """Holds one pod's containers of these names. ``mark`` is written on them.

    ``spared`` are those that are not held, because they are to end. ``slipped`` is for how many seconds at most one of
    the held has run, ``foreign`` how many of them kubelet has made, and ``failed`` why one could not be held.
    """

    def __init__(self, freezer: Freezer, *, mark: str, names: Collection[str] = ()) -> None:
        self.names = frozenset(names)
        self.mark = mark
        self.spared: frozenset[ContainerId] = frozenset()
        self.fate = Fate()
        self.slipped = 0.0
        self.foreign = 0
        self.failed = ""
        self._freezer = freezer
        self._near: Cgroup | None = None
        self._on = True
        self._armed: dict[ContainerId, Held] = {}
        self._borrowed: set[ContainerId] = set()
        self._held: dict[ContainerId, asyncio.Task[None]] = {}

    @property
    def on(self) -> bool:
        """Whether it still holds."""
        return self._on

    @property
    def held(self) -> frozenset[ContainerId]:
        """Everything that it has frozen, or is about to."""
        return frozenset(self._held) if self._on else frozenset()

    @property
    def ever_held(self) -> frozenset[ContainerId]:
        """Everything that it has frozen since it was made."""
        return frozenset(self._held)

    def stands_still(self, container_id: ContainerId) -> bool:
        """Whether a container has been frozen, and not let go: no signal but SIGKILL reaches it."""
        return container_id in self._held and not self.fate.let_go

    def takes(self, name: str) -> bool:
        """Whether a container of that name is to be held."""
        return self._on and name in self.names

    def spare(self, containers: Iterable[ContainerId], *, near: int | None = None) -> None:
        """Leave these alone: they are to end. ``near`` is a process of one of them, which runs yet."""
        self.spared |= frozenset(containers)
        self._near = self._freezer.beside(near)

    async def expect(self, container_id: ContainerId, *, by: Held | None = None) -> None:
        """Be ready for the start of a container; ``by`` holds it at its first instruction already, until later."""
        if by is not None:
            self._armed[container_id] = by
            self._borrowed.add(container_id)
        elif self._on and container_id not in self._armed:
            armed = await self._freezer.arm(container_id)
            if armed is not None and self._on:
                self._armed[container_id] = armed
            elif armed is not None:
                armed.release()

    async def hold(self, container_id: ContainerId, *, foreign: bool = False) -> None:
        """Freeze a container that has been started, once however often it is said. Never fails: see ``failed``."""
        if not self._on or container_id in self.spared:
            return
        if container_id not in self._held:
            self.foreign += foreign
            self._held[container_id] = asyncio.create_task(self._freeze(container_id), name=f"freeze {container_id}")
        await asyncio.shield(self._held[container_id])

    async def settled(self) -> None:
        """Wait until all that has been started stands still."""
        await asyncio.gather(*(asyncio.shield(task) for task in self._held.values()))

    def let_go(self) -> frozenset[ContainerId]:
        """Let everything run, and hold no more; return what runs now. May be called again: nothing is let go twice."""
        if not self._on:
            return frozenset()
        self._on, self.fate.let_go = False, True
        runs = frozenset(container_id for container_id in self._held if self._freezer.thaw(container_id))
        self._release()
        return runs

    def hand_on(self, to: "Holding | None" = None) -> frozenset[ContainerId]:
        """Hold no more, but leave frozen what is: somebody else takes it over, ``to`` also what is about to be."""
        held = self.held
        if to is not None and self._on:
            waiting = self._armed.keys() - self._held.keys() - self._borrowed
            to.inherit(self._held, armed={container_id: self._armed.pop(container_id) for container_id in waiting})
            self.fate.heir = to.fate
        self._on = False
        self._release()
        return held

    def inherit(self, held: Mapping[ContainerId, "asyncio.Task[None]"], *, armed: Mapping[ContainerId, Held]) -> None:
        """Take over what another one freezes (``hand_on``), and what it is ready for."""
        self._held.update(held)
        self._armed.update(armed)

    def adopt(self, containers: Iterable[ContainerId]) -> None:
        """Take over what somebody else has frozen."""
        for container_id in containers:
            self._held[container_id] = asyncio.create_task(_nothing(), name=f"frozen {container_id}")

    def kill(self) -> None:
        """End everything that is held, and hold no more."""
        if not self._on:
            return
        self.fate.killed = True
        for container_id in self.hand_on():
            self._freezer.kill(container_id)

    async def _freeze(self, container_id: ContainerId) -> None:
        armed = self._armed.get(container_id)
        try:
            ran = await self._freezer.freeze(container_id, mark=self.mark, armed=armed, near=self._near)
        except HoldError as error:
            log.error("hold.failed", container=container_id, error=str(error))
            self.failed = str(error)
            return
        finally:
            self._disarm(container_id)
        self.slipped = max(self.slipped, ran)
        fate = self.fate.last
        if fate.let_go:
            self._freezer.thaw(container_id)  # meanwhile
        elif fate.killed:
            self._freezer.kill(container_id)

    def _disarm(self, container_id: ContainerId) -> None:
        if container_id in self._armed and container_id not in self._borrowed:
            self._armed.pop(container_id).release()

    def _release(self) -> None:
        for container_id in tuple(self._armed):
            self._disarm(container_id)


async def _nothing() -> None:
    return
