"""The name after the successor's is reserved while it is decided whether an ended container is restarted."""

import asyncio
import itertools
from collections.abc import Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import ConditionStatus
from kubemend.agent.model.workloads import ContainerId, ContainerState, OwnerRef, RestartPolicy
from kubemend.agent.restart import admission
from kubemend.agent.restarts.requests import Request
from kubemend.common.coordination import FaultKind
from tests import eventually
from tests.environments.restarts import NOW, RestartEnv, restarts_on
from tests.environments.runtime import POD, TARGET, CriEnv
from tests.fakes.cri_server import Call


async def exited(env: RestartEnv, *, cached: Collection[str] = ("container", "sandbox"), **annotations: str) -> Request:
    """Opt in, end the trainer, whose status and whose sandbox's have been prefetched, and return the exit's request."""
    view = env.pod.pods.pods()[POD.uid]
    written = {"kubemend.io/restart": "InPlace"} | {
        f"kubemend.io/{key.replace('_', '-')}": text for key, text in annotations.items()
    }
    await env.pod.pods.put(replace(view, annotations=written))
    cri_env = env.pod.cri_env
    if "container" in cached:
        await cri_env.cri.cached_status((await cri_env.containers())[-1])
    if "sandbox" in cached:
        await cri_env.cri.sandbox_config(cri_env.sandbox_id)
    cri_env.cri.stopped(cri_env.old)
    cri_env.server.runtime.exit(cri_env.old, exit_code=3)
    await eventually.true(
        lambda: any(
            each.id == cri_env.old and each.state is ContainerState.EXITED for each in cri_env.watch.containers()
        )
    )
    cri_env.server.calls.clear()
    cause = admission.Cause(code="Exit3", message="it ended", happened_at=NOW, container=cri_env.old)
    return Request(target=TARGET, cause=lambda: cause, devices=frozenset(), kind=FaultKind.EXIT, gang_answered=True)


def creations(env: RestartEnv) -> list[tuple[str, int]]:
    """Return the pod UID and attempt of each creation, in order."""
    made = [call.request.config for call in env.pod.cri_env.server.calls if call.method == "CreateContainer"]  # type: ignore[attr-defined]
    return [(config.labels["io.kubernetes.pod.uid"], config.metadata.attempt) for config in made]


def is_successor(call: Call) -> bool:
    """Return whether a call creates n+1."""
    return call.method == "CreateContainer" and call.request.config.metadata.attempt == 1  # type: ignore[attr-defined]


JOB = OwnerRef(api_group="batch", kind="Job", name="train")
RESERVED = f"{POD.uid}.reserved"


def condition(env: RestartEnv) -> ConditionStatus:
    return env.said.said[POD, conditions.IN_PLACE_RESTART].status


@pytest.mark.parametrize(
    ("policy", "owner"),
    [(RestartPolicy.ALWAYS, None), (RestartPolicy.ON_FAILURE, None), (RestartPolicy.ON_FAILURE, JOB)],
)
async def test_name_is_reserved_while_the_cause_is_examined(
    env: RestartEnv, policy: RestartPolicy, owner: OwnerRef | None
) -> None:
    """The limit of a Job is not read by then."""
    await env.pod.pods.put(replace(env.pod.pods.pods()[POD.uid], restart_policy=policy, owner=owner))
    env.dependencies.owners.answer = admission.OwnerFacts(job_restarts_left=5)  # type: ignore[attr-defined]
    request, seen = await exited(env), []

    async def examined() -> str:
        await eventually.true(lambda: bool(creations(env)))
        seen.extend(creations(env))
        return ""

    async with env.kubelet():
        await env.restarts.submit(replace(request, withdrawn=examined))
    assert seen == [(RESERVED, 2)]
    assert creations(env) == [(RESERVED, 2), (POD.uid, 1)], "the restart takes the reservation over"
    assert condition(env) is ConditionStatus.TRUE
    assert await env.pod.reserved() == set()


async def test_successor_is_created_only_after_the_reservation(
    env: RestartEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    request, cri = await exited(env), env.pod.cri_env.cri
    create, begun, may_end = cri.create_container, asyncio.Event(), asyncio.Event()

    async def create_slowly(**call: Any) -> ContainerId:
        if call["config"].metadata.attempt == 2:
            begun.set()
            await may_end.wait()
        return await create(**call)

    async def is_journalled() -> bool:
        return bool(await env.store.unfinished())

    monkeypatch.setattr(cri, "create_container", create_slowly)
    async with env.kubelet():
        work = asyncio.create_task(env.restarts.submit(request))
        await begun.wait()
        await eventually.true(is_journalled)  # nothing else delays the successor
        assert creations(env) == []
        may_end.set()
        await work
    assert creations(env) == [(RESERVED, 2), (POD.uid, 1)]


async def test_end_that_was_reported_is_restarted_without_listing_the_containers(env: RestartEnv) -> None:
    request = await exited(env)
    async with env.kubelet():
        await env.restarts.submit(request)
    before = itertools.takewhile(lambda call: not is_successor(call), env.pod.cri_env.server.calls)
    assert "ListContainers" not in {call.method for call in before}
    assert condition(env) is ConditionStatus.TRUE


async def test_container_that_came_after_the_end_is_found_by_a_listing(env: RestartEnv) -> None:
    request = await exited(env)
    await env.pod.kubelet_starts(TARGET.name, attempt=1)
    await eventually.true(lambda: any(each.attempt == 1 for each in env.pod.cri_env.watch.containers()))
    env.pod.cri_env.server.calls.clear()
    await env.restarts.submit(request)
    assert "ListContainers" in env.pod.cri_env.server.called()
    assert creations(env) == []


async def test_withdrawn_restart_releases_the_name(env: RestartEnv) -> None:
    request = await exited(env)

    async def reason() -> str:
        return "the pod is ending"

    await env.restarts.submit(replace(request, withdrawn=reason))
    assert creations(env) == [(RESERVED, 2)]
    assert await env.pod.reserved() == set()


async def test_failed_reservation_does_not_prevent_the_restart(env: RestartEnv) -> None:
    request = await exited(env)
    env.pod.cri_env.server.fail("CreateContainer", grpc.StatusCode.INTERNAL)
    async with env.kubelet():
        await env.restarts.submit(request)
    assert creations(env) == [(RESERVED, 2), (POD.uid, 1)]
    assert condition(env) is ConditionStatus.TRUE


async def test_kubelets_own_successor_is_adopted_and_the_name_released(env: RestartEnv) -> None:
    request = await exited(env)

    async def kubelet_is_faster() -> str:
        await env.pod.kubelet_starts(TARGET.name, attempt=1)
        return ""

    async with env.kubelet():
        await env.restarts.submit(replace(request, withdrawn=kubelet_is_faster))
    assert sorted(creations(env)) == [(POD.uid, 1), (POD.uid, 1), (RESERVED, 2)]
    assert condition(env) is ConditionStatus.TRUE
    assert await env.pod.reserved() == set()


@pytest.mark.parametrize("why", ["rerun", "container not cached", "sandbox not cached", "CRI-O"])
async def test_nothing_is_reserved_ahead(env: RestartEnv, why: str) -> None:
    """A rerun reserves names itself; without a cached status the name is reserved with the facts for the decision.

    CRI-O would give a reservation to kubelet as its container.
    """
    env.pod.cri_env.server.runtime.behaviour.is_crio = why == "CRI-O"
    cached = {"container", "sandbox"} - {why.partition(" ")[0]}
    request = await exited(env, cached=cached, strategy="rerun" if why == "rerun" else "swap")
    seen = []

    async def examined() -> str:
        seen.extend(creations(env))
        return ""

    async with env.kubelet():
        await env.restarts.submit(replace(request, withdrawn=examined))
    assert seen == []
    assert condition(env) is ConditionStatus.TRUE


async def test_spent_budget_reserves_nothing(env: RestartEnv) -> None:
    request = await exited(env, max_restarts="0")
    await env.restarts.submit(request)
    assert creations(env) == []


async def test_dry_run_reserves_nothing(cri_env: CriEnv, tmp_path: Path) -> None:
    async with restarts_on(cri_env, tmp_path, dry_run=True) as env:
        await env.restarts.submit(await exited(env))
        assert creations(env) == []
