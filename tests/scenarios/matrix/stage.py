"""Plays cells of the matrix, several side by side: pods up, kubelet held, restarts to their places, one look, on."""

import asyncio
import contextlib
import itertools
import os
import signal
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from agent.cri.events import EventKind
from agent.model.workloads import ContainerId, ContainerRef, PodRef, PodUid, PodView
from common.kube import client as kube
from common.kube import errors, paths
from hack.devnode import node
from hack.devnode.criproxy import Gate
from tests.scenarios.matrix import cells, pods
from tests.scenarios.matrix.cells import MAIN, SIDECAR, Acts, Cell, Look, Shape
from tests.scenarios.matrix.director import Director, Reins
from tests.scenarios.matrix.engine import Engine, Told
from tests.scenarios.matrix.eyes import Eyes, Json, Snapshot

SECONDS = 60.0
"""For anything that is waited for: a slow machine needs some."""

_THROUGH = 20.0
_LATER = 0.3  # time for an engine that would be content too early

_numbers = itertools.count()


@dataclass(slots=True)
class Played:
    """One cell and what came of it."""

    cell: Cell
    pod: Json
    before: Snapshot
    told: Told = field(default_factory=Told)
    gate: Gate | None = None
    held: bool = False
    calls: Sequence[str] = ()
    after: Snapshot | None = None
    later: Snapshot | None = None
    statuses: Sequence[Json] = ()
    hooked: int = 0

    @property
    def uid(self) -> str:
        """The pod's identity."""
        return self.before.uid


@dataclass(frozen=True, slots=True)
class Stage:
    """A node, its kubelet, an engine behind the proxy, and eyes."""

    dev: node.DevNode
    api: kube.KubeClient
    engine: Engine
    director: Director
    reins: Reins
    eyes: Eyes

    async def play(self, batch: Sequence[Cell]) -> list[Played]:
        """Play cells side by side, and return them with what was to be seen.

        A batch is of one kind: kubelet acts alike in all of its cells.
        """
        names = [await self._create(cell) for cell in batch]
        scenes = [await self._up(cell, pod) for cell, pod in zip(batch, names, strict=True)]
        await self._hold()
        try:
            await asyncio.gather(*(self._end_by_itself(scene) for scene in scenes if scene.cell.end.by_itself))
            async with asyncio.TaskGroup() as group:
                works = {scene.uid: group.create_task(self._restart(scene)) for scene in scenes}
                await asyncio.gather(*(self._at_its_place(scene, works[scene.uid]) for scene in scenes))
                await self._look(scenes)
        finally:
            self.reins.loosen()
            await self._control("release")
        for scene in scenes:
            await self._look_after(scene)
        return scenes

    async def _hold(self) -> None:
        """Hold kubelet, and let it do what it was about to: a worker that was woken before waits for one more look."""
        for what in ("hold", "relist", "relist"):
            await self._control(what)

    async def _look(self, scenes: Sequence[Played]) -> None:
        """Let kubelet look, once; let the restarts go on; and let kubelet go on when they are through."""
        acts = scenes[0].cell.acts
        late = acts is Acts.LATE
        if late:
            self.reins.tighten()
        await self._control("look" if late else "relist")
        if acts is Acts.BY_TIMER:
            await self._control("resync")
        for scene in scenes:
            if scene.gate is not None:
                scene.gate.open()
        alone = [scene.told.acted.wait() for scene in scenes if not scene.cell.needs_kubelet]
        with contextlib.suppress(TimeoutError):  # one whose place it has not come to may need it, too
            await asyncio.wait_for(asyncio.gather(*alone), _THROUGH)
        if late:
            await asyncio.sleep(_LATER)
        self.reins.loosen()
        await self._control("release")

    async def clear(self, played: Iterable[Played]) -> None:
        """Delete the pods; kubelet ends them in its own time."""
        for scene in played:
            with contextlib.suppress(errors.NotFoundError):
                path = paths.pod("default", scene.pod["metadata"]["name"])
                await self.api.delete(path, options={"gracePeriodSeconds": 0})

    async def _create(self, cell: Cell) -> Json:
        name = f"cell-{os.getpid()}-{next(_numbers)}"
        body = pods.manifest(cell, name=name, node=self.dev.name)
        return await self.api.create(paths.collection("pods", namespace="default"), body)

    async def _up(self, cell: Cell, pod: Json) -> Played:
        """Wait until the pod is up, in the eyes of the API and of the engine, and its main container listens."""
        uid = pod["metadata"]["uid"]
        await self.eyes.until(f"{cell}: Ready", lambda: _is_ready(self.eyes.latest(uid)), timeout=SECONDS)
        view = await self.engine.pods.wait_for(PodUid(uid), lambda pod: _all_run(pod, cell), timeout=SECONDS)
        assert view is not None, f"{cell}: the engine does not see it up"
        async with asyncio.timeout(SECONDS):
            while not (before := await self.eyes.look(pod)).lines("main-up"):  # noqa: ASYNC110 - a file tells nobody
                await asyncio.sleep(0.02)
        for each in before.views:
            self.director.knows(uid=uid, name=each.ref.name, container=each.id)
        return Played(cell=cell, pod=pod, before=before)

    async def _end_by_itself(self, scene: Played) -> None:
        (container,) = scene.before.running(MAIN)
        pid = scene.before.infos[container].pid
        assert pid is not None
        async with self.engine.events.subscribe(PodUid(scene.uid)) as events, asyncio.timeout(SECONDS):
            os.kill(pid, getattr(signal, f"SIG{pods.SIGNALS[scene.cell.end]}"))
            while (await events.get()).kind is not EventKind.STOPPED:
                pass

    async def _restart(self, scene: Played) -> None:
        where = cells.place(scene.cell) if scene.cell.look is not Look.ANY else None
        if where is not None and cells.refusal(scene.cell, can_hold=self.engine.can_hold) is None:
            scene.gate = self.director.place(scene.uid, where)
        name = scene.pod["metadata"]["name"]
        target = ContainerRef(PodRef("default", name, PodUid(scene.uid)), MAIN)
        await self.engine.restart(target, scene.told)

    async def _at_its_place(self, scene: Played, work: "asyncio.Task[None]") -> None:
        """Wait until the restart is held at its place, or at its end because it never came there."""
        await asyncio.sleep(0)  # its task has placed the gate then
        if scene.gate is None:
            if scene.cell.look is not Look.ANY:
                await work
            return
        reached = asyncio.create_task(scene.gate.reached.wait())
        try:
            await asyncio.wait({reached, work}, return_when=asyncio.FIRST_COMPLETED, timeout=SECONDS)
            scene.held = scene.gate.reached.is_set()
        finally:
            reached.cancel()

    async def _look_after(self, scene: Played) -> None:
        """Look when all is done, and once more after kubelet has looked over each pod without any cause."""
        scene.after = await self.eyes.look(scene.pod)
        await self._control("resync")
        scene.later = await self.eyes.look(scene.pod)
        if scene.cell.shape is Shape.POST_START:
            ran = [await self._hooked(each) for each in scene.later.running(MAIN)]
            scene.hooked = ran[-1] if ran else 0
        scene.calls = tuple(self.director.calls.get(scene.uid, ()))
        scene.statuses = tuple(pod.get("status", {}) for pod in self.eyes.told[scene.uid])

    async def _hooked(self, container: ContainerId) -> int:
        """Return how often postStart has run in a container: its record is in the container's own file system."""
        answer = await self.eyes.cri.exec_sync(container, ("cat", pods.HOOKED), timeout=60)
        return len(answer.stdout.splitlines())

    async def _control(self, what: str) -> None:
        """Tell kubelet when to look; a real one looks when it likes."""
        control = self.dev.kubelet.control
        if control is not None:
            await getattr(control, what)()


def _is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def _all_run(pod: PodView, cell: Cell) -> bool:
    found: dict[str, Any] = {spec.name: spec for spec in pod.containers}
    return all(found[name].running for name in cell.shape.lasting) and (
        SIDECAR not in cell.shape.names or found[SIDECAR].started
    )
