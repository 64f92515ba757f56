"""Play cells side by side, through one shutdown of the node. The pods end when the scenario lets their programs end."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Self

from hack.devnode.criproxy import CriProxy, Gate
from kubemend.agent.clients.cri.events import ContainerEvent, EventKind
from kubemend.agent.model.workloads import ContainerState
from kubemend.agent.sources.containers import ContainerWatch
from kubemend.common.kube import errors, paths
from tests import eventually
from tests.devnode.systembus import SystemBus
from tests.scenarios.columns.board import DATA, MAIN, Board, Json, Seen
from tests.scenarios.matrix.cells import Place
from tests.scenarios.matrix.director import Director
from tests.scenarios.matrix.shutdown.cells import METHODS, Cell, End, Moment

PROGRAM: Final = f"""\
trap 'echo term >> {DATA}/term' TERM
echo up >> {DATA}/up
while :; do
    if [ -e {DATA}/end ]; then code=$(cat {DATA}/end); rm {DATA}/end; exit $code; fi
    sleep 0.05
done
"""
"""Ignores SIGTERM until it gets an exit code from the scenario."""

LONG: Final = 100
SHORT: Final = 2
"""Grace periods in seconds: of pods whose end the scenario decides, and of those that are killed."""
OWN_ERROR: Final = 3
_CRITICAL: Final = "system-node-critical"
_GRACE: Final = 600.0
_EVENTS: Final = paths.collection("events", namespace="default")
_OVER: Final = ("Failed", "Succeeded")


@dataclass(slots=True)
class Scene:
    """A cell that is played."""

    cell: Cell
    before: Seen
    restart: "asyncio.Task[list[Json]] | None" = None
    gate: Gate | None = None
    reported: Sequence[Json] = ()
    after: Json = field(default_factory=dict)
    started: Sequence[str] = ()
    alive: Sequence[str] = ()


@dataclass(slots=True)
class ShutdownEnv:
    """The node, its agent and what the runtime does."""

    board: Board
    director: Director
    bus: SystemBus
    events: Sequence[ContainerEvent]

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, board: Board, proxy: CriProxy, bus: SystemBus) -> AsyncIterator[Self]:
        """Record the runtime's events during the block."""
        director = Director()
        proxy.hooks.append(director)
        async with recorded(board) as events:
            yield cls(board, director, bus, events)

    async def play(self, cells: Sequence[Cell]) -> list[Scene]:
        """Play them through one shutdown, which is cancelled once all of them have ended."""
        await asyncio.gather(*(self._create(cell) for cell in cells))
        scenes = [await self._up(cell) for cell in cells]
        await asyncio.gather(*(self._before(scene) for scene in scenes))
        async with shutdown(self.board, self.bus):
            begun = len(self.events)
            await asyncio.gather(*(self._during(scene) for scene in scenes))
            for critical in (False, True):
                await asyncio.gather(*(self._end(scene) for scene in scenes if scene.cell.critical is critical))
            await self.bus.until_kubelet_releases()
            for scene in scenes:
                await self._look_after(scene, since=begun)
        return scenes

    async def clear(self, cells: Iterable[Cell]) -> None:
        """Delete the pods."""
        for cell in cells:
            with contextlib.suppress(errors.NotFoundError):
                await self.board.api.delete(paths.pod("default", cell.name), options={"gracePeriodSeconds": 0})

    async def _create(self, cell: Cell) -> None:
        killed = cell.end is End.DEAF or cell.moment in METHODS
        await create(self.board, cell.name, grace=SHORT if killed else LONG, critical=cell.critical)

    async def _up(self, cell: Cell) -> Scene:
        seen = await self.board.until(cell.name, lambda each: each.is_ready, what="Ready")
        await eventually.true((self.board.volume(seen) / "up").exists)  # before that it would not ignore SIGTERM
        self.director.knows(uid=seen.uid, name=MAIN, container=seen.shown)
        return Scene(cell, seen)

    async def _before(self, scene: Scene) -> None:
        """Bring it to its moment, if that is before the shutdown."""
        cell = scene.cell
        if cell.moment is Moment.BEFORE:
            scene.before = await self.board.restarted(cell.name, cell.strategy, scene.before, grace=0)
        elif cell.moment is Moment.IN_GRACE:
            scene.restart = asyncio.create_task(self.board.asked(cell.name, cell.strategy, grace=_GRACE))
            await self._until_reached(scene, (self.board.volume(scene.before) / "term").exists)
        elif cell.moment in METHODS:
            scene.gate = self.director.place(scene.before.uid, Place(METHODS[cell.moment]))
            scene.restart = asyncio.create_task(self.board.asked(cell.name, cell.strategy, grace=0))
            await self._until_reached(scene, scene.gate.reached.is_set)

    async def _until_reached(self, scene: Scene, reached: Callable[[], bool]) -> None:
        restart = scene.restart
        assert restart is not None
        await eventually.true(lambda: reached() or restart.done())
        assert not restart.done(), f"{scene.cell}: {await restart}"

    async def _during(self, scene: Scene) -> None:
        """Do what comes once the shutdown has begun, and the agent knows."""
        cell = scene.cell
        if scene.gate is not None:
            scene.gate.open()
        if cell.moment is Moment.ASKED:
            scene.reported = await self.board.asked(cell.name, cell.strategy, grace=0)
        elif cell.moment is Moment.CRASHED:
            exits(self.board, scene.before, OWN_ERROR)

    async def _end(self, scene: Scene) -> None:
        """Let the program end once kubelet has sent SIGTERM, and wait until the pod and the restart are over."""
        cell = scene.cell
        runs = cell.critical or cell.moment is not Moment.CRASHED  # kubelet restarts containers that are not ending yet
        if cell.end is not End.DEAF and cell.moment not in METHODS and runs:
            await self._until_killed(scene)
            exits(self.board, scene.before, cell.end.code)
        await self.board.until(cell.name, lambda seen: seen.status.get("phase") in _OVER, what="over")
        if scene.restart is not None:
            scene.reported = await scene.restart

    async def _until_killed(self, scene: Scene) -> None:
        """Wait until kubelet ends the pod. A container to which the agent has sent SIGTERM gets no second one."""
        if scene.cell.moment is not Moment.IN_GRACE:
            await eventually.true((self.board.volume(scene.before) / "term").exists)
            return
        selector = {"fieldSelector": f"involvedObject.uid={scene.before.uid},reason=Killing"}

        async def is_recorded() -> bool:
            return bool((await self.board.api.list(_EVENTS, params=selector)).items)

        await eventually.true(is_recorded, look_again=0.1)

    async def _look_after(self, scene: Scene, *, since: int) -> None:
        uid = scene.before.uid
        scene.after = (await self.board.see(scene.cell.name)).pod
        scene.started = started_by_kubemend(self.events[since:], uid)
        views = await self.board.cri.list_containers(pod_uid=uid)
        scene.alive = [f"{each.id} {each.state.value}" for each in views if each.state is not ContainerState.EXITED]


async def create(
    board: Board, name: str, *, grace: int, critical: bool, gang: str = "", annotations: Mapping[str, str] | None = None
) -> None:
    """Create a pod that runs PROGRAM. ``critical``: kubelet ends it after the others."""
    spec: dict[str, Any] = {"terminationGracePeriodSeconds": grace}
    if critical:
        spec["priorityClassName"] = _CRITICAL
    made = board.manifest(name, PROGRAM, spec, {})
    made["metadata"]["annotations"] = {**made["metadata"]["annotations"], **(annotations or {})}
    if gang:
        made["metadata"]["labels"] = {"kubemend.io/gang": gang}
    await board.api.create(paths.collection("pods", namespace="default"), made)


def exits(board: Board, seen: Seen, code: int) -> None:
    """Let the pod's program exit."""
    file = board.volume(seen) / "end"
    new = file.with_name("end.new")
    new.write_text(str(code))
    new.rename(file)


@contextlib.asynccontextmanager
async def shutdown(board: Board, bus: SystemBus) -> AsyncIterator[None]:
    """Have the node shut down for the length of the block; it is cancelled then. The agent knows of either.

    Kubelet holds no delay lock after a cancellation, but hears of the next shutdown: it takes a new lock, and then
    closes the old one's number, which the new one has been given (``acquireInhibitLock`` in pkg/kubelet/nodeshutdown).
    """
    log = board.dev.layout.log_file("agent")
    seen = len(log.read_bytes())
    await bus.shut_down()
    try:
        await until_logged(log, "node.shutting_down", since=seen)
        yield
    finally:
        seen = len(log.read_bytes())
        await bus.cancel_shutdown()
        await until_logged(log, "node.shutdown_cancelled", since=seen)


@contextlib.asynccontextmanager
async def recorded(board: Board) -> AsyncIterator[Sequence[ContainerEvent]]:
    """Record the runtime's events during the block."""
    watch = ContainerWatch(board.cri, report=lambda _: None)
    events: list[ContainerEvent] = []

    async def record(changes: "asyncio.Queue[ContainerEvent]") -> None:
        while True:
            events.append(await changes.get())

    async with watch.subscribe() as changes:
        tasks = [asyncio.create_task(watch.run()), asyncio.create_task(record(changes))]
        try:
            await watch.until_listed()
            yield events
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def started_by_kubemend(events: Iterable[ContainerEvent], uid: str) -> list[str]:
    """Return the containers of a pod that kubemend has started."""
    return [
        str(each.container.ref)
        for each in events
        if each.kind is EventKind.STARTED
        and each.container.restart_id is not None
        and each.container.ref.pod.uid == uid
    ]


async def until_logged(log: Path, event: str, *, since: int, **fields: str) -> None:
    """Wait until the agent has logged an event with these fields behind the first ``since`` bytes of its log."""
    expected = {"event": event, **fields}.items()

    def logged() -> bool:
        lines = log.read_bytes()[since:].decode(errors="replace").splitlines()
        return any(expected <= json.loads(line).items() for line in lines if _is_whole(line))

    await eventually.true(logged)


def _is_whole(line: str) -> bool:
    return line.startswith("{") and line.endswith("}")
