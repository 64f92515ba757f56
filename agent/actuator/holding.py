"""What one member of a round holds: whatever starts in its pod under some names, until it is let go."""

import asyncio
import enum
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from agent.actuator.cgroups import Cgroup
from agent.actuator.exec_hold import HoldError
from agent.actuator.standby import Held
from agent.model.workloads import ContainerId
from common import contained

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


class _Fate(enum.Enum):
    """What becomes of a container that is held."""

    HELD = enum.auto()
    LET_GO = enum.auto()
    KILLED = enum.auto()


@dataclass(slots=True, eq=False)
class _Container:
    """A container that is expected, is being frozen, or stands still: the same for all who hold it in turn.

    ``armed`` holds it at its first instruction until it is frozen; a ``borrowed`` one is released by its owner. Its
    ``freezing`` goes on whoever holds it by then; ``slipped`` and ``failed`` are what came of it.
    """

    id: ContainerId
    armed: Held | None = None
    borrowed: bool = False
    arming: asyncio.Lock = field(default_factory=asyncio.Lock)
    freezing: asyncio.Task[None] | None = None
    slipped: float = 0.0
    failed: str = ""
    fate: _Fate = _Fate.HELD

    @property
    def takes_arms(self) -> bool:
        """Whether it is to be held at its first instruction yet."""
        is_to_stand = self.freezing is None or not self.freezing.done()
        return self.armed is None and self.fate is _Fate.HELD and is_to_stand

    def disarm(self) -> None:
        """Release what holds it at its first instruction, unless that is somebody else's to do."""
        if self.armed is not None and not self.borrowed:
            self.armed.release()
            self.armed = None


class Holding:
    """Holds one pod's containers of these names. ``mark`` is written on them.

    ``spared`` are those that are not held, because they are to end, and ``foreign`` is how many of the held kubelet has
    made. ``doing`` is what the restart is at that starts them, for those who wait for it.
    ``is_to_let_go`` is set when the word has come to let go, and something is still to be settled before.
    """

    def __init__(self, freezer: Freezer, *, mark: str, names: Collection[str] = ()) -> None:
        self.names = frozenset(names)
        self.mark = mark
        self.spared: frozenset[ContainerId] = frozenset()
        self.foreign = 0
        self.doing = "Preparing"
        self.is_to_let_go = False
        self._freezer = freezer
        self._near: Cgroup | None = None
        self._on = True
        self._containers: dict[ContainerId, _Container] = {}
        self._asked_for: set[ContainerId] = set()

    @property
    def on(self) -> bool:
        """Whether it still holds."""
        return self._on

    @property
    def held(self) -> frozenset[ContainerId]:
        """Everything that it has frozen, or is about to."""
        return self.ever_held if self._on else frozenset()

    @property
    def ever_held(self) -> frozenset[ContainerId]:
        """Everything that it has frozen since it was made."""
        return frozenset(each.id for each in self._containers.values() if each.freezing is not None)

    @property
    def slipped(self) -> float:
        """For how many seconds at most one has run that it was asked to hold.

        What it has taken over, and nobody asks for, is to end: how that was held is the earlier holder's matter.
        """
        return max((each.slipped for each in self._containers.values() if each.id in self._asked_for), default=0.0)

    @property
    def failed(self) -> str:
        """Why one that it was asked to hold could not be; empty when all could."""
        failed = (each for each in self._containers.values() if each.failed)
        return next((each.failed for each in failed if each.id in self._asked_for), "")

    def stands_still(self, container_id: ContainerId) -> bool:
        """Whether a container has been frozen, and not let go: no signal but SIGKILL reaches it."""
        container = self._containers.get(container_id)
        return container is not None and container.freezing is not None and container.fate is not _Fate.LET_GO

    def has_let_go(self, container_id: ContainerId) -> bool:
        """Whether a container was held, and has been let run: from then on it is the one that stays."""
        container = self._containers.get(container_id)
        return container is not None and container.freezing is not None and container.fate is _Fate.LET_GO

    def takes(self, name: str) -> bool:
        """Whether a container of that name is to be held."""
        return self._on and name in self.names

    def spare(self, containers: Iterable[ContainerId], *, near: int | None = None) -> None:
        """Leave these alone: they are to end. ``near`` is a process of one of them, which runs yet."""
        self.spared |= frozenset(containers)
        self._near = self._freezer.beside(near)

    async def expect(self, container_id: ContainerId, *, by: Held | None = None) -> None:
        """Be ready for the start of a container; ``by`` holds it at its first instruction already, until later."""
        if not self._on:
            return
        container = self._known(container_id)
        if by is not None:
            container.armed, container.borrowed = by, True
            return
        async with container.arming:  # armed twice, the release of the one would take what the other waits for
            if not container.takes_arms:
                return
            armed = await self._freezer.arm(container_id)
            if container.takes_arms:
                container.armed = armed
            elif armed is not None:
                armed.release()

    async def hold(self, container_id: ContainerId, *, foreign: bool = False) -> None:
        """Freeze a container that has been started, once however often it is said. Never fails: see ``failed``."""
        if not self._on or container_id in self.spared:
            return
        self._asked_for.add(container_id)
        container = self._known(container_id)
        if container.freezing is None:
            self.foreign += foreign
            container.freezing = asyncio.create_task(self._freeze(container), name=f"freeze {container_id}")
        await asyncio.shield(container.freezing)

    async def settled(self) -> None:
        """Wait until all that has been started stands still."""
        under_way = [each.freezing for each in self._containers.values() if each.freezing is not None]
        await asyncio.gather(*(asyncio.shield(task) for task in under_way))

    def let_go(self) -> frozenset[ContainerId]:
        """Let everything run, and hold no more; return what runs now. May be called again: nothing is let go twice."""
        if not self._on:
            return frozenset()
        self._end(_Fate.LET_GO)
        runs = frozenset(container_id for container_id in self._containers if self._thaws(container_id))
        for container in self._containers.values():
            with contained.within(contained.Part.CONTAINER, container.id):
                container.disarm()
        return runs

    def _thaws(self, container_id: ContainerId) -> bool:
        with contained.within(contained.Part.CONTAINER, container_id):
            return self._freezer.thaw(container_id)
        return False

    def hand_on(self, to: "Holding") -> None:
        """Hold no more, but leave everything as it is: frozen, about to be, or expected. ``to`` takes it over."""
        if self._on:
            self._on = False
            to.inherit(self._containers.values())

    def inherit(self, containers: Iterable[_Container]) -> None:
        """Take over what another one holds (``hand_on``). What that one has failed to freeze is tried anew."""
        for container in containers:
            self._containers[container.id] = _Container(container.id) if container.failed else container

    def adopt(self, containers: Iterable[ContainerId]) -> None:
        """Take over what somebody else has frozen."""
        for container_id in containers:
            self._known(container_id).freezing = asyncio.create_task(_nothing(), name=f"frozen {container_id}")

    def kill(self) -> None:
        """End everything that is held, and hold no more."""
        if not self._on:
            return
        self._end(_Fate.KILLED)
        for container in self._containers.values():
            with contained.within(contained.Part.CONTAINER, container.id):
                self._freezer.kill(container.id)
                if container.freezing is None:
                    container.disarm()  # what is being frozen stays armed until then: it shall not run before it ends

    def _known(self, container_id: ContainerId) -> _Container:
        return self._containers.setdefault(container_id, _Container(container_id))

    def _end(self, fate: _Fate) -> None:
        self._on = False
        for container in self._containers.values():
            container.fate = fate

    async def _freeze(self, container: _Container) -> None:
        try:
            container.slipped = await self._freezer.freeze(
                container.id, mark=self.mark, armed=container.armed, near=self._near
            )
        except HoldError as error:
            log.error("hold.failed", container=container.id, error=str(error))
            container.failed = str(error)
        finally:
            container.disarm()
        if container.fate is _Fate.LET_GO:
            self._freezer.thaw(container.id)  # meanwhile; it may stand still though not all of the freezing was done
        elif container.fate is _Fate.KILLED:
            self._freezer.kill(container.id)


async def _nothing() -> None:
    return
