"""Run the environment of scenarios: a real API server, and the controller of JobSets in this process, shared by all."""

import asyncio
import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from prometheus_client import CollectorRegistry

from kubemend.common import aio
from kubemend.common.components import ComponentStatus
from kubemend.common.gangs import GangKey
from kubemend.common.kube import client, errors, informer
from kubemend.controller.coordinator.jobset_rounds import OurJobSets, key_of
from kubemend.controller.jobset.spec import model, reading
from kubemend.controller.jobset.spec.model import JobSet, Refusal
from kubemend.controller.jobsets import invalid_objects, views
from kubemend.controller.jobsets.metrics import JobSetMetrics
from kubemend.controller.jobsets.running import JobSets
from kubemend.controller.restarts import names, objects
from kubemend.controller.restarts.objects import Restart
from kubemend.controller.restarts.store import RestartChange
from tests.jobset.player import holding, places
from tests.jobset.player.definitions import definitions

Json = dict[str, Any]

PATIENCE: Final = 120.0
"""Seconds until the expectations must hold, on a slow machine."""

_LOOK_AGAIN: Final = 0.1
_MARK: Final = "mark"
"""Namespace and name of a JobSet whose changes show how current the controller's view is."""
_DEADLINES: Final = client.Deadlines(connect=30.0, call=PATIENCE)


class Controller:
    """Run our JobSets as the leader does, except for pods and agents; can be replaced while it runs.

    Kubernetes' own controllers must begin only after ``define``: the garbage collector would see new kinds late.
    """

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
        await holding.install(self.api)
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
        """End the controller and start another one, which receives the unresolved faults again."""
        await self._end()
        await self._begin()
        for gang, refusal in self._refusals.items():
            self.jobsets.refused(gang, refusal)

    def refuse(self, gang: GangKey, refusal: Refusal) -> None:
        """Report that for a fault no round is begun, permanently."""
        self._refusals[gang] = refusal
        self.jobsets.refused(gang, refusal)

    async def catch_up(self) -> None:
        """Return when it has processed all changes of JobSets until now, also those of other controllers' JobSets.

        Its view of others' cannot be queried, but it receives all in their order.
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

    async def _begin(self) -> None:
        self.jobsets = OurJobSets(self._make)
        self._restarts: informer.Informer[Restart] = informer.Informer(
            api=self.api, path=names.WHOLE, reduce=objects.parse, report=_ignore
        )
        self._restarts.subscribe(
            lambda change: self.jobsets.book.restart_changed(RestartChange(change.kind, change.value))
        )
        self._term = asyncio.create_task(self._run(), name="jobset scenarios' controller")
        await self.jobsets.wait_known()

    def _make(self, rounds: Any) -> JobSets:
        self.running = JobSets(
            api=self.api,
            report=_ignore,
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


async def define(*, kubeconfig: Path) -> None:
    """Define JobSets and Restarts, and return once they are served. Raises KubeError, TimeoutError."""
    async with client.connect(kubeconfig=kubeconfig, deadlines=_DEADLINES) as api:
        for definition in definitions():
            await api.create(places.DEFINITIONS, definition)
        for path in (views.JOBSETS, names.WHOLE):
            await _served(api, path)


async def _served(api: client.KubeClient, path: str) -> None:
    async with asyncio.timeout(PATIENCE):
        async for _ in aio.ticks(period=_LOOK_AGAIN):  # it is served some time after it is defined
            with contextlib.suppress(errors.NotFoundError):
                await api.list(path)
                return


@dataclass(frozen=True, slots=True)
class _There:
    """Hold the existing objects of a JobSet: its version, its Jobs' by name, its namespace's Services and Restarts."""

    version: str
    jobs: Mapping[str, str]
    services: set[str]
    restarts: list[Restart]


class ScenarioEnv:
    """Provide the controller to one scenario, in a namespace of its own."""

    def __init__(self, controller: Controller, *, namespace: str) -> None:
        self._controller = controller
        self._namespace = namespace
        self.api = controller.api

    def now(self) -> float:
        """Return the time, in Unix seconds."""
        return time.time()

    async def restart_controller(self) -> None:
        """Replace the controller, for all scenarios."""
        await self._controller.replace()

    async def refuse(self, jobset: Mapping[str, Any], refusal: Refusal) -> None:
        """Report to the controller that a round was refused permanently."""
        self._controller.refuse(GangKey(self._namespace, model.KIND, jobset["metadata"]["name"]), refusal)

    async def gang(self, jobset: Mapping[str, Any]) -> Json:
        """Return a JobSet's statement about its gang's rounds."""
        policy = self._controller.jobsets.policy(key_of(reading.jobset(jobset)))
        return {} if policy is None else {"limit": policy.limit, "used": policy.used, "closed": str(policy.closed)}

    async def settle(self, jobset: Mapping[str, Any] | None) -> None:
        """Return when the controller has processed all objects of a JobSet, and reconciled it; or after long enough."""
        if jobset is None or jobset["spec"].get("managedBy") != model.MANAGED_BY:
            await self._controller.catch_up()
            return
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE
        while loop.time() < end:
            if self._controller.running.is_settled(jobset["metadata"]["uid"]) and await self._is_current(jobset):
                return
            await asyncio.sleep(_LOOK_AGAIN)

    async def _is_current(self, jobset: Mapping[str, Any]) -> bool:
        """Return whether the controller's view is current, and it is still idle."""
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
                if invalid_objects.owner(each)[0] == uid
            },
            services={each["metadata"]["name"] for each in await self._list("services")},
            restarts=[objects.parse(each) for each in await self._list("restarts")],
        )
        known = self._controller.running.find(self._namespace, name)
        return known is not None and self._is_known(known, there) and self._controller.running.is_settled(uid)

    def _is_known(self, known: JobSet, there: "_There") -> bool:
        observed = self._controller.running.observe(known)
        return (
            known.resource_version == there.version
            and {each.name: each.resource_version for each in observed.jobs} == there.jobs
            and observed.has_service is (known.spec.network.subdomain in there.services)
            and {each.name: each.ended_at is not None for each in observed.rounds}
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


def _ignore(status: ComponentStatus) -> None:
    """Ignore the states of components; an error shows as a missing result."""
