"""Carry out a step by calls to the API: as the user, as kubelets, or as the gang's rounds."""

import asyncio
import contextlib
import fnmatch
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kubemend.common import aio
from kubemend.common.gangs import GangKey
from kubemend.common.kube import client, errors, timestamps
from kubemend.controller.jobset.spec import model as jobsets
from kubemend.controller.restarts import names
from kubemend.controller.restarts.objects import NewRound
from tests.jobset.player import holding, places
from tests.jobset.player.checked import ScenarioError
from tests.jobset.player.env import PATIENCE, ScenarioEnv
from tests.jobset.player.kubelets import Kubelets, is_over
from tests.jobset.player.model import (
    EVERY_JOB,
    Action,
    Check,
    Create,
    Delete,
    FinishDeletions,
    Put,
    Relabel,
    RestartController,
    RoundBegins,
    RoundEnds,
    RoundRefused,
    Scenario,
    Set,
    SetJobs,
    SetPods,
    WriteStatus,
)

Json = dict[str, Any]

_EPOCH: Final = 1
_LOOK_AGAIN: Final = 0.1  # seconds


class NotRefusedError(AssertionError):
    """The API server has accepted a request that it should have refused."""


class Actor:
    """Play the user, the kubelets and the rounds, in one namespace. ``jobset`` is the JobSet as it was created."""

    def __init__(self, scenario: Scenario, env: ScenarioEnv, *, namespace: str) -> None:
        self._scenario = scenario
        self._env = env
        self._api = env.api
        self._kubelets = Kubelets(env.api, namespace)
        self._namespace = namespace
        self._began = env.now()
        self.jobset: Json | None = None

    @property
    def name(self) -> str:
        """Return the JobSet's name, as the API server has it."""
        return self._scenario.jobset_name if self.jobset is None else str(self.jobset["metadata"]["name"])

    async def do(self, action: Action) -> None:
        """Carry it out. Raises KubeError, ScenarioError where it makes no sense, NotRefusedError."""
        match action:
            case Create():
                await self._create(action)
            case SetJobs():
                await self._set_jobs(action)
            case SetPods():
                for job in await self._jobs(action.jobs):
                    await self._kubelets.set_pods(job, action)
            case Set():
                await self._set(action)
            case WriteStatus():
                path = f"{places.one('jobsets', self._namespace, self.name)}/status"
                await self._merge(path, {"status": dict(action.status)})
            case Relabel():
                for job in await self._jobs(action.jobs):
                    await self._merge(self._job_path(job), {"metadata": {"labels": dict(action.labels)}})
            case Put():
                manifest = self._named(action.manifest)
                await self._api.create(places.of_kind(manifest["kind"], self._namespace), manifest)
            case Delete():
                await self._delete(action)
            case FinishDeletions():
                await self._finish_deletions(action)
            case RoundBegins():
                await self._begin_round(action)
            case RoundEnds():
                await self._end_round(action)
            case RoundRefused():
                refusal = jobsets.Refusal(action.reason, action.message, at=self._env.now())
                await self._env.refuse(await self._current(), refusal)
            case RestartController():
                await self._env.restart_controller()
            case Check():
                pass

    async def _create(self, action: Create) -> None:
        path, body = places.collection("jobsets", self._namespace), dict(self._scenario.jobset)
        if action.refused:
            await self._expect_refusal(self._api.create(path, body), action.refused)
        else:
            self.jobset = await self._api.create(path, body)

    async def _set_jobs(self, action: SetJobs) -> None:
        for job in await self._jobs(action.jobs):
            if not is_over(job):
                await self._kubelets.set_job(job, action)
            elif action.jobs != (EVERY_JOB,):
                raise ScenarioError(job["metadata"]["name"], what="has ended", hint="add a step before its end")

    async def _set(self, action: Set) -> None:
        path = places.one("jobsets", self._namespace, self.name)
        patch = [_change(await self._current(), field.split("."), value) for field, value in action.fields.items()]
        changed = self._api.patch(path, patch, content_type=client.Patch.JSON)
        if action.refused:
            await self._expect_refusal(changed, action.refused)
        else:
            await changed

    async def _delete(self, action: Delete) -> None:
        if action.resource == "jobsets":
            options = {"propagationPolicy": "Foreground"}
            await self._api.delete(places.one("jobsets", self._namespace, self.name), options=options)
            return
        if action.resource == "jobs":
            for job in await self._jobs(action.names):
                await self._api.delete(self._job_path(job), options={"propagationPolicy": "Background"})
                await self._release(job)
            return
        for name in action.names:
            await self._api.delete(places.one(action.resource, self._namespace, name))

    async def _finish_deletions(self, action: FinishDeletions) -> None:
        """Return once the Jobs that were being deleted are removed."""
        for job in await self._jobs(action.jobs):
            if "deletionTimestamp" in job["metadata"]:
                await self._release(job)
            elif action.jobs != (EVERY_JOB,):
                raise ScenarioError(job["metadata"]["name"], what="is not being deleted", hint="leave it out")

    async def _release(self, job: Json) -> None:
        path, uid = self._job_path(job), job["metadata"]["uid"]
        async with asyncio.timeout(PATIENCE):
            async for _ in aio.ticks(period=_LOOK_AGAIN):
                with contextlib.suppress(errors.ConflictError, errors.NotFoundError):  # there are other writers
                    current = await self._found(path)
                    if current is None or current["metadata"]["uid"] != uid:
                        return
                    await holding.release(self._api, path, current)

    async def _found(self, path: str) -> Json | None:
        try:
            return await self._api.get(path)
        except errors.NotFoundError:
            return None

    async def _begin_round(self, action: RoundBegins) -> None:
        began = self._env.now() if action.at is None else self._began + action.at
        kind = "Device" if action.counted else "Request"
        new = NewRound(
            GangKey(self._namespace, jobsets.KIND, self.name),
            attempt=action.attempt,
            epoch=_EPOCH,
            status={
                "phase": "Stopping",
                "attempt": action.attempt,
                "trigger": {"kind": kind, "code": "Xid31", "message": action.message},
                "decision": {"kind": "InPlace", "reason": "DeviceFault", "detail": "all stay where they are"},
                "members": {"total": 1},
                "startTime": timestamps.rfc3339(began),
            },
        )
        await self._api.create(places.collection("restarts", self._namespace), new.body(self._round(action.attempt)))

    async def _end_round(self, action: RoundEnds) -> None:
        path = places.one("restarts", self._namespace, self._round(action.attempt))
        begun = json.loads((await self._api.get(path))["metadata"]["annotations"][names.ROUND])
        status: Json = {
            **begun,
            "phase": action.phase,
            "timings": {"totalMilliseconds": int(action.seconds * 1000)},
            "completionTime": timestamps.rfc3339(self._env.now()),
        }
        if action.reason == "Cancelled":
            condition = {"type": "Cancelled", "status": "True", "reason": "Cancelled", "message": action.message}
            status["conditions"] = [{**condition, "lastTransitionTime": status["completionTime"]}]
        elif action.reason:
            failure = {"member": "js-workers-0-0", "node": "", "reason": action.reason, "message": action.message}
            status["failures"] = [failure]
        await self._merge(f"{path}/status", {"status": status})

    async def _jobs(self, wanted: Iterable[str]) -> list[Json]:
        """Return the Jobs whose names, less the JobSet's, match. Raises ScenarioError if there is none."""
        listing = await self._api.list(places.collection("jobs", self._namespace))
        by_name = {job["metadata"]["name"].removeprefix(f"{self.name}-"): job for job in listing.items}
        found: list[Json] = []
        for pattern in wanted:
            matching = [*by_name] if pattern == EVERY_JOB else fnmatch.filter(by_name, pattern)
            if not matching:
                raise ScenarioError(pattern, what="is not an existing Job", hint=f"there are {sorted(by_name)}")
            found += [by_name[name] for name in matching]
        return found

    async def _current(self) -> Json:
        return await self._api.get(places.one("jobsets", self._namespace, self.name))

    async def _merge(self, path: str, body: Json) -> None:
        await self._api.patch(path, body, content_type=client.Patch.MERGE)

    async def _expect_refusal(self, call: Any, pattern: str) -> None:
        try:
            await call
        except errors.InvalidError as error:
            if pattern not in str(error):
                raise NotRefusedError(f"refused, but not because of {pattern!r}: {error}") from error
        else:
            raise NotRefusedError(f"accepted, though it should be refused because of {pattern!r}")

    def _named(self, manifest: Mapping[str, Any]) -> Json:
        uid = "" if self.jobset is None else self.jobset["metadata"]["uid"]
        filled: Json = json.loads(json.dumps(manifest).replace("$UID", uid))
        return filled

    def _job_path(self, job: Json) -> str:
        return places.one("jobs", self._namespace, job["metadata"]["name"])

    def _round(self, attempt: int) -> str:
        return f"{self.name}-{attempt}"


def _change(obj: Json, path: list[str], value: Any) -> Json:
    """Return the JSON patch that sets a field; its parent must exist."""
    above: Any = obj
    for step in path[:-1]:
        try:
            above = above[int(step)] if isinstance(above, list) else above[step]
        except (KeyError, IndexError, ValueError):
            raise ScenarioError(".".join(path), what=f"{step!r} does not exist", hint="set its parent") from None
    pointer = "".join(f"/{step.replace('~', '~0').replace('/', '~1')}" for step in path)
    if value is None:
        return {"op": "remove", "path": pointer}
    return {"op": "add" if isinstance(above, dict) else "replace", "path": pointer, "value": value}
