"""Fake a freezer without a kernel: record frozen containers, their marks, and their fates."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kubemend.agent.actuator.hold.cgroups import Cgroup
from kubemend.agent.actuator.hold.exec_hold import HoldError
from kubemend.agent.actuator.hold.standby import Held
from kubemend.agent.model.workloads import ContainerId
from kubemend.common.pb.runtime.v1 import api_pb2
from tests.fakes.cri_runtime import Runtime


@dataclass
class Freezer:
    """``frozen`` maps containers to their marks. ``armable`` False: nothing is held at its first instruction.

    A container that is frozen then has run for ``slip`` seconds. ``refusal`` makes ``freeze`` fail.
    """

    runtime: Runtime
    armable: bool = True
    slip: float = 0.01
    refusal: str = ""
    frozen: dict[ContainerId, str] = field(default_factory=dict)
    ever: list[ContainerId] = field(default_factory=list)
    released: dict[ContainerId, str] = field(default_factory=dict)
    since_boot: Callable[[], float] = lambda: 0.0
    released_at: dict[ContainerId, float] = field(default_factory=dict)
    killed: list[ContainerId] = field(default_factory=list)
    waiting: set[ContainerId] = field(default_factory=set)

    def container_cgroup(self, pid: int | None) -> Cgroup | None:
        return None

    async def arm(self, container_id: ContainerId) -> Held | None:
        if not self.armable:
            return None
        self.waiting.add(container_id)
        return _Armed(self, container_id)

    async def freeze(
        self, container_id: ContainerId, *, mark: str, armed: Held | None = None, near: Cgroup | None = None
    ) -> float:
        if self.refusal:
            raise HoldError(self.refusal)
        self.frozen[container_id] = mark
        self.released.pop(container_id, None)
        self.ever.append(container_id)
        return 0.0 if armed is not None and await armed.engaged() else self.slip

    def thaw(self, container_id: ContainerId) -> bool | None:
        mark = self.frozen.pop(container_id, None)
        if mark is None:
            return None
        if not self._runs(container_id):
            return False
        self.released[container_id] = mark
        self.released_at[container_id] = self.since_boot()
        return True

    def kill(self, container_id: ContainerId) -> None:
        if self.frozen.pop(container_id, None) is None:
            return
        self.killed.append(container_id)
        if container_id in self.runtime.containers:
            self.runtime.exit(container_id, exit_code=137)

    async def take_over(self, *, keep: Mapping[str, float]) -> dict[str, dict[ContainerId, bool]]:
        found: dict[str, dict[ContainerId, bool]] = {}
        for container_id, mark in self.released.items():
            if self._runs(container_id) and self.released_at[container_id] >= keep.get(mark, 0.0):
                found.setdefault(mark, {})[container_id] = False
        for container_id, mark in list(self.frozen.items()):
            found.setdefault(mark, {})[container_id] = True
            if mark not in keep:
                self.thaw(container_id)
        return found

    def still(self) -> set[ContainerId]:
        """Return the frozen, living containers."""
        return {container_id for container_id in self.frozen if self._runs(container_id)}

    def _runs(self, container_id: ContainerId) -> bool:
        container = self.runtime.containers.get(container_id)
        return container is not None and container.state == api_pb2.CONTAINER_RUNNING


@dataclass
class _Armed:
    freezer: Freezer
    container_id: ContainerId
    asker: int | None = None

    async def engaged(self) -> bool:
        return self.container_id in self.freezer.waiting

    def release(self) -> None:
        self.freezer.waiting.discard(self.container_id)
