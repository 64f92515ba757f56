"""Play cells of the matrix concurrently: start pods, hold kubelet, bring restarts to their places, relist, continue."""

import asyncio
import contextlib
import itertools
import os
import signal
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from hack.devnode import node
from hack.devnode.criproxy import Gate
from kubemend.agent.clients.cri.events import EventKind
from kubemend.agent.model.workloads import ContainerId, ContainerRef, PodRef, PodUid, PodView
from kubemend.common.kube import client as kube
from kubemend.common.kube import errors, paths
from tests.devnode.looks import Looks
from tests.scenarios.matrix import cells, pods
from tests.scenarios.matrix.cells import MAIN, SIDECAR, Acts, Cell, Look, Shape
from tests.scenarios.matrix.director import Director, Reins
from tests.scenarios.matrix.engine import Engine, ProgressRecorder
from tests.scenarios.matrix.eyes import Eyes, Json, Snapshot

SECONDS = 60.0
"""The timeout of all waits: a slow machine needs some time."""

_THROUGH = 60.0
_LATER = 0.3  # time for a verification that would be too early

_numbers = itertools.count()


@dataclass(slots=True)
class Played:
    """One cell and its result."""

    cell: Cell
    pod: Json
    before: Snapshot
    progress: ProgressRecorder = field(default_factory=ProgressRecorder)
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
class MatrixEnv:
    """A node, its kubelet on one proxy, restarts on another one, and observers."""

    dev: node.DevNode
    api: kube.KubeClient
    engine: Engine
    director: Director
    looks: Looks
    reins: Reins
    eyes: Eyes

    async def play(self, batch: Sequence[Cell]) -> list[Played]:
        """Play cells concurrently, and return them with the observations.

        A batch is of one kind: kubelet acts alike in all of its cells.
        """
        names = [await self._create(cell) for cell in batch]
        scenes = [await self._up(cell, pod) for cell, pod in zip(batch, names, strict=True)]
        is_placed = any(cell.look is not Look.ANY for cell in batch)
        if is_placed:
            await self._hold()
        try:
            await asyncio.gather(*(self._end_by_itself(scene) for scene in scenes if scene.cell.end.by_itself))
            async with asyncio.TaskGroup() as group:
                works = {scene.uid: group.create_task(self._restart(scene)) for scene in scenes}
                await asyncio.gather(*(self._at_its_place(scene, works[scene.uid]) for scene in scenes))
                if is_placed:
                    await self._look(scenes)
        finally:
            self.reins.loosen()
            await self.looks.release()
        await self._look_after(scenes)
        return scenes

    async def _hold(self) -> None:
        """Hold kubelet, and let it finish: a worker that was woken before waits for one more relist."""
        await self.looks.hold()
        await self.looks.relist()
        await self.looks.relist()

    async def _look(self, scenes: Sequence[Played]) -> None:
        """Let kubelet relist once; let the restarts continue; and release kubelet when they are done."""
        acts = scenes[0].cell.acts
        late = acts is Acts.LATE
        if late:
            self.reins.tighten()
        if acts is Acts.BY_TIMER:
            await self._sync(scenes)
        await (self.looks.look() if late else self.looks.relist())
        for scene in scenes:
            if scene.gate is not None:
                scene.gate.open()
        alone = [scene.progress.acted.wait() for scene in scenes if not scene.cell.needs_kubelet]
        with contextlib.suppress(TimeoutError):  # one that has not come to its place may need it, too
            await asyncio.wait_for(asyncio.gather(*alone), _THROUGH)
        if late:
            await asyncio.sleep(_LATER)
        self.reins.loosen()
        await self.looks.release()

    async def clear(self, played: Iterable[Played]) -> None:
        """Delete the pods; kubelet ends them asynchronously."""
        for scene in played:
            with contextlib.suppress(errors.NotFoundError):
                path = paths.pod("default", scene.pod["metadata"]["name"])
                await self.api.delete(path, options={"gracePeriodSeconds": 0})

    async def _create(self, cell: Cell) -> Json:
        name = f"cell-{os.getpid()}-{next(_numbers)}"
        body = pods.manifest(cell, name=name, node=self.dev.name)
        return await self.api.create(paths.collection("pods", namespace="default"), body)

    async def _up(self, cell: Cell, pod: Json) -> Played:
        """Wait until the pod is ready for the API and the agent, and its main container handles signals."""
        uid = pod["metadata"]["uid"]
        await self.eyes.until(f"{cell}: Ready", lambda: _is_ready(self.eyes.latest(uid)), timeout=SECONDS)
        view = await self.engine.pods.wait_for(PodUid(uid), lambda pod: _all_run(pod, cell), timeout=SECONDS)
        assert view is not None, f"{cell}: the engine does not see it up"
        async with asyncio.timeout(SECONDS):
            while not (before := await self.eyes.look(pod)).lines("main-up"):  # noqa: ASYNC110 - a file has no event
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
        await self.engine.restart(target, scene.progress)

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

    async def _look_after(self, scenes: Sequence[Played]) -> None:
        """Observe when all is done, and once more after kubelet has synced each pod without any cause."""
        for scene in scenes:
            scene.after = await self.eyes.look(scene.pod)
        await self.looks.hold()
        await self._touch(scenes)
        await self.looks.relist()
        await self.looks.release()
        for scene in scenes:
            scene.later = await self.eyes.look(scene.pod)
            if scene.cell.shape is Shape.POST_START:
                ran = [await self._hooked(each) for each in scene.later.running(MAIN)]
                scene.hooked = ran[-1] if ran else 0
            scene.calls = tuple(self.director.calls.get(scene.uid, ()))
            scene.statuses = tuple(pod.get("status", {}) for pod in self.eyes.statuses[scene.uid])

    async def _sync(self, scenes: Sequence[Played]) -> None:
        """Have kubelet sync the pods, and wait until it has acted on the successors, which are CREATED in such a batch.

        A change of a pod's object takes time to reach kubelet, which may decide by its previous relist.
        """
        before = Counter(self.reins.created)
        async with asyncio.timeout(2 * SECONDS):
            while any(self.reins.created[scene.uid] == before[scene.uid] for scene in scenes if scene.held):
                await self.looks.relist()
                await self._touch(scenes)

    async def _touch(self, scenes: Sequence[Played]) -> None:
        """Change the pods' objects: kubelet then syncs them at its next relist, as it does once a minute by a timer."""
        body = {"metadata": {"labels": {"touched": str(next(_numbers))}}}
        for scene in scenes:
            path = paths.pod("default", scene.pod["metadata"]["name"])
            await self.api.patch(path, body, content_type=kube.Patch.MERGE)

    async def _hooked(self, container: ContainerId) -> int:
        """Return how often postStart has run in a container: its record is in the container's own file system."""
        answer = await self.eyes.cri.exec_sync(container, ("cat", pods.HOOKED), timeout=60)
        return len(answer.stdout.splitlines())


def _is_ready(pod: Json) -> bool:
    conditions = pod.get("status", {}).get("conditions") or ()
    return any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)


def _all_run(pod: PodView, cell: Cell) -> bool:
    found: dict[str, Any] = {spec.name: spec for spec in pod.containers}
    return all(found[name].running for name in cell.shape.lasting) and (
        SIDECAR not in cell.shape.names or found[SIDECAR].started
    )
