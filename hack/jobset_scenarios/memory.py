"""The stage in memory: the API stand-in's store, and the decisions alone, by a clock that is moved."""

import contextlib
from collections.abc import Mapping
from typing import Any, Final

from common.gangs import GangKey
from common.kube import client, errors
from controller.app.jobsets import RoundBook
from controller.jobset import claims, decide, in_place, model, plan, reading, writing
from controller.jobset.model import JobSet, Refusal
from controller.jobset.plan import Plan, World
from controller.jobsets import events, seen
from controller.restarts import objects
from controller.restarts.store import RestartChange, RestartChangeKind
from hack.jobset_scenarios import places
from hack.jobset_scenarios.definitions import definitions
from hack.jobset_scenarios.memory_api import MemoryApi
from hack.jobset_scenarios.stage import Json

_BEGIN: Final = 1_800_000_000.0
_MOST_LOOKS: Final = 50


class RestlessError(AssertionError):
    """The controller finds something to do again and again, though nothing happens."""


class MemoryStage:
    """A ``stage.Stage``. ``plans`` are the decisions since the last change of things."""

    patience: Final = 0.0

    def __init__(self) -> None:
        self._now = _BEGIN
        self._refusals: dict[GangKey, Refusal] = {}
        self.api = MemoryApi(clock=self.now)
        self.plans: list[Plan] = []

    async def prepare(self) -> None:
        """Define the resources."""
        for definition in definitions():
            await self.api.create(places.DEFINITIONS, definition)

    def now(self) -> float:
        """Return the time there, in Unix seconds."""
        return self._now

    async def pass_time(self, seconds: float) -> None:
        """Let time pass."""
        self._now += seconds

    async def restart_controller(self) -> None:
        """Have another controller take over: what only the former one knew is lost."""
        self._refusals.clear()

    async def refuse(self, jobset: Mapping[str, Any], refusal: Refusal) -> None:
        """Tell the controller that a round was refused for good."""
        metadata = jobset["metadata"]
        self._refusals[GangKey(metadata["namespace"], model.KIND, metadata["name"])] = refusal

    async def gang(self, jobset: Mapping[str, Any]) -> Json:
        """Return what a JobSet says about its gang's rounds."""
        said = in_place.policy(await self._world(reading.jobset(jobset)))
        return {"limit": said.limit, "used": said.used, "closed": str(said.closed)}

    async def settle(self, jobset: Mapping[str, Any] | None) -> None:
        """Look at a JobSet until there is nothing to do. Raises RestlessError when that does not end."""
        self.plans = []
        while jobset is not None and await self.look(jobset):
            if len(self.plans) == _MOST_LOOKS:
                raise RestlessError(f"no rest after {_MOST_LOOKS} looks; the last plan: {self.plans[-1]}")
            jobset = await self._again(jobset)

    async def look(self, obj: Mapping[str, Any]) -> bool:
        """Look at a JobSet once, and do what is decided; return whether there was something to do."""
        jobset = reading.jobset(obj)
        decided = decide.decide(await self._world(jobset))
        self.plans.append(decided)
        for group in decided.writes:
            for write in group:
                await self._write(jobset, write)
        if decided.status is not None:
            path = places.one("jobsets", jobset.namespace, jobset.name)
            await self.api.update(f"{path}/status", {**obj, "status": writing.status_json(decided.status)})
        await self._tell(jobset, decided)
        return bool(decided.writes) or decided.status is not None

    async def _again(self, obj: Mapping[str, Any]) -> Json | None:
        metadata = obj["metadata"]
        try:
            return await self.api.get(places.one("jobsets", metadata["namespace"], metadata["name"]))
        except errors.NotFoundError:
            return None

    async def _world(self, jobset: JobSet) -> World:
        namespace = jobset.namespace
        jobs = await self._list("jobs", namespace)
        services = await self._list("services", namespace)
        there = await self._list("persistentvolumeclaims", namespace)
        key = GangKey(namespace, model.KIND, jobset.name)
        return World(
            jobset=jobset,
            jobs=tuple(reading.job(each) for each in jobs if seen.owner(each) == jobset.uid),
            now=self._now,
            has_service=any(each["metadata"]["name"] == jobset.spec.network.subdomain for each in services),
            claims=frozenset(each["metadata"]["name"] for each in there),
            claim_specs={each["metadata"]["name"]: claims.read(each["spec"]) for each in there},
            rounds=(await self._book(namespace)).rounds(jobset),
            refusal=self._refusals.get(key),
        )

    async def _book(self, namespace: str) -> RoundBook:
        book = RoundBook(news=lambda _: None)
        for each in await self._list("restarts", namespace):
            book.restart_changed(RestartChange(RestartChangeKind.APPEARED, objects.parse(each)))
        return book

    async def _list(self, resource: str, namespace: str) -> list[Json]:
        return (await self.api.list(places.collection(resource, namespace))).items

    async def _tell(self, jobset: JobSet, decided: Plan) -> None:
        about = events.About(jobset.namespace, jobset.name, jobset.uid)
        for event in decided.events:
            story = events.Story(about, event, at=self._now, subject=jobset.resource_version)
            await self.api.create(places.collection("events", jobset.namespace), events.body(story, instance="memory"))

    async def _write(self, jobset: JobSet, write: plan.Write) -> None:
        namespace = jobset.namespace
        match write:
            case plan.CreateJob():
                await self.api.create(places.collection("jobs", namespace), dict(write.body))
            case plan.DeleteJob():
                await self._delete(places.one("jobs", namespace, write.name), uid=write.uid)
            case plan.SuspendJob():
                await self._merge(places.one("jobs", namespace, write.name), {"spec": {"suspend": True}})
            case plan.ResumeJob():
                await self._resume(places.one("jobs", namespace, write.name), write)
            case plan.AnnotateJob():
                noted = {"metadata": {"annotations": dict(write.annotations)}}
                await self._merge(places.one("jobs", namespace, write.name), noted)
            case plan.CreateService():
                await self.api.create(places.collection("services", namespace), dict(write.body))
            case plan.CreateClaim():
                await self.api.create(places.collection("persistentvolumeclaims", namespace), dict(write.body))
            case plan.RequestRestart():
                with contextlib.suppress(errors.ConflictError):  # asked for before
                    await self.api.create(places.collection("restarts", namespace), dict(write.body))
            case plan.DeleteJobSet():
                await self._delete(places.one("jobsets", namespace, jobset.name), uid=jobset.uid)

    async def _resume(self, path: str, write: plan.ResumeJob) -> None:
        if write.clear_start:
            await self._merge(f"{path}/status", {"status": {"startTime": None}})
        resumed = {"suspend": False, "template": dict(write.template)}
        await self._merge(path, {"metadata": {"annotations": dict(write.annotations)}, "spec": resumed})

    async def _delete(self, path: str, *, uid: str) -> None:
        await self.api.delete(path, options={"propagationPolicy": "Foreground", "preconditions": {"uid": uid}})

    async def _merge(self, path: str, body: Json) -> None:
        await self.api.patch(path, body, content_type=client.Patch.MERGE)
