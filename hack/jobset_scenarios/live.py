"""The stage beside an API server: the controller of JobSets in this process, shared by all scenarios."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from prometheus_client import CollectorRegistry

from common import aio
from common.gangs import GangKey
from common.kube import client, errors, mirror
from common.parts import PartStatus
from controller.app.jobsets import OurJobSets, key_of
from controller.jobset import model, reading
from controller.jobset.model import JobSet, Refusal
from controller.jobsets import seen, views
from controller.jobsets.metrics import JobSetMetrics
from controller.jobsets.running import JobSets
from controller.restarts import names, objects
from controller.restarts.objects import Restart
from controller.restarts.store import RestartChange
from hack.jobset_scenarios import places
from hack.jobset_scenarios.definitions import definitions
from hack.jobset_scenarios.stage import Json

PATIENCE: Final = 60.0
"""Seconds that what is expected may take on a slow machine."""

_LOOK_AGAIN: Final = 0.05
_MARK: Final = "mark"
"""Namespace and name of a JobSet by whose changes it is seen how far the controller's view has come."""
_DEADLINES: Final = client.Deadlines(call=PATIENCE)


class LiveController:
    """Runs our JobSets as the leader does, but for what belongs to pods and agents; can be replaced while it runs."""

    def __init__(self, *, kubeconfig: Path) -> None:
        self._kubeconfig = kubeconfig
        self._refusals: dict[GangKey, Refusal] = {}
        self._leave = contextlib.AsyncExitStack()
        self._term: asyncio.Task[None] | None = None
        self._marks = 0

    async def __aenter__(self) -> Self:
        self.api = await self._leave.enter_async_context(
            client.connect(kubeconfig=self._kubeconfig, deadlines=_DEADLINES)
        )
        await self._define()
        await self.api.create(places.NAMESPACES, {"metadata": {"name": _MARK}})
        await self.api.create(places.collection("jobsets", _MARK), _mark())
        await self._begin()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._end()
        await self._leave.aclose()

    async def replace(self) -> None:
        """End the controller and have another one begin, which hears again of the faults for which nothing is left."""
        await self._end()
        await self._begin()
        for gang, refusal in self._refusals.items():
            self.jobsets.refused(gang, refusal)

    def refuse(self, gang: GangKey, refusal: Refusal) -> None:
        """Tell it that for a fault no round is begun, for good."""
        self._refusals[gang] = refusal
        self.jobsets.refused(gang, refusal)

    async def catch_up(self) -> None:
        """Return when it has seen all that has happened to JobSets until now, be they ours or others'.

        What it has seen of others' cannot be asked, but it is told of all in their order.
        """
        self._marks += 1
        annotations = {"metadata": {"annotations": {"example.com/mark": str(self._marks)}}}
        path = places.one("jobsets", _MARK, _MARK)
        marked = await self.api.patch(path, annotations, content_type=client.Patch.MERGE)
        async with asyncio.timeout(PATIENCE):
            async for _ in aio.ticks(period=_LOOK_AGAIN):
                known = self.running.find(_MARK, _MARK)
                if known is not None and int(known.resource_version) >= int(marked["metadata"]["resourceVersion"]):
                    return

    async def _define(self) -> None:
        for definition in definitions():
            await self.api.create(places.DEFINITIONS, definition)
        for path in (views.JOBSETS, names.WHOLE):
            await self._served(path)

    async def _served(self, path: str) -> None:
        async with asyncio.timeout(PATIENCE):
            async for _ in aio.ticks(period=_LOOK_AGAIN):  # the real one serves it some time after it is defined
                try:
                    await self.api.list(path)
                except errors.NotFoundError:
                    continue
                return

    async def _begin(self) -> None:
        self.jobsets = OurJobSets(self._make)
        self._restarts: mirror.Mirror[Restart] = mirror.Mirror(
            api=self.api, path=names.WHOLE, reduce=objects.parse, report=_unheard
        )
        self._restarts.subscribe(
            lambda change: self.jobsets.book.restart_changed(RestartChange(change.kind, change.value))
        )
        self._term = asyncio.create_task(self._run(), name="jobset scenarios' controller")
        await self.jobsets.wait_known()

    def _make(self, rounds: Any) -> JobSets:
        self.running = JobSets(
            api=self.api,
            report=_unheard,
            rounds=rounds,
            metrics=JobSetMetrics(CollectorRegistry()),
            instance="scenarios",
        )
        return self.running

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            aio.spawn_eternal(group, self._restarts.run(), name="restarts watched")
            await self._restarts.wait_synced()
            aio.spawn_eternal(group, self.jobsets.run(), name="jobsets")

    async def _end(self) -> None:
        if self._term is not None:
            self._term.cancel()
            await asyncio.gather(self._term, return_exceptions=True)
            self._term = None


@dataclass(frozen=True, slots=True)
class _There:
    """What there is of a JobSet: its version, its Jobs' by name, its namespace's Services and Restarts."""

    version: str
    jobs: Mapping[str, str]
    services: set[str]
    restarts: list[Restart]


class LiveStage:
    """A ``stage.Stage`` in one namespace beside others."""

    patience: Final = PATIENCE

    def __init__(self, controller: LiveController, *, namespace: str) -> None:
        self._controller = controller
        self._namespace = namespace
        self.api = controller.api

    def now(self) -> float:
        """Return the time, in Unix seconds."""
        return time.time()

    async def pass_time(self, seconds: float) -> None:
        """Time passes of itself."""

    async def restart_controller(self) -> None:
        """Have another controller take over, for all scenarios."""
        await self._controller.replace()

    async def refuse(self, jobset: Mapping[str, Any], refusal: Refusal) -> None:
        """Tell the controller that a round was refused for good."""
        self._controller.refuse(GangKey(self._namespace, model.KIND, jobset["metadata"]["name"]), refusal)

    async def gang(self, jobset: Mapping[str, Any]) -> Json:
        """Return what a JobSet says about its gang's rounds."""
        said = self._controller.jobsets.policy(key_of(reading.jobset(jobset)))
        return {} if said is None else {"limit": said.limit, "used": said.used, "closed": str(said.closed)}

    async def settle(self, jobset: Mapping[str, Any] | None) -> None:
        """Return when the controller has seen all that there is of a JobSet, and looked at it; or after long enough."""
        if jobset is None or jobset["spec"].get("managedBy") != model.MANAGED_BY:
            await self._controller.catch_up()
            return
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE
        while loop.time() < end:
            if self._controller.running.rests(jobset["metadata"]["uid"]) and await self._knows_all(jobset):
                return
            await asyncio.sleep(_LOOK_AGAIN)

    async def _knows_all(self, jobset: Mapping[str, Any]) -> bool:
        """Whether what the controller knows is what there is, and it still rests."""
        name, uid = jobset["metadata"]["name"], jobset["metadata"]["uid"]
        try:
            obj = await self.api.get(places.one("jobsets", self._namespace, name))
        except errors.NotFoundError:
            return True
        there = _There(
            version=obj["metadata"]["resourceVersion"],
            jobs={
                each["metadata"]["name"]: each["metadata"]["resourceVersion"]
                for each in await self._list("jobs")
                if seen.owner(each) == uid
            },
            services={each["metadata"]["name"] for each in await self._list("services")},
            restarts=[objects.parse(each) for each in await self._list("restarts")],
        )
        known = self._controller.running.find(self._namespace, name)
        return known is not None and self._is_known(known, there) and self._controller.running.rests(uid)

    def _is_known(self, known: JobSet, there: "_There") -> bool:
        world = self._controller.running.world(known)
        return (
            known.resource_version == there.version
            and {each.name: each.resource_version for each in world.jobs} == there.jobs
            and world.has_service is (known.spec.network.subdomain in there.services)
            and {each.name: each.ended_at is not None for each in world.rounds}
            == {each.name: each.is_finished for each in there.restarts if each.is_round}
        )

    async def _list(self, resource: str) -> list[Json]:
        return (await self.api.list(places.collection(resource, self._namespace))).items


def _mark() -> Json:
    template = {"spec": {"template": {"spec": {"containers": [{"name": "none", "image": "busybox:1"}]}}}}
    return {
        "apiVersion": model.API_VERSION,
        "kind": model.KIND,
        "metadata": {"name": _MARK},
        "spec": {"managedBy": model.MANAGED_BY, "replicatedJobs": [{"name": "a", "replicas": 0, "template": template}]},
    }


def _unheard(status: PartStatus) -> None:
    """Nobody listens to how the parts are; what is expected does not come then."""
