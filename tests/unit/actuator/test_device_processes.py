"""The processes of a container that is about to be stopped, by /proc alone."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace

from kubemend.agent.actuator.device_processes import OldProcesses
from kubemend.agent.model.processes import ProcessFacts
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart.device_release import Process
from tests.environments.runtime import CriEnv

PID = 4242


@dataclass
class Proc:
    """The main process does not use a device, its two children do; one of them ends in between."""

    asked: list[tuple[int, ContainerId]] = field(default_factory=list)
    error: OSError | None = None

    def facts(self, pid: int) -> ProcessFacts | None:
        return ProcessFacts(pid, container=None, started=7.0) if pid != 12 else None

    def container_pids(self, pid: int, *, of: ContainerId) -> frozenset[int]:
        self.asked.append((pid, of))
        if self.error is not None:
            raise self.error
        return frozenset({pid, 11, 12})

    def on_devices(self, pids: Collection[int]) -> frozenset[int]:
        return frozenset(pids) & {11, 12}


async def test_processes_with_device_files_are_recorded(cri_env: CriEnv) -> None:
    proc = Proc()
    found = await OldProcesses(runtime=cri_env.cri, events=cri_env.watch, processes=proc).on_devices({cri_env.old})
    assert found == {11: Process(started=7.0, container=cri_env.old)}
    (view,) = [view for view in await cri_env.containers() if view.id == cri_env.old]
    assert proc.asked == [((await cri_env.cri.cached_status(view)).pid, cri_env.old)]


async def test_containers_that_are_not_asked_for_or_not_listed_are_left_out(cri_env: CriEnv) -> None:
    proc = Proc()
    old = OldProcesses(runtime=cri_env.cri, events=cri_env.watch, processes=proc)
    assert await old.on_devices({ContainerId("other")}) == {}
    assert proc.asked == []


async def test_container_that_cannot_be_read_is_left_out(cri_env: CriEnv) -> None:
    proc = Proc(error=PermissionError(13, "Permission denied"))
    assert await OldProcesses(runtime=cri_env.cri, events=cri_env.watch, processes=proc).on_devices({cri_env.old}) == {}


async def test_container_that_has_gone_is_left_out(cri_env: CriEnv) -> None:
    class Stale:
        def __init__(self) -> None:
            self.views = tuple(replace(view, id=ContainerId("gone")) for view in cri_env.watch.containers())

        def containers(self) -> tuple:  # type: ignore[type-arg]
            return self.views

    old = OldProcesses(runtime=cri_env.cri, events=Stale(), processes=Proc())
    assert await old.on_devices({ContainerId("gone")}) == {}
