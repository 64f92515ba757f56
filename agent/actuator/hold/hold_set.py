"""Hold the containers that start in one round member's pod under given names, until they are released."""

import asyncio
import enum
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from kubemend.agent.actuator.hold.cgroups import Cgroup
from kubemend.agent.actuator.hold.exec_hold import HoldError
from kubemend.agent.actuator.hold.standby import Held
from kubemend.agent.model.workloads import ContainerId
from kubemend.common import contained

log = structlog.get_logger(__name__)


class Freezer(Protocol):
    """Freezes and thaws containers (``agent.actuator.hold.freezer.Freezer``)."""

    def container_cgroup(self, pid: int | None) -> Cgroup | None:
        """Return the cgroup of a process's container; the pod's other containers are its siblings."""

    async def arm(self, container_id: ContainerId) -> Held | None:
        """Prepare the start of a container; return None if it cannot be held at its first instruction."""

    async def freeze(
        self, container_id: ContainerId, *, mark: str, armed: Held | None = None, near: Cgroup | None = None
    ) -> float:
        """Freeze a started container; return the maximum number of seconds for which it ran. Raises HoldError."""

    def thaw(self, container_id: ContainerId) -> bool | None:
        """Thaw a container; return whether it runs then, None if that cannot be told: it is still being frozen."""

    def kill(self, container_id: ContainerId) -> None: ...

    async def take_over(self, *, keep: Mapping[str, float]) -> Mapping[str, Mapping[ContainerId, bool]]:
        """Find the containers that previous agents have frozen, and thaw those whose mark is not in ``keep``.

        Return all that were found, by mark, and whether each must still be held.
        """


@dataclass(frozen=True, slots=True)
class OldDead:
    """No old container of a restart runs any more, its devices are free, and its successors exist.

    ``seconds`` are the lengths of its phases until then. ``has_started``: the successors are started, and held.
    """

    restart: str
    seconds: Mapping[str, float]
    has_started: bool


class _Fate(enum.Enum):
    """The state of a container in a hold set: held, released or killed."""

    HELD = enum.auto()
    RELEASED = enum.auto()
    KILLED = enum.auto()


@dataclass(slots=True, eq=False)
class _Container:
    """A container that is expected, being frozen, or frozen. Successive holders share the object.

    - ``armed`` holds it at its first instruction until it is frozen. The owner of a ``borrowed`` hold releases it.
    - The task ``freezing`` continues when the holder changes; ``unheld_seconds`` and ``failed`` are its result.
    - ``stays``: it has run before, and nothing new has begun in it.
    - ``ended``: it had no process when it was released, or was killed.
    """

    id: ContainerId
    armed: Held | None = None
    borrowed: bool = False
    arming: asyncio.Lock = field(default_factory=asyncio.Lock)
    freezing: asyncio.Task[None] | None = None
    unheld_seconds: float = 0.0
    failed: str = ""
    stays: bool = False
    ended: bool = False
    fate: _Fate = _Fate.HELD

    @property
    def must_be_armed(self) -> bool:
        """Return whether it must still be armed for a hold at its first instruction."""
        is_to_stand = self.freezing is None or not self.freezing.done()
        return self.armed is None and self.fate is _Fate.HELD and is_to_stand

    def disarm(self) -> None:
        """Release its hold at the first instruction, unless another owner does that."""
        if self.armed is not None and not self.borrowed:
            self.armed.release()
            self.armed = None


class HoldSet:
    """Hold one pod's containers of these names. ``mark`` is written on their cgroups.

    ``excluded`` containers are not held, because they will end. ``foreign`` counts the held containers that kubelet
    created. ``doing`` is the current step of the restart, for gang members that wait for it, with ``detail`` for
    people.

    ``on_dead`` is called once the old containers of a restart are dead.
    """

    def __init__(
        self,
        freezer: Freezer,
        *,
        mark: str,
        names: Collection[str] = (),
        on_dead: Callable[[OldDead], None] = lambda _: None,
    ) -> None:
        self.mark = mark
        self.on_dead = on_dead
        self.excluded: frozenset[ContainerId] = frozenset()
        self.foreign = 0
        self.doing = "Preparing"
        self.detail = ""
        self._names = frozenset(names)
        self._must_release = False
        self._freezer = freezer
        self._near: Cgroup | None = None
        self._on = True
        self._containers: dict[ContainerId, _Container] = {}
        self._asked_for: set[ContainerId] = set()
        self._started_free: set[ContainerId] = set()
        self._hooked: set[ContainerId] = set()

    @property
    def on(self) -> bool:
        """Return whether it still holds."""
        return self._on

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the containers that it holds."""
        return self._names

    def select(self, names: Iterable[str]) -> None:
        """Hold containers of these names from now on, and of no others. Frozen containers stay frozen."""
        self._names = frozenset(names)

    @property
    def must_release(self) -> bool:
        """Return whether the release has been ordered; work may remain to be done before it."""
        return self._must_release

    def order_release(self) -> None:
        """Record that the release has been ordered."""
        self._must_release = True

    @property
    def held(self) -> frozenset[ContainerId]:
        """Return the containers that it has frozen, or is about to freeze."""
        return self.ever_held if self._on else frozenset()

    @property
    def ever_held(self) -> frozenset[ContainerId]:
        """Return the containers that it has ever frozen."""
        return frozenset(each.id for each in self._containers.values() if each.freezing is not None)

    @property
    def ended(self) -> frozenset[ContainerId]:
        """Return the containers whose end is the holder's: they ended while it held them, or it killed them.

        A container that is released while it is being frozen is not one of them: it runs.
        """
        return frozenset(each.id for each in self._containers.values() if each.ended)

    @property
    def unheld_seconds(self) -> float:
        """Return the maximum number of seconds for which a container ran that it was asked to hold.

        An inherited container that no caller asked to hold will end: how it was held is the previous holder's matter.
        """
        return max(
            (each.unheld_seconds for each in self._containers.values() if each.id in self._asked_for), default=0.0
        )

    @property
    def failed(self) -> str:
        """Return why a container that it was asked to hold could not be; empty if all could."""
        failed = (each for each in self._containers.values() if each.failed)
        return next((each.failed for each in failed if each.id in self._asked_for), "")

    def is_frozen(self, container_id: ContainerId) -> bool:
        """Return whether a container is frozen and not released: no signal but SIGKILL reaches it."""
        container = self._containers.get(container_id)
        return container is not None and container.freezing is not None and container.fate is not _Fate.RELEASED

    def has_released(self, container_id: ContainerId) -> bool:
        """Return whether a container was held and has been released, or was started after the release.

        From then on it is the one that stays.
        """
        if container_id in self._started_free:
            return True
        container = self._containers.get(container_id)
        return container is not None and container.freezing is not None and container.fate is _Fate.RELEASED

    @property
    def started_free(self) -> frozenset[ContainerId]:
        """Return the containers that were started after the release, and so never held."""
        return frozenset(self._started_free)

    def note_started(self, container_id: ContainerId, *, name: str) -> None:
        """Record that a successor of that name was started. One that starts after the release is never held."""
        if self._must_release and name in self._names and not self._on:
            self._started_free.add(container_id)

    def runs_hook(self, container_id: ContainerId) -> bool:
        """Return whether a container's postStart hook must run now: once, however its hold ended."""
        is_new = container_id not in self._hooked
        self._hooked.add(container_id)
        return is_new

    def must_hold(self, name: str) -> bool:
        """Return whether a container of that name must be held."""
        return self._on and name in self._names

    def exclude(self, containers: Iterable[ContainerId], *, near: int | None = None) -> None:
        """Exclude containers that will end. ``near`` is a process of one of them that still runs."""
        self.excluded |= frozenset(containers)
        self._near = self._freezer.container_cgroup(near)

    async def expect(self, container_id: ContainerId, *, by: Held | None = None) -> None:
        """Prepare the start of a container; ``by`` holds it at its first instruction already, until later."""
        if not self._on:
            return
        container = self._known(container_id)
        if by is not None:
            container.armed, container.borrowed = by, True
            return
        async with container.arming:  # if it were armed twice, releasing one hold would allow what the other blocks
            if not container.must_be_armed:
                return
            armed = await self._freezer.arm(container_id)
            if container.must_be_armed:
                container.armed = armed
            elif armed is not None:
                armed.release()

    async def hold(self, container_id: ContainerId, *, foreign: bool = False, stays: bool = False) -> None:
        """Freeze a started container, once even if called repeatedly. Never fails: see ``failed``.

        ``stays``: only the program in it is restarted, and the next one has not begun.
        """
        if not self._on or container_id in self.excluded:
            return
        self._asked_for.add(container_id)
        container = self._known(container_id)
        if container.freezing is None:
            self.foreign += foreign
            container.stays = stays
            container.freezing = asyncio.create_task(self._freeze(container), name=f"freeze {container_id}")
        await asyncio.shield(container.freezing)

    async def settled(self) -> None:
        """Wait until all started containers are frozen."""
        under_way = [each.freezing for each in self._containers.values() if each.freezing is not None]
        await asyncio.gather(*(asyncio.shield(task) for task in under_way))

    def release(self) -> frozenset[ContainerId]:
        """Release everything and stop holding; return the containers that run now. Later calls release nothing."""
        if not self._on:
            return frozenset()
        self._end(_Fate.RELEASED)
        runs = frozenset(each.id for each in self._containers.values() if self._thaw(each))
        for container in self._containers.values():
            with contained.within(contained.Part.CONTAINER, container.id):
                container.disarm()
        return runs

    def _thaw(self, container: _Container) -> bool:
        """Thaw a container, and return whether it certainly runs."""
        with contained.within(contained.Part.CONTAINER, container.id):
            runs = self._freezer.thaw(container.id)
            container.ended |= runs is False
            return runs is True
        return False

    def transfer_to(self, to: "HoldSet") -> None:
        """Stop holding, but leave all containers as they are: frozen, being frozen, or expected. ``to`` takes over."""
        if self._on:
            self._on = False
            to.inherit(self._containers.values())

    def inherit(self, containers: Iterable[_Container]) -> None:
        """Take over the containers of another hold set (``transfer_to``). Failed freezes are tried again."""
        for container in containers:
            self._containers[container.id] = _Container(container.id) if container.failed else container

    def adopt(self, containers: Iterable[ContainerId]) -> None:
        """Take over containers that another process has frozen."""
        for container_id in containers:
            self._known(container_id).freezing = asyncio.create_task(_nothing(), name=f"frozen {container_id}")

    def kill(self) -> None:
        """Kill everything that is held, and stop holding."""
        if not self._on:
            return
        self._end(_Fate.KILLED)
        for container in self._containers.values():
            container.ended = container.freezing is not None
            with contained.within(contained.Part.CONTAINER, container.id):
                self._freezer.kill(container.id)
                if container.freezing is None:
                    container.disarm()  # during a freeze it stays armed, so that it does not run before it is killed

    def _known(self, container_id: ContainerId) -> _Container:
        return self._containers.setdefault(container_id, _Container(container_id))

    def _end(self, fate: _Fate) -> None:
        self._on = False
        for container in self._containers.values():
            container.fate = fate

    async def _freeze(self, container: _Container) -> None:
        try:
            ran = await self._freezer.freeze(container.id, mark=self.mark, armed=container.armed, near=self._near)
            container.unheld_seconds = 0.0 if container.stays else ran
        except HoldError as error:
            log.error("hold.failed", container=container.id, error=str(error))
            container.failed = str(error)
        finally:
            container.disarm()
        if container.fate is _Fate.RELEASED:
            self._thaw(container)  # released during the freeze; it may be frozen although the call failed
        elif container.fate is _Fate.KILLED:
            self._freezer.kill(container.id)


async def _nothing() -> None:
    return
