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
from tests.unit.controller.coordinator.env import CoordinatorEnv
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


def stage_with(pod: Member | GangKey | None) -> CoordinatorEnv:
    """Set up a leader; the pod is that member, or in that gang, or does not exist."""
    env = CoordinatorEnv([alone()])
    env.members.all.clear()
    if pod is not None:
        env.members.single[KEY.name] = pod
    return env


async def status_of(env: CoordinatorEnv, name: str = "please") -> dict[str, Any]:
    """Return the status that answers the request."""
    await until(lambda: f"team/{name}" in env.restarts.statuses)
    return env.restarts.statuses[f"team/{name}"]


async def see_through(env: CoordinatorEnv, coordinator: object, round_id: str) -> None:
    """Have the pod's agent carry out its orders."""
    assert (await env.agent(0).received("stop")).stop.round == round_id
    env.stands(coordinator, 0, round_id, Result.STOPPED)  # type: ignore[arg-type]
    assert (await env.agent(0).received("release")).release.round == round_id
    env.stands(coordinator, 0, round_id, Result.RUNNING)  # type: ignore[arg-type]


async def test_single_pod_is_restarted_in_its_own_round() -> None:
    env = stage_with(alone())
    async with env.leading() as coordinator:
        env.restarts.asked(request())
        stop = (await env.agent(0).received("stop")).stop
        assert (stop.round, [order.pod.name for order in stop.orders]) == ("team/please.uid-plea", ["train-0-0"])
        env.stands(coordinator, 0, stop.round, Result.STOPPED)
        await env.agent(0).received("release")
        env.stands(coordinator, 0, stop.round, Result.RUNNING)
        status = await status_of(env)
        assert (status["phase"], status["members"]["running"]) == ("Done", 1)
        await until(lambda: not env.members.followed)


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
    env = stage_with(pod)
    async with env.leading():
        env.restarts.asked(request())
        status = await status_of(env)
        assert (status["phase"], status["decision"]["reason"]) == ("Refused", reason)
        assert detail in status["decision"]["detail"]
        await until(lambda: not env.members.followed)
        assert not env.replaced.wanted


@pytest.mark.parametrize("name", ["a,metadata.namespace=b", "../x", "UPPER", "x" * 254, "a..b", "a\n"])
async def test_impossible_pod_name_reaches_no_selector(name: str) -> None:
    env = stage_with(None)
    env.members.may_follow.clear()
    async with env.leading():
        env.restarts.asked(request(pod=name))
        assert (await status_of(env))["decision"]["reason"] == "MemberGone"


@pytest.mark.parametrize("refusal", ["JobBackoffLimit", "RestartPolicyNever", "DeviceNotUsable"])
async def test_pod_refused_by_its_agent_is_never_deleted(refusal: str) -> None:
    env = stage_with(alone())
    async with env.leading() as coordinator:
        env.restarts.asked(request())
        stop = (await env.agent(0).received("stop")).stop
        pod = pb.Pod(namespace="team", name=KEY.name, uid=alone().pod.uid)
        result = pb.StepResult(round=stop.round, pod=pod, phase=Result.REFUSED, reason=refusal)
        coordinator.received(env.agent(0), pb.AgentMessage(result=result))
        status = await status_of(env)
        assert status["phase"] == "Failed"
        assert [each["reason"] for each in status["failures"]] == [refusal]
        assert not env.replaced.wanted


async def test_pod_held_for_a_request_that_was_never_taken_over_is_held_until_its_round_begins_again() -> None:
    """The API server was away when its round began. Once aborted, the agent no longer holds the pod for that round."""
    env = stage_with(alone())
    env.members.may_follow.clear()
    env.restarts.all["team/please"] = request()
    pod = pb.Pod(namespace="team", name=KEY.name, uid=alone().pod.uid)
    async with env.leading(epoch=2) as coordinator:
        for round_id in ("team/please.uid-plea", "team/gone.uid-gone"):
            held = Result(round=round_id, phase=Result.STOPPED, attempt=1, pod=pod)
            coordinator.hello(env.agent(0), pb.Hello(results=[held]))
        assert (await env.agent(0).received("abort")).abort.round == "team/gone.uid-gone"
        env.members.may_follow.set()
        await see_through(env, coordinator, "team/please.uid-plea")
        assert (await status_of(env))["phase"] == "Done"


async def test_requests_for_one_pod_run_one_after_another() -> None:
    env = stage_with(alone())
    async with env.leading() as coordinator:
        env.restarts.asked(request("first"))
        env.restarts.asked(request("second"))
        for name in ("first", "second"):
            await see_through(env, coordinator, f"team/{name}.uid-{name[:4]}")
            assert (await status_of(env, name))["phase"] == "Done"
        await until(lambda: not env.members.followed)


async def test_request_deleted_during_lookup_begins_no_round() -> None:
    env = stage_with(alone())
    env.members.may_follow.clear()
    async with env.leading():
        env.restarts.asked(request())
        await until(lambda: env.members.followed == [KEY])
        env.restarts.deleted("team/please")
        env.members.may_follow.set()
        await until(lambda: not env.members.followed)
        assert "stop" not in env.agent(0).waiting()


async def test_deleted_pod_ends_its_round() -> None:
    env = stage_with(alone())
    async with env.leading():
        env.restarts.asked(request())
        await env.agent(0).received("stop")
        env.members.gone(alone().pod.uid, kind=MemberChangeKind.GONE)
        assert (await status_of(env))["phase"] in ("Degraded", "Failed")
        await until(lambda: not env.members.followed)


@pytest.mark.parametrize("age", [0.0, 10 * 86_400.0])
async def test_next_leader_resumes_before_agents_connect(age: float) -> None:
    env = stage_with(alone())
    async with env.leading():
        env.restarts.asked(request(age=age))
        await env.agent(0).received("stop")
    assert not env.members.followed
    assert env.restarts.all["team/please"].is_round
    async with env.leading(epoch=2) as coordinator:
        assert env.members.by_uid(alone().pod.uid) is not None
        env.stands(coordinator, 0, "team/please.uid-plea", Result.STOPPED)
        await env.agent(0).received("release")
        env.stands(coordinator, 0, "team/please.uid-plea", Result.RUNNING)
        assert (await status_of(env))["phase"] == "Done"


async def test_lookup_timeout_does_not_block_leadership(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_pods, "_RESUMED_WITHIN", 0.01)
    env = stage_with(alone())
    async with env.leading():
        env.restarts.asked(request())
        await env.agent(0).received("stop")
    env.members.may_follow.clear()
    async with env.leading(epoch=2):
        assert env.members.followed == [KEY]


async def ask(env: CoordinatorEnv, count: int) -> None:
    """Request restarts of that many pods, and wait until they fill their namespace's share."""
    for number in range(count):
        env.restarts.asked(request(f"ask-{number}", pod=f"pod-{number}"))
    await until(lambda: len(env.members.followed) == single_pods.AT_A_TIME_IN_A_NAMESPACE)


async def test_many_requests_of_one_namespace_leave_slots_for_others() -> None:
    env = stage_with(None)
    env.members.may_follow.clear()
    share = single_pods.AT_A_TIME_IN_A_NAMESPACE
    async with env.leading():
        await ask(env, 2 * share)
        elsewhere = replace(request(), namespace="other", gang=GangKey("other", POD, "there"))
        env.restarts.asked(elsewhere)
        await until(lambda: GangKey("other", POD, "there") in env.members.followed)
        assert len(env.members.followed) == share + 1
        env.members.may_follow.set()
        for number in range(2 * share):
            assert (await status_of(env, f"ask-{number}"))["phase"] == "Refused"


async def test_waiting_requests_have_no_task() -> None:
    env = stage_with(None)
    env.members.may_follow.clear()
    share = single_pods.AT_A_TIME_IN_A_NAMESPACE
    async with env.leading():
        await ask(env, share)
        before = len(asyncio.all_tasks())
        for number in range(share, 1000):
            env.restarts.asked(request(f"ask-{number}", pod=f"pod-{number}"))
        for number in range(20):
            elsewhere = GangKey("other", POD, f"pod-{number}")
            env.restarts.asked(replace(request(f"{number}"), namespace="other", gang=elsewhere))
        await until(lambda: len(env.members.followed) == 2 * share)
        assert len(asyncio.all_tasks()) == before + share
        env.members.may_follow.set()
        for number in range(1000):
            assert (await status_of(env, f"ask-{number}"))["phase"] == "Refused"
        await until(lambda: not env.members.followed)
        assert len(asyncio.all_tasks()) == before - share


async def test_rounds_of_one_namespace_are_resumed_within_its_share() -> None:
    env = stage_with(None)
    env.members.may_follow.clear()
    share = single_pods.AT_A_TIME_IN_A_NAMESPACE
    worked: list[Restart] = []
    pods = single_pods.SinglePods(dependencies=env.dependencies, worker=lambda _: Idle(), resume=worked.append)  # type: ignore[arg-type, return-value]
    running = asyncio.create_task(pods.run())
    try:
        for number in range(3 * share):
            pods.submit(forged(number, gang=GangKey("team", POD, f"pod-{number}")))
        pods.submit(forged(0, gang=GangKey("other", POD, "pod")))
        await until(lambda: len(env.members.followed) == share + 1)
        assert GangKey("other", POD, "pod") in env.members.followed
        env.members.may_follow.set()
        await until(lambda: len(worked) == 3 * share + 1)
    finally:
        running.cancel()


async def test_deleted_requests_no_longer_wait() -> None:
    env = stage_with(None)
    env.members.may_follow.clear()
    share = single_pods.AT_A_TIME_IN_A_NAMESPACE
    async with env.leading():
        await ask(env, 2 * share)
        for number in range(share, 2 * share - 1):
            env.restarts.deleted(f"team/ask-{number}")
        followed = env.members.ever_followed
        env.members.may_follow.set()
        assert (await status_of(env, f"ask-{2 * share - 1}"))["phase"] == "Refused"
        await until(lambda: not env.members.followed)
        assert len(followed) == share + 1


async def test_total_of_watched_pods_is_bounded_and_shared_by_namespaces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(single_pods, "_AT_A_TIME", 3)
    env = stage_with(None)
    env.members.may_follow.clear()
    async with env.leading():
        for number in range(6):
            env.restarts.asked(request(f"ask-{number}", pod=f"pod-{number}"))
        other = GangKey("other", POD, "pod")
        env.restarts.asked(replace(request(), namespace="other", gang=other))
        await until(lambda: len(env.members.followed) == 3)
        assert other in env.members.followed
        env.members.may_follow.set()
        for number in range(6):
            assert (await status_of(env, f"ask-{number}"))["phase"] == "Refused"


async def test_internal_error_in_request_is_reported_and_next_is_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    env = stage_with(alone())
    following = env.members.following

    def broken(pod: GangKey) -> object:
        if pod == KEY:
            raise ZeroDivisionError
        return following(pod)

    monkeypatch.setattr(env.members, "following", broken)
    async with env.leading():
        env.restarts.asked(request())
        status = await status_of(env)
        assert (status["phase"], status["failures"][0]["reason"]) == ("Failed", "Internal")
        env.restarts.asked(request("other", pod="other"))
        assert (await status_of(env, "other"))["decision"]["reason"] == "MemberGone"


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

    def __init__(self, env: CoordinatorEnv, *, at_first: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self._permits = asyncio.Semaphore(at_first)
        self._resume = env.restarts.resume
        monkeypatch.setattr(env.restarts, "resume", self)

    async def __call__(self, restart: Restart, *, epoch: int) -> bool:
        await self._permits.acquire()
        self.done.append(restart.id)
        return await self._resume(restart, epoch=epoch)

    def allow(self, count: int) -> None:
        for _ in range(count):
            self._permits.release()


@pytest.mark.parametrize(("kind", "most"), [("Gang", 0), (POD, single_pods.AT_A_TIME_IN_A_NAMESPACE)])
async def test_forged_rounds_do_not_block_leadership(monkeypatch: pytest.MonkeyPatch, kind: str, most: int) -> None:
    env = CoordinatorEnv([builders.member(0)])
    for number in range(100):
        restart = forged(number, gang=GangKey("team", kind, f"nothing-{number}"))
        env.restarts.all[restart.id] = restart
    resuming = Resuming(env, at_first=most, monkeypatch=monkeypatch)
    async with env.leading():
        env.restarts.asked(replace(request(), spec=RestartSpec(gang=builders.GANG), gang=builders.GANG))
        assert (await env.agent(0).received("stop")).stop.round == "team/please.uid-plea"
        resuming.allow(100)
        for number in range(100):
            assert (await status_of(env, f"forged-{number}"))["phase"] == "Failed"


async def test_only_one_of_many_rounds_of_a_gang_is_resumed(monkeypatch: pytest.MonkeyPatch) -> None:
    env = CoordinatorEnv([builders.member(0)])
    async with env.leading():
        env.restarts.asked(replace(request(), spec=RestartSpec(gang=builders.GANG), gang=builders.GANG))
        await env.agent(0).received("stop")
    for number in range(10):
        restart = forged(number, gang=builders.GANG)
        env.restarts.all[restart.id] = restart
    resuming = Resuming(env, at_first=1, monkeypatch=monkeypatch)
    async with env.leading(epoch=2):
        assert resuming.done == ["team/please"]
        resuming.allow(10)
        for number in range(10):
            assert (await status_of(env, f"forged-{number}"))["phase"] == "Failed"
        assert "team/please" not in env.restarts.statuses
