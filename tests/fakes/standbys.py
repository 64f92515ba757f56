"""Fake standbys without a kernel: record frozen and held containers, and their fates."""

from dataclasses import dataclass, field
from pathlib import Path

from kubemend.agent.actuator.hold.exec_hold import HoldError
from kubemend.agent.actuator.hold.standby import EndedError, Standby
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart.overlap import Obstacle
from kubemend.common.pb.runtime.v1 import api_pb2
from tests.fakes.cri_runtime import Runtime

HELD_PROCESS = 4242
"""The process of a successor that is held."""


@dataclass
class Standbys:
    """``story`` is the list of events, in order. ``refusal`` makes ``prepare`` and ``freeze`` fail,
    ``obstacle`` only ``prepare`` and ``check_old``.

    ``dying``: the old one is about to end by itself, and does not freeze any more; ``gone``: its process has ended.
    ``not_overlapped``: why no successor imports early; ``imports``: one is held at its driver.
    ``slow_to_die``: a kill by the kernel does not end it in time. ``not_thawed``: why the old one cannot be thawed.
    """

    runtime: Runtime
    old: ContainerId
    refusal: str | None = None
    obstacle: str | None = None
    story: list[str] = field(default_factory=list)
    frozen: bool = False
    dying: bool = False
    gone: bool = False
    slow_to_die: bool = False
    not_thawed: str | None = None
    held: set[ContainerId] = field(default_factory=set)
    not_overlapped: Obstacle | None = None
    imports: bool = False

    async def check_old(self, pid: int | None, *, of: ContainerId | None = None) -> Path:
        """Refuse a successor next to the old one if ``refusal`` or ``obstacle`` is set."""
        self._refuse()
        if self.obstacle is not None:
            raise HoldError(self.obstacle)
        return Path("/proc/1")

    async def prepare(
        self,
        successor: ContainerId,
        *,
        old_pid: int | None,
        old: ContainerId | None = None,
        checked: Path | None = None,
    ) -> Standby:
        """Freeze the old one and hold the successor."""
        if checked is None:
            await self.check_old(old_pid)
        self.frozen = True
        self.held.add(successor)
        self.story.append("prepared")
        return Standby(hold=_Hold(self, successor), old=_Cgroup(self, self._old_of(successor)))

    async def overlap(self, standby: Standby) -> Obstacle | None:
        """Release the successor up to its driver, unless ``not_overlapped`` is why not."""
        if self.not_overlapped is None:
            standby.driver = _Driver(self)
            self.imports = True
            self.story.append("imports")
            standby.hold.release()
        return self.not_overlapped

    def freeze(self, pid: int | None, *, of: ContainerId | None = None) -> None:
        """Freeze the old one."""
        self._refuse()
        self.frozen = True
        self.story.append("frozen")

    async def is_frozen(self, pid: int | None, *, of: ContainerId | None = None) -> bool:
        """Return whether the old one is frozen."""
        return self.frozen and not self.dying

    async def kill(self, standby: Standby, *, timeout: float) -> bool:
        """Kill the old one, unless it is slow to die."""
        if self.slow_to_die:
            return False
        standby.old.kill()
        return standby.old.wait_ended(timeout=timeout)

    def thaw(self, pid: int | None, *, of: ContainerId | None = None) -> None:
        """Thaw the old one."""
        if self.not_thawed is not None:
            raise HoldError(self.not_thawed)
        self.frozen = False
        self.story.append("thawed")

    def _refuse(self) -> None:
        if self.gone:
            raise EndedError("it has ended by itself")
        if self.refusal is not None:
            raise HoldError(self.refusal)

    def old_runs(self) -> bool:
        """Return whether the runtime still has the old one running."""
        return self.runs(self.old)

    def runs(self, container_id: ContainerId) -> bool:
        """Return whether the runtime has a container running."""
        container = self.runtime.containers.get(container_id)
        return container is not None and container.state == api_pb2.CONTAINER_RUNNING

    def _old_of(self, successor: ContainerId) -> ContainerId:
        """Return the running container that a successor replaces: of the same name in the same sandbox."""
        new = self.runtime.containers[successor]
        name = new.config.metadata.name
        alike = (
            each for each in self.runtime.containers.values() if each.sandbox.id == new.sandbox.id and each is not new
        )
        ids = [ContainerId(each.id) for each in alike if each.config.metadata.name == name]
        return next((each for each in reversed(ids) if self.runs(each)), self.old)


@dataclass
class _Hold:
    standbys: Standbys
    successor: ContainerId
    asker: int | None = None

    async def engaged(self) -> bool:
        self.asker = HELD_PROCESS
        return True

    def release(self) -> None:
        self.asker = None
        if self.successor in self.standbys.held:
            self.standbys.held.discard(self.successor)
            self.standbys.story.append("released")


@dataclass
class _Driver:
    standbys: Standbys

    def release(self) -> None:
        if self.standbys.imports:
            self.standbys.imports = False
            self.standbys.story.append("driver released")


@dataclass
class _Cgroup:
    standbys: Standbys
    id: ContainerId

    def thaw(self) -> None:
        self.standbys.thaw(None)

    def kill(self) -> None:
        self.standbys.story.append("killed")
        if self.standbys.runs(self.id):
            self.standbys.runtime.exit(self.id, exit_code=137)

    def wait_ended(self, *, timeout: float) -> bool:
        return not self.standbys.runs(self.id)
