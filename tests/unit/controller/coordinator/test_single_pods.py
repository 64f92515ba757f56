"""Restart objects for pods outside gangs: a round of one pod, or a refusal with its reason."""

import asyncio
import time
from dataclasses import replace
from typing import Any

import pytest

from kubemend.common.gangs import POD, GangKey
from kubemend.common.kube import timestamps
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.coordinator import single_pods
from kubemend.controller.model.members import Member, PodPhase
from kubemend.controller.restarts import objects
from kubemend.controller.restarts.objects import Restart, RestartSpec
from kubemend.controller.watches.members import MemberChangeKind
from tests.unit.controller import builders
from tests.unit.controller.coordinator.stage import Stage
from tests.unit.controller.coordinator.test_coordinator import until

Result = pb.StepResult
KEY = GangKey("team", POD, "train-0-0")
"""The pod of ``builders.member(0)``, in no gang."""


def alone(**changes: Any) -> Member:
    """Return the pod as the member of a single pod's round."""
    uid = builders.member(0).pod.uid
    return builders.member(0, gang=KEY, slot="train-0-0", owner=None, gang_uid=uid, **changes)


def request(name: str = "please", *, pod: str = KEY.name, age: float = 0.0) -> Restart:
    """Return a request of this age in seconds, as a Restart object from the API server."""
    target = {"apiVersion": "v1", "kind": "Pod", "name": pod}
    metadata = {
        "namespace": "team",
        "name": name,
        "uid": f"uid-{name}",
        "creationTimestamp": timestamps.rfc3339(time.time() - age),
    }
    return objects.parse({"metadata": metadata, "spec": {"targetRef": target}})


def stage_with(pod: Member | GangKey | None) -> Stage:
    """Set up a leader; the pod is that member, or in that gang, or does not exist."""
    stage = Stage([alone()])
    stage.members.all.clear()
    if pod is not None:
        stage.members.single[KEY.name] = pod
    return stage


async def status_of(stage: Stage, name: str = "please") -> dict[str, Any]:
    """Return the status that answers the request."""
    await until(lambda: f"team/{name}" in stage.restarts.statuses)
    return stage.restarts.statuses[f"team/{name}"]


async def see_through(stage: Stage, coordinator: object, round_id: str) -> None:
    """Have the pod's agent carry out its orders."""
    assert (await stage.agent(0).received("stop")).stop.round == round_id
    stage.stands(coordinator, 0, round_id, Result.STOPPED)  # type: ignore[arg-type]
    assert (await stage.agent(0).received("release")).release.round == round_id
    stage.stands(coordinator, 0, round_id, Result.RUNNING)  # type: ignore[arg-type]


async def test_single_pod_is_restarted_in_its_own_round() -> None:
    stage = stage_with(alone())
    async with stage.leading() as coordinator:
        stage.restarts.asked(request())
        stop = (await stage.agent(0).received("stop")).stop
        assert (stop.round, [order.pod.name for order in stop.orders]) == ("team/please", ["train-0-0"])
        stage.stands(coordinator, 0, stop.round, Result.STOPPED)
        await stage.agent(0).received("release")
        stage.stands(coordinator, 0, stop.round, Result.RUNNING)
        status = await status_of(stage)
        assert (status["phase"], status["members"]["running"]) == ("Done", 1)
        await until(lambda: not stage.members.followed)


@pytest.mark.parametrize(
    ("pod", "reason", "detail"),
    [
        (None, "MemberGone", "there is no pod team/train-0-0"),
        (GangKey("team", "Job", "train"), "InAGang", "spec.gang {kind: Job, name: train}"),
        (alone(annotations={}), "NotOptedIn", "kubemend.io/restart"),
        (alone(phase=PodPhase.SUCCEEDED), "MemberGone", "no member"),
        (alone(phase=PodPhase.FAILED), "NotReplaceable", "SinglePod"),
        (alone(deleting=True), "MemberGone", "no member"),
    ],
)
async def test_pod_that_cannot_be_restarted_alone_is_refused_with_reason(
    pod: Member | GangKey | None, reason: str, detail: str
) -> None:
    stage = stage_with(pod)
    async with stage.leading():
        stage.restarts.asked(request())
        status = await status_of(stage)
        assert (status["phase"], status["decision"]["reason"]) == ("Refused", reason)
        assert detail in status["decision"]["detail"]
        await until(lambda: not stage.members.followed)
        assert not stage.replaced.wanted


@pytest.mark.parametrize("name", ["a,metadata.namespace=b", "../x", "UPPER", "x" * 254, "a..b", "a\n"])
async def test_impossible_pod_name_reaches_no_selector(name: str) -> None:
    stage = stage_with(None)
    stage.members.may_follow.clear()
    async with stage.leading():
        stage.restarts.asked(request(pod=name))
        assert (await status_of(stage))["decision"]["reason"] == "MemberGone"


@pytest.mark.parametrize("refusal", ["JobBackoffLimit", "RestartPolicyNever", "DeviceNotUsable"])
async def test_pod_refused_by_its_agent_is_never_deleted(refusal: str) -> None:
    stage = stage_with(alone())
    async with stage.leading() as coordinator:
        stage.restarts.asked(request())
        stop = (await stage.agent(0).received("stop")).stop
        pod = pb.Pod(namespace="team", name=KEY.name, uid=alone().pod.uid)
        result = pb.StepResult(round=stop.round, pod=pod, phase=Result.REFUSED, reason=refusal)
        coordinator.received(stage.agent(0), pb.AgentMessage(result=result))
        status = await status_of(stage)
        assert status["phase"] == "Failed"
        assert [each["reason"] for each in status["failures"]] == [refusal]
        assert not stage.replaced.wanted


async def test_requests_for_one_pod_run_one_after_another() -> None:
    stage = stage_with(alone())
    async with stage.leading() as coordinator:
        stage.restarts.asked(request("first"))
        stage.restarts.asked(request("second"))
        for name in ("first", "second"):
            await see_through(stage, coordinator, f"team/{name}")
            assert (await status_of(stage, name))["phase"] == "Done"
        await until(lambda: not stage.members.followed)


async def test_request_deleted_during_lookup_begins_no_round() -> None:
    stage = stage_with(alone())
    stage.members.may_follow.clear()
    async with stage.leading():
        stage.restarts.asked(request())
        await until(lambda: stage.members.followed == [KEY])
        stage.restarts.deleted("team/please")
        stage.members.may_follow.set()
        await until(lambda: not stage.members.followed)
        assert "stop" not in stage.agent(0).waiting()


async def test_deleted_pod_ends_its_round() -> None:
    stage = stage_with(alone())
    async with stage.leading():
        stage.restarts.asked(request())
        await stage.agent(0).received("stop")
        stage.members.gone(alone().pod.uid, kind=MemberChangeKind.GONE)
        assert (await status_of(stage))["phase"] in ("Degraded", "Failed")
        await until(lambda: not stage.members.followed)


@pytest.mark.parametrize("age", [0.0, 10 * 86_400.0])
async def test_next_leader_resumes_before_agents_connect(age: float) -> None:
    stage = stage_with(alone())
    async with stage.leading():
        stage.restarts.asked(request(age=age))
        await stage.agent(0).received("stop")
    assert not stage.members.followed
    assert stage.restarts.all["team/please"].is_round
    async with stage.leading(epoch=2) as coordinator:
        assert stage.members.by_uid(alone().pod.uid) is not None
        stage.stands(coordinator, 0, "team/please", Result.STOPPED)
        await stage.agent(0).received("release")
        stage.stands(coordinator, 0, "team/please", Result.RUNNING)
        assert (await status_of(stage))["phase"] == "Done"


async def test_lookup_timeout_does_not_block_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_pods, "_RESUMED_WITHIN", 0.01)
    stage = stage_with(alone())
    async with stage.leading():
        stage.restarts.asked(request())
        await stage.agent(0).received("stop")
    stage.members.may_follow.clear()
    async with stage.leading(epoch=2):
        assert stage.members.followed == [KEY]


async def ask(stage: Stage, count: int) -> None:
    """Request restarts of that many pods, and wait until they fill their namespace's share."""
    for number in range(count):
        stage.restarts.asked(request(f"ask-{number}", pod=f"pod-{number}"))
    await until(lambda: len(stage.members.followed) == single_pods.AT_A_TIME_IN_A_NAMESPACE)


async def test_many_requests_of_one_namespace_leave_slots_for_others() -> None:
    stage = stage_with(None)
    stage.members.may_follow.clear()
    share = single_pods.AT_A_TIME_IN_A_NAMESPACE
    async with stage.leading():
        await ask(stage, 2 * share)
        elsewhere = replace(request(), namespace="other", gang=GangKey("other", POD, "there"))
        stage.restarts.asked(elsewhere)
        await until(lambda: GangKey("other", POD, "there") in stage.members.followed)
        assert len(stage.members.followed) == share + 1
        stage.members.may_follow.set()
        for number in range(2 * share):
            assert (await status_of(stage, f"ask-{number}"))["phase"] == "Refused"


async def test_waiting_requests_have_no_task() -> None:
    stage = stage_with(None)
    stage.members.may_follow.clear()
    share = single_pods.AT_A_TIME_IN_A_NAMESPACE
    async with stage.leading():
        await ask(stage, share)
        before = len(asyncio.all_tasks())
        for number in range(share, 1000):
            stage.restarts.asked(request(f"ask-{number}", pod=f"pod-{number}"))
        for number in range(20):
            elsewhere = GangKey("other", POD, f"pod-{number}")
            stage.restarts.asked(replace(request(f"{number}"), namespace="other", gang=elsewhere))
        await until(lambda: len(stage.members.followed) == 2 * share)
        assert len(asyncio.all_tasks()) == before + share
        stage.members.may_follow.set()
        for number in range(1000):
            assert (await status_of(stage, f"ask-{number}"))["phase"] == "Refused"
        await until(lambda: not stage.members.followed)
        assert len(asyncio.all_tasks()) == before - share


async def test_rounds_of_one_namespace_are_resumed_within_its_share() -> None:
    stage = stage_with(None)
    stage.members.may_follow.clear()
    share = single_pods.AT_A_TIME_IN_A_NAMESPACE
    worked: list[Restart] = []
    pods = single_pods.SinglePods(dependencies=stage.dependencies, worker=lambda _: Idle(), resume=worked.append)  # type: ignore[arg-type, return-value]
    running = asyncio.create_task(pods.run())
    try:
        for number in range(3 * share):
            pods.submit(forged(number, gang=GangKey("team", POD, f"pod-{number}")))
        pods.submit(forged(0, gang=GangKey("other", POD, "pod")))
        await until(lambda: len(stage.members.followed) == share + 1)
        assert GangKey("other", POD, "pod") in stage.members.followed
        stage.members.may_follow.set()
        await until(lambda: len(worked) == 3 * share + 1)
    finally:
        running.cancel()


async def test_deleted_requests_no_longer_wait() -> None:
    stage = stage_with(None)
    stage.members.may_follow.clear()
    share = single_pods.AT_A_TIME_IN_A_NAMESPACE
    async with stage.leading():
        await ask(stage, 2 * share)
        for number in range(share, 2 * share - 1):
            stage.restarts.deleted(f"team/ask-{number}")
        followed = stage.members.ever_followed
        stage.members.may_follow.set()
        assert (await status_of(stage, f"ask-{2 * share - 1}"))["phase"] == "Refused"
        await until(lambda: not stage.members.followed)
        assert len(followed) == share + 1


async def test_total_of_watched_pods_is_bounded_and_shared_by_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_pods, "_AT_A_TIME", 3)
    stage = stage_with(None)
    stage.members.may_follow.clear()
    async with stage.leading():
        for number in range(6):
            stage.restarts.asked(request(f"ask-{number}", pod=f"pod-{number}"))
        other = GangKey("other", POD, "pod")
        stage.restarts.asked(replace(request(), namespace="other", gang=other))
        await until(lambda: len(stage.members.followed) == 3)
        assert other in stage.members.followed
        stage.members.may_follow.set()
        for number in range(6):
            assert (await status_of(stage, f"ask-{number}"))["phase"] == "Refused"


async def test_internal_error_in_request_is_reported_and_next_is_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = stage_with(alone())
    following = stage.members.following

    def broken(pod: GangKey) -> object:
        if pod == KEY:
            raise ZeroDivisionError
        return following(pod)

    monkeypatch.setattr(stage.members, "following", broken)
    async with stage.leading():
        stage.restarts.asked(request())
        status = await status_of(stage)
        assert (status["phase"], status["failures"][0]["reason"]) == ("Failed", "Internal")
        stage.restarts.asked(request("other", pod="other"))
        assert (await status_of(stage, "other"))["decision"]["reason"] == "MemberGone"


def forged(number: int, *, gang: GangKey) -> Restart:
    """Return a Restart object that looks like a round under way; any user able to create Restarts can write it."""
    name = f"forged-{number}"
    return replace(request(name), gang=gang, attempt=1, epoch=number, status={"phase": "Stopping"})


class Idle:
    """The worker of a gang that has nothing to do."""

    async def wait_idle(self) -> None:
        """Return at once."""


class Resuming:
    """Allow this many takeovers from a previous leader, and more on demand."""

    def __init__(self, stage: Stage, *, at_first: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self._permits = asyncio.Semaphore(at_first)
        self._resume = stage.restarts.resume
        monkeypatch.setattr(stage.restarts, "resume", self)

    async def __call__(self, restart: Restart, *, epoch: int) -> bool:
        await self._permits.acquire()
        self.done.append(restart.id)
        return await self._resume(restart, epoch=epoch)

    def allow(self, count: int) -> None:
        for _ in range(count):
            self._permits.release()


@pytest.mark.parametrize(("kind", "most"), [("Gang", 0), (POD, single_pods.AT_A_TIME_IN_A_NAMESPACE)])
async def test_forged_rounds_do_not_block_leadership(monkeypatch: pytest.MonkeyPatch, kind: str, most: int) -> None:
    stage = Stage([builders.member(0)])
    for number in range(100):
        restart = forged(number, gang=GangKey("team", kind, f"nothing-{number}"))
        stage.restarts.all[restart.id] = restart
    resuming = Resuming(stage, at_first=most, monkeypatch=monkeypatch)
    async with stage.leading():
        stage.restarts.asked(replace(request(), spec=RestartSpec(gang=builders.GANG), gang=builders.GANG))
        assert (await stage.agent(0).received("stop")).stop.round == "team/please"
        resuming.allow(100)
        for number in range(100):
            assert (await status_of(stage, f"forged-{number}"))["phase"] == "Failed"


async def test_only_one_of_many_rounds_of_a_gang_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage([builders.member(0)])
    async with stage.leading():
        stage.restarts.asked(replace(request(), spec=RestartSpec(gang=builders.GANG), gang=builders.GANG))
        round_id = (await stage.agent(0).received("stop")).stop.round
    for number in range(10):
        restart = forged(number, gang=builders.GANG)
        stage.restarts.all[restart.id] = restart
    resuming = Resuming(stage, at_first=1, monkeypatch=monkeypatch)
    async with stage.leading(epoch=2):
        assert resuming.done == [round_id]
        resuming.allow(10)
        for number in range(10):
            assert (await status_of(stage, f"forged-{number}"))["phase"] == "Failed"
        assert round_id not in stage.restarts.statuses
