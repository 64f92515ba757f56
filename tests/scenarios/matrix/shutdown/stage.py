"""Play cells side by side, through one shutdown of the node. The pods end when the scenario lets their programs end."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

from hack.devnode.criproxy import CriProxy, Gate
from kubemend.agent.clients.cri.events import ContainerEvent, EventKind
from kubemend.agent.model.workloads import ContainerState
from kubemend.agent.sources.containers import ContainerWatch
from kubemend.common.kube import errors, paths
from tests import eventually
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

_LONG: Final = 100
_SHORT: Final = 2
"""Grace periods in seconds: of pods whose end the scenario decides, and of those that are killed."""
_OWN_ERROR: Final = 3
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
    told: Sequence[Json] = ()
    after: Json = field(default_factory=dict)
    started: Sequence[ContainerEvent] = ()
    alive: Sequence[str] = ()


@dataclass(slots=True)
class Stage:
    """The node, its agent and what the runtime does."""

    board: Board
    director: Director
    events: list[ContainerEvent] = field(default_factory=list)

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, board: Board, proxy: CriProxy) -> AsyncIterator[Self]:
        """Record the runtime's events during the block."""
        made = cls(board, Director())
        proxy.hooks.append(made.director)
        watch = ContainerWatch(board.cri, report=lambda _: None)
        async with watch.subscribe() as changes:
            tasks = [asyncio.create_task(watch.run()), asyncio.create_task(made._record(changes))]
            try:
                await watch.until_listed()
                yield made
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)

    async def _record(self, changes: "asyncio.Queue[ContainerEvent]") -> None:
        while True:
            self.events.append(await changes.get())

    async def play(self, cells: Sequence[Cell]) -> list[Scene]:
        """Play them through one shutdown, which is cancelled once all of them have ended."""
        bus = self.board.dev.system_bus
        await asyncio.gather(*(self._create(cell) for cell in cells))
        scenes = [await self._up(cell) for cell in cells]
        await asyncio.gather(*(self._before(scene) for scene in scenes))
        log = self.board.dev.layout.log_file("agent")
        seen = len(log.read_bytes())
        await bus.shut_down()
        try:
            await self.until_logged("node.shutting_down", since=seen)
            begun = len(self.events)
            await asyncio.gather(*(self._during(scene) for scene in scenes))
            for critical in (False, True):
                await asyncio.gather(*(self._end(scene) for scene in scenes if scene.cell.critical is critical))
            await bus.until_kubelet_releases()
            for scene in scenes:
                await self._look_after(scene, since=begun)
        finally:
            seen = len(log.read_bytes())
            await bus.cancel_shutdown()
            await self.until_logged("node.shutdown_cancelled", since=seen)
        return scenes

    async def clear(self, cells: Iterable[Cell]) -> None:
        """Delete the pods."""
        for cell in cells:
            with contextlib.suppress(errors.NotFoundError):
                await self.board.api.delete(paths.pod("default", cell.name), options={"gracePeriodSeconds": 0})

    async def until_logged(self, event: str, *, since: int) -> None:
        """Wait until the agent has logged an event behind the first ``since`` bytes of its log."""
        log = self.board.dev.layout.log_file("agent")

        def logged() -> bool:
            lines = log.read_bytes()[since:].decode(errors="replace").splitlines()
            return any(json.loads(line)["event"] == event for line in lines if _is_whole(line))

        await eventually.true(logged)

    async def _create(self, cell: Cell) -> None:
        killed = cell.end is End.DEAF or cell.moment in METHODS
        spec: dict[str, Any] = {"terminationGracePeriodSeconds": _SHORT if killed else _LONG}
        if cell.critical:
            spec["priorityClassName"] = _CRITICAL
        made = self.board.manifest(cell.name, PROGRAM, spec, {})
        await self.board.api.create(paths.collection("pods", namespace="default"), made)

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
            scene.told = await self.board.asked(cell.name, cell.strategy, grace=0)
        elif cell.moment is Moment.CRASHED:
            self._exits(scene, _OWN_ERROR)

    async def _end(self, scene: Scene) -> None:
        """Let the program end once kubelet has sent SIGTERM, and wait until the pod and the restart are over."""
        cell = scene.cell
        runs = cell.critical or cell.moment is not Moment.CRASHED  # kubelet restarts what is not ending yet
        if cell.end is not End.DEAF and cell.moment not in METHODS and runs:
            await self._until_killed(scene)
            self._exits(scene, cell.end.code)
        await self.board.until(cell.name, lambda seen: seen.status.get("phase") in _OVER, what="over")
        if scene.restart is not None:
            scene.told = await scene.restart

    async def _until_killed(self, scene: Scene) -> None:
        """Wait until kubelet ends the pod. A container to which the agent has sent SIGTERM gets no second one."""
        if scene.cell.moment is not Moment.IN_GRACE:
            await eventually.true((self.board.volume(scene.before) / "term").exists)
            return
        selector = {"fieldSelector": f"involvedObject.uid={scene.before.uid},reason=Killing"}

        async def is_recorded() -> bool:
            return bool((await self.board.api.list(_EVENTS, params=selector)).items)

        await eventually.true(is_recorded, look_again=0.1)

    def _exits(self, scene: Scene, code: int) -> None:
        file = self.board.volume(scene.before) / "end"
        new = file.with_name("end.new")
        new.write_text(str(code))
        new.rename(file)

    async def _look_after(self, scene: Scene, *, since: int) -> None:
        uid = scene.before.uid
        scene.after = (await self.board.see(scene.cell.name)).pod
        scene.started = [
            each for each in self.events[since:] if each.kind is EventKind.STARTED and each.container.ref.pod.uid == uid
        ]
        views = await self.board.cri.list_containers(pod_uid=uid)
        scene.alive = [f"{each.id} {each.state.value}" for each in views if each.state is not ContainerState.EXITED]


def _is_whole(line: str) -> bool:
    return line.startswith("{") and line.endswith("}")
