"""Replacing pods while the API server refuses it, and after the request has lapsed."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest

from kubemend.common import aio, conditions, gangs
from kubemend.common.kube import client, errors, paths
from kubemend.controller.gangs import job_accounting, members
from kubemend.controller.model.members import PodRef, PodUid
from kubemend.controller.model.rounds import Recreate
from kubemend.controller.restarts import pod_replacer
from kubemend.controller.restarts.pod_replacer import Outcome, PodReplacer
from kubemend.controller.rounds import deadlines
from kubemend.controller.rounds.states import Limits
from tests import background, eventually
from tests.control_plane import Tenant
from tests.unit.reporters.running import connected


class Env:
    """A running pod replacer, the server, and a pod."""

    def __init__(self, tenant: Tenant, api: client.KubeClient, *, stale: float, keep: float, parallel: int) -> None:
        self.faults = tenant.server
        self.namespace = tenant.namespace
        self.pods = tenant.of("pods")
        self.api = api
        self.outcomes: asyncio.Queue[Outcome] = asyncio.Queue()
        self.pod_replacer = PodReplacer(
            api=api,
            on_outcome=lambda _pod, outcome, _ending_reason: self.outcomes.put_nowait(outcome),
            backoff=lambda: aio.Backoff(first=0.01, limit=0.05),
            stale=stale,
            keep=keep,
            parallel=parallel,
        )
        self.wanted = Recreate(PodRef(self.namespace, "a", PodUid("?")), reason="NodeLost", message="n is not ready")

    async def create(self) -> None:
        made = await self.api.create(
            self.pods,
            {"metadata": {"name": "a"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i"}]}},
        )
        pod = PodRef(self.namespace, "a", PodUid(made["metadata"]["uid"]))
        self.wanted = Recreate(pod, reason="NodeLost", message="n is not ready")
        ready = {"type": "Ready", "status": "True"}
        await self.api.patch_status(f"{self.pods}/a", {"status": {"conditions": [ready]}})

    async def belongs_to_a_job(self, *, exists: bool = True) -> None:
        """Have a Job control the pod, and count its end."""
        uid = "none"
        if exists:
            template = {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}
            jobs = paths.collection("jobs", namespace=self.namespace, group="batch")
            job = await self.api.create(jobs, {"metadata": {"name": "train"}, "spec": {"template": template}})
            uid = str(job["metadata"]["uid"])
        owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": uid, "controller": True}
        metadata = {"ownerReferences": [owner], "finalizers": [job_accounting.FINALIZER]}
        await self.api.patch(f"{self.pods}/a", {"metadata": metadata})

    async def is_tracked(self) -> bool:
        pod = await self.api.get(f"{self.pods}/a")
        return job_accounting.FINALIZER in (pod["metadata"].get("finalizers") or ())

    async def is_not_tracked(self) -> bool:
        return not await self.is_tracked()

    async def mark_by_another(self, reason: str) -> None:
        """Mark the pod as another client does that is about to end it."""
        condition = {"type": conditions.DISRUPTION_TARGET, "status": "True", "reason": reason}
        await self.api.patch_status(f"{self.pods}/a", {"status": {"conditions": [condition]}})

    async def mark(self) -> tuple[str, str]:
        """Return status and reason of the pod's condition DisruptionTarget."""
        pod = await self.api.get(f"{self.pods}/a")
        found = {each["type"]: each for each in pod["status"].get("conditions", ())}
        condition = found.get(conditions.DISRUPTION_TARGET, {})
        return condition.get("status", ""), condition.get("reason", "")

    def term(self) -> contextlib.AbstractAsyncContextManager[None]:
        """Have the pod replacer run, as in one term of leadership."""
        return background.running(self.pod_replacer.run())

    async def next(self) -> Outcome:
        async with asyncio.timeout(60):
            return await self.outcomes.get()


@contextlib.asynccontextmanager
async def running(tenant: Tenant, *, stale: float = 60.0, keep: float = 60.0, parallel: int = 16) -> AsyncIterator[Env]:
    async with connected(tenant) as api:
        env = Env(tenant, api, stale=stale, keep=keep, parallel=parallel)
        await env.create()
        async with env.term():
            yield env


async def test_stale_request_is_not_deleted_after_an_outage(tenant: Tenant) -> None:
    async with running(tenant, stale=0.2) as env:
        env.faults.fail_next(10_000, status=500, method="DELETE")
        env.pod_replacer.recreate(env.wanted)
        await eventually.true(lambda: env.wanted.pod.uid not in env.pod_replacer._wanted)
        env.faults.rules.clear()
        assert (await env.api.get(f"{env.pods}/a"))["metadata"].get("deletionTimestamp") is None
        assert env.outcomes.empty()
        env.pod_replacer.recreate(env.wanted)
        assert await env.next() is Outcome.DELETED


async def test_pod_whose_round_ends_while_it_waits_for_its_turn_lives(tenant: Tenant) -> None:
    """A round may have asked for thousands of deletions, of which some are under way when it ends."""
    async with running(tenant, parallel=0) as env:
        env.pod_replacer.recreate(env.wanted)
        await eventually.true(lambda: bool(env.pod_replacer._slots._waiters))
        env.pod_replacer.forget(env.wanted.pod.uid)
        env.pod_replacer._slots.release()
        await eventually.true(lambda: not env.pod_replacer._active)
        assert (await env.api.get(f"{env.pods}/a"))["metadata"].get("deletionTimestamp") is None


async def test_pod_whose_round_ends_while_it_is_marked_lives(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tenant) as env:
        mark = env.api.patch_status

        async def round_ends(path: str, body: dict[str, Any]) -> dict[str, Any]:
            env.pod_replacer.forget(env.wanted.pod.uid)
            return await mark(path, body)

        monkeypatch.setattr(env.api, "patch_status", round_ends)
        env.pod_replacer.recreate(env.wanted)
        await eventually.true(lambda: not env.pod_replacer._active)
        assert (await env.api.get(f"{env.pods}/a"))["metadata"].get("deletionTimestamp") is None
        assert env.outcomes.empty()
        assert await env.mark() == ("False", "NotDeleted")


async def test_pod_whose_deletion_is_refused_is_no_longer_marked(tenant: Tenant) -> None:
    """Its agent restarts no pod that Kubernetes is about to end."""
    async with running(tenant) as env:
        env.faults.fail_next(1, status=403, method="DELETE")
        env.pod_replacer.recreate(env.wanted)
        assert await env.next() is Outcome.REFUSED
        await eventually.true(lambda: not env.pod_replacer._active)
        assert await env.mark() == ("False", "NotDeleted")


async def test_mark_that_the_pod_had_before_stays(tenant: Tenant) -> None:
    async with running(tenant) as env:
        await env.mark_by_another("TerminationByKubelet")
        env.faults.fail_next(1, status=403, method="DELETE")
        env.pod_replacer.recreate(env.wanted)
        assert await env.next() is Outcome.REFUSED
        await eventually.true(lambda: not env.pod_replacer._active)
        assert (await env.mark())[0] == "True"


async def test_mark_of_another_client_since_then_stays(tenant: Tenant, monkeypatch: pytest.MonkeyPatch) -> None:
    """An eviction marks a pod right before it deletes the pod: a Job must see that mark."""
    async with running(tenant) as env:

        async def is_evicted(*_: object, **__: object) -> None:
            await env.mark_by_another("EvictionByEvictionAPI")
            raise errors.ForbiddenError("a webhook refuses it")

        monkeypatch.setattr(env.api, "delete", is_evicted)
        env.pod_replacer.recreate(env.wanted)
        assert await env.next() is Outcome.REFUSED
        await eventually.true(lambda: not env.pod_replacer._active)
        assert await env.mark() == ("True", "EvictionByEvictionAPI")


def test_request_is_not_stale_before_a_round_of_any_size_repeats_it() -> None:
    limits = Limits()
    assert limits.hold / deadlines.RENEWALS + limits.resend < pod_replacer.STALE
    assert limits.hold > pod_replacer.STALE, "then its members run"


async def test_repeated_request_is_carried_out_again_only_for_its_force(tenant: Tenant) -> None:
    async with running(tenant) as env:
        for wanted in (env.wanted, replace(env.wanted, force=True)):
            env.pod_replacer.recreate(wanted)
            assert await env.next() is Outcome.DELETED
            for repeated in (env.wanted, wanted):
                env.pod_replacer.recreate(repeated)
                await eventually.true(lambda: not env.pod_replacer._active)
            assert env.outcomes.empty()


async def test_request_that_a_term_leaves_does_not_keep_the_next_one_from_its_own(tenant: Tenant) -> None:
    async with connected(tenant) as api:
        env = Env(tenant, api, stale=60.0, keep=60.0, parallel=16)
        await env.create()
        env.faults.fail_next(10_000, status=500, method="DELETE")
        async with env.term():
            env.pod_replacer.recreate(env.wanted)
            await eventually.true(lambda: env.faults.hits > 0)
        env.faults.rules.clear()
        async with env.term():
            env.pod_replacer.recreate(env.wanted)
            assert await env.next() is Outcome.DELETED


async def test_refused_request_is_retried_if_repeated(tenant: Tenant) -> None:
    async with running(tenant, keep=0.05) as env:
        env.faults.fail_next(1, status=403, method="PATCH")
        env.pod_replacer.recreate(env.wanted)
        assert await env.next() is Outcome.REFUSED
        async with asyncio.timeout(60):
            while env.outcomes.empty():
                env.pod_replacer.recreate(env.wanted)
                await asyncio.sleep(0.01)
        assert await env.next() is Outcome.DELETED


async def test_pod_whose_deletion_is_refused_gets_its_jobs_finalizer_back(tenant: Tenant) -> None:
    async with running(tenant) as env:
        await env.belongs_to_a_job()
        env.faults.fail_next(1, status=403, method="DELETE")
        env.pod_replacer.recreate(env.wanted)
        assert await env.next() is Outcome.REFUSED
        await eventually.true(env.is_tracked)


async def test_finalizer_comes_back_though_an_older_admission_policy_keeps_the_mark(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tenant) as env:
        await env.belongs_to_a_job()
        patch = env.api.patch_status

        async def older_policy(path: str, body: dict[str, Any]) -> dict[str, Any]:
            marks = [each["status"] for each in body.get("status", {}).get("conditions", ())]
            if "finalizers" in body["metadata"] and "False" in marks:
                raise errors.ForbiddenError("the controller changes the Job's finalizer only of marked pods")
            return await patch(path, body)

        monkeypatch.setattr(env.api, "patch_status", older_policy)
        env.faults.fail_next(1, status=403, method="DELETE")
        env.pod_replacer.recreate(env.wanted)
        assert await env.next() is Outcome.REFUSED
        await eventually.true(lambda: not env.pod_replacer._active)
        assert await env.is_tracked()
        assert await env.mark() == ("True", "NodeLost")


async def test_pod_that_is_no_longer_to_be_deleted_gets_its_jobs_finalizer_back(tenant: Tenant) -> None:
    async with running(tenant, stale=1.0) as env:
        await env.belongs_to_a_job()
        env.faults.fail_next(10_000, status=500, method="DELETE")
        env.pod_replacer.recreate(env.wanted)
        await eventually.true(env.is_not_tracked)
        await eventually.true(env.is_tracked)
        env.faults.rules.clear()
        env.pod_replacer.recreate(env.wanted)
        assert await env.next() is Outcome.DELETED
        assert await env.is_not_tracked()


async def test_job_that_cannot_be_read_counts_the_pod(tenant: Tenant) -> None:
    async with running(tenant) as env:
        await env.belongs_to_a_job(exists=False)
        env.pod_replacer.recreate(env.wanted)
        assert await env.next() is Outcome.DELETED
        assert await env.is_tracked()


async def test_job_of_a_member_is_read_by_its_owner(tenant: Tenant) -> None:
    async with running(tenant) as env:
        await env.belongs_to_a_job()
        pod = await env.api.get(f"{env.pods}/a")
        pod["metadata"]["labels"] = {gangs.GANG: "g"}
        one = members.member(pod)
        assert one is not None
        assert one.owner is not None
        found = await env.pod_replacer.job_of(one)
        assert found is not None
        assert (found["metadata"]["name"], found["metadata"]["uid"]) == ("train", one.owner.uid)
        other = replace(one, owner=replace(one.owner, name="other"))
        assert await env.pod_replacer.job_of(other) is None


async def test_completed_request_is_forgotten(tenant: Tenant) -> None:
    async with running(tenant, keep=0.05) as env:
        env.pod_replacer.recreate(env.wanted)
        assert await env.next() is Outcome.DELETED
        await eventually.true(lambda: env.wanted.pod.uid not in env.pod_replacer._wanted)


async def test_internal_error_at_pod_leaves_others_and_allows_retry(
    tenant: Tenant, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tenant) as env:
        with monkeypatch.context() as patched:
            patched.setattr(pod_replacer, "_marks", broken)
            env.pod_replacer.recreate(env.wanted)
            await eventually.true(lambda: env.wanted.pod.uid not in env.pod_replacer._wanted)
        env.pod_replacer.recreate(env.wanted)
        assert await env.next() is Outcome.DELETED


def broken(*_: object, **__: object) -> None:
    raise IndexError
