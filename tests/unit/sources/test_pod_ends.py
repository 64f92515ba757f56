"""Whether a pod is ending, by the API server, the runtime and the node; and how long a member's end is doubted."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from kubemend.agent.clients.cri import errors as cri_errors
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerRole,
    ContainerSpec,
    ContainerState,
    ExecHook,
    PodRef,
    PodUid,
    PodView,
    RestartPolicy,
    SandboxId,
    SandboxView,
)
from kubemend.agent.restart import exits
from kubemend.agent.restart.exits import Exit
from kubemend.agent.sources import pod_ends
from kubemend.agent.sources.pod_ends import PodEnds
from kubemend.common import aio
from kubemend.common.kube import client, errors
from tests import eventually
from tests.fakes import outside

REF = PodRef("team", "solo", PodUid("u"))
SANDBOX = SandboxId("s")
SECONDS = 60.0
ERROR = Exit("trainer", 1)


def pod(**changes: Any) -> PodView:
    defaults: dict[str, Any] = {
        "ref": REF,
        "phase": "Running",
        "restart_policy": RestartPolicy.ALWAYS,
        "containers": (
            ContainerSpec("trainer", ContainerRole.MAIN, running=True),
            ContainerSpec("shipper", ContainerRole.SIDECAR, running=True),
        ),
    }
    return PodView(**defaults | changes)


@pytest.fixture(autouse=True)
def only_news_wake(monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that is not woken by what happens looks again too late."""
    monkeypatch.setattr(pod_ends, "_RECHECK", 2 * SECONDS)
    monkeypatch.setattr(exits, "PATIENT", 2 * SECONDS)
    monkeypatch.setattr(exits, "STOPPED", 2 * SECONDS)


@dataclass
class Runtime:
    """The pod's sandbox. ``answers`` False: the runtime is unavailable."""

    ready: bool = True
    answers: bool = True
    ours: set[ContainerId] = field(default_factory=set)

    def has_ended(self, container_id: ContainerId) -> bool:
        return container_id in self.ours

    async def list_sandboxes(self, *, pod_uid: PodUid | None = None) -> tuple[SandboxView, ...]:
        if not self.answers:
            raise cri_errors.RuntimeUnavailable("away", where="/run/cri.sock")
        return (SandboxView(id=SANDBOX, pod=REF, ready=self.ready, created_at=1),)


@dataclass
class Api:
    """The node's object (None: the API server does not answer), and the Events of kills, for each list the next."""

    node: dict[str, Any] | None = field(default_factory=dict)
    asked: int = 0
    kills: list[list[dict[str, Any]]] = field(default_factory=list)
    listed: "asyncio.Queue[str]" = field(default_factory=asyncio.Queue)
    kept: list[Any] = field(default_factory=list)

    async def get(self, path: str) -> dict[str, Any]:
        assert path == "/api/v1/nodes/here"
        self.asked += 1
        if self.node is None:
            raise errors.ApiUnavailableError("no answer")
        return self.node

    async def list(self, path: str, *, params: client.Params, project: client.Project) -> client.Listing:
        assert path == "/api/v1/namespaces/team/events"
        self.listed.put_nowait(str(params["fieldSelector"]))
        if self.node is None:
            raise errors.ApiUnavailableError("no answer")
        found = [project(event) for event in (self.kills.pop(0) if self.kills else [])]
        self.kept += found
        return client.Listing(found, "1")


@dataclass
class Env:
    pods: outside.Pods = field(default_factory=lambda: outside.Pods(pod()))
    runtime: Runtime = field(default_factory=Runtime)
    events: outside.Events = field(default_factory=outside.Events)
    api: Api = field(default_factory=Api)

    def __post_init__(self) -> None:
        self.events.run(ContainerRef(REF, "trainer"), name="c")
        self.ends = PodEnds(
            pods=self.pods,
            runtime=self.runtime,
            containers=self.events,
            api=self.api,  # type: ignore[arg-type]
            node_name="here",
        )

    @contextlib.asynccontextmanager
    async def doubting(self, how: Exit, *, quick: float) -> AsyncIterator["asyncio.Task[str]"]:
        """The trainer has ended: doubt it for the length of the block."""
        self.events.exit(ContainerId("c"), code=how.exit_code)
        ended = self.events.views[ContainerId("c")]
        async with asyncio.timeout(SECONDS), asyncio.TaskGroup() as tasks:
            following = aio.spawn_eternal(tasks, self.ends.run(), name="ends")
            doubt = tasks.create_task(self.ends.outside_reason(ended, how, lag=0.0, quick=quick))
            yield doubt
            await doubt
            following.cancel()

    async def until_doubted(self) -> None:
        """Wait until a caller waits for news."""
        await eventually.true(lambda: bool(self.ends._waiting))


def condition(kind: str, status: str, message: str = "") -> dict[str, Any]:
    return {"status": {"conditions": [{"type": kind, "status": status, "message": message}]}}


async def test_running_pod_is_not_ending() -> None:
    env = Env()
    assert env.ends.reason(REF.uid, SANDBOX) == ""
    assert await env.ends.present_reason(REF, SANDBOX) == ""


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"deleting": True}, "it is being deleted"),
        ({"leaving": "Evicted"}, "Kubernetes is ending it: Evicted"),
        ({"phase": "Failed"}, "its phase is Failed"),
    ],
)
async def test_pod_marked_in_the_api_is_ending(changes: dict[str, Any], reason: str) -> None:
    env = Env()
    await env.pods.put(pod(**changes))
    assert env.ends.reason(REF.uid, SANDBOX) == reason


async def test_stop_of_sandbox_ends_only_its_pod() -> None:
    env = Env()
    env.ends.sandbox_stopped(SandboxId("another"))
    assert env.ends.reason(REF.uid, SANDBOX) == ""
    env.ends.sandbox_stopped(SANDBOX)
    assert env.ends.reason(REF.uid, SANDBOX) == "its sandbox has been stopped"


async def test_sandbox_without_event_is_queried() -> None:
    env = Env(runtime=Runtime(ready=False))
    assert await env.ends.present_reason(REF, SANDBOX) == "its sandbox has been stopped"


async def test_node_shutdown_ends_its_pods() -> None:
    env = Env(api=Api(condition("Ready", "False", "node is shutting down")))
    assert await env.ends.present_reason(REF, SANDBOX) == "its node is shutting down"


async def test_unavailable_api_and_runtime_leave_the_last_state() -> None:
    env = Env(runtime=Runtime(answers=False), api=Api(node=None))
    env.pods.answers = False
    assert await env.ends.present_reason(REF, SANDBOX) == ""
    await env.pods.put(pod(deleting=True))
    assert await env.ends.present_reason(REF, SANDBOX) == "it is being deleted"


async def test_pod_is_ending_by_the_api_servers_answer_before_the_watch_shows_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def ask(of: PodRef, *, timeout: float) -> PodView:
        return pod(ref=of, deleting=True)

    env = Env()
    monkeypatch.setattr(env.pods, "ask", ask)
    assert await env.ends.present_reason(REF, SANDBOX) == "it is being deleted"


async def test_remembered_sandboxes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_ends, "_SANDBOXES", 2)
    env = Env()
    for number in range(4):
        env.ends.sandbox_stopped(SandboxId(str(number)))
    assert [bool(env.ends.reason(REF.uid, SandboxId(str(number)))) for number in range(4)] == [False, False, True, True]


async def test_unexplained_exit_is_a_fault_after_a_moment() -> None:
    async with Env().doubting(ERROR, quick=0.01) as doubt:
        assert await doubt == ""


async def test_exit_with_its_sandbox_is_not_a_fault() -> None:
    env = Env()
    async with env.doubting(ERROR, quick=SECONDS) as doubt:
        await env.until_doubted()
        env.ends.sandbox_stopped(SANDBOX)
        assert await doubt == "its sandbox has been stopped"


async def test_stop_among_running_containers_is_doubted_until_kubelet_recreates_it() -> None:
    env = Env()
    env.events.run(ContainerRef(REF, "shipper"), name="s")
    async with env.doubting(Exit("trainer", 143), quick=0.0) as doubt:
        await env.until_doubted()
        env.events.run(ContainerRef(REF, "trainer"), name="c2", attempt=1, created_at=5, state=ContainerState.CREATED)
        assert await doubt == ""


async def test_error_with_other_containers_stopped_is_the_pods_end() -> None:
    """A sidecar may run on for its grace period: the request to stop it is enough."""
    env = Env()
    sidecar = env.events.run(ContainerRef(REF, "shipper"), name="s")
    async with env.doubting(ERROR, quick=SECONDS) as doubt:
        await env.until_doubted()
        env.ends.stop_asked(sidecar)
        assert await doubt == "kubelet stops its other containers as well"


async def test_stop_of_the_other_containers_before_an_error_is_the_pods_end() -> None:
    env = Env()
    env.ends.stop_asked(env.events.run(ContainerRef(REF, "shipper"), name="s"))
    async with env.doubting(ERROR, quick=0.0) as doubt:
        assert await doubt == "kubelet stops its other containers as well"


async def test_container_that_was_stopped_and_has_ended_long_before_is_no_evidence() -> None:
    backs_off = ContainerSpec("shipper", ContainerRole.MAIN, running=False)
    env = Env(pods=outside.Pods(pod(containers=(ContainerSpec("trainer", ContainerRole.MAIN), backs_off))))
    env.ends.stop_asked(env.events.run(ContainerRef(REF, "shipper"), name="s"))
    env.events.exit(ContainerId("s"), code=137)
    async with env.doubting(ERROR, quick=0.0) as doubt:
        assert await doubt == ""


async def test_stop_by_this_agent_is_no_evidence() -> None:
    env = Env()
    sidecar = env.events.run(ContainerRef(REF, "shipper"), name="s")
    env.runtime.ours.add(sidecar)
    env.ends.stop_asked(sidecar)
    async with env.doubting(ERROR, quick=0.0) as doubt:
        assert await doubt == ""


async def test_error_after_requested_stop_is_doubted_while_others_run() -> None:
    env = Env()
    env.events.run(ContainerRef(REF, "shipper"), name="s")
    env.ends.stop_asked(ContainerId("c"))
    assert await env.ends.was_stopped(env.events.views[ContainerId("c")])
    async with env.doubting(ERROR, quick=0.0) as doubt:
        await env.until_doubted()
        await env.pods.put(pod(leaving="Evicted"))
        assert await doubt == "Kubernetes is ending it: Evicted"


async def test_an_error_after_a_request_that_could_not_be_read_is_doubted_until_its_sandbox_stops(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exits, "QUICK", SECONDS)
    env = Env()
    env.ends.request_unread()
    async with env.doubting(ERROR, quick=0.0) as doubt:
        await env.until_doubted()
        env.ends.sandbox_stopped(SANDBOX)
        assert await doubt == "its sandbox has been stopped"


async def test_a_request_that_could_not_be_read_long_ago_points_to_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_ends, "_UNREAD", 0.0)
    env = Env()
    env.ends.request_unread()
    async with env.doubting(ERROR, quick=0.0) as doubt:
        assert await doubt == ""


async def test_two_that_end_together_are_doubted_until_the_pod_is_marked() -> None:
    env = Env()
    env.events.run(ContainerRef(REF, "shipper"), name="s")
    env.events.exit(ContainerId("s"), code=0)
    async with env.doubting(ERROR, quick=0.0) as doubt:
        await env.pods.put(pod(phase="Failed", leaving="Evicted"))
        assert await doubt == "Kubernetes is ending it: Evicted"


async def test_container_that_ended_long_before_is_no_evidence() -> None:
    completed = (
        ContainerSpec("trainer", ContainerRole.MAIN, running=True),
        ContainerSpec("shipper", ContainerRole.MAIN, running=False),
    )
    env = Env(pods=outside.Pods(pod(containers=completed)))
    env.events.run(ContainerRef(REF, "shipper"), name="s")
    env.events.exit(ContainerId("s"), code=0)
    async with env.doubting(ERROR, quick=0.0) as doubt:
        assert await doubt == ""


async def test_container_that_was_replaced_after_the_clock_was_set_back_is_no_evidence(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(exits, "PATIENT", 2 * SECONDS)
    env = Env()
    env.events.run(ContainerRef(REF, "shipper"), name="s", created_at=9)
    env.events.exit(ContainerId("s"), code=1)
    env.events.run(ContainerRef(REF, "shipper"), name="s1", created_at=2, attempt=1)
    async with env.doubting(ERROR, quick=0.0) as doubt:
        assert await doubt == ""


async def test_kubelet_is_given_time_on_a_node_under_pressure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exits, "PATIENT", SECONDS)
    env = Env(api=Api(condition("MemoryPressure", "True")))
    async with env.doubting(ERROR, quick=0.0) as doubt:
        env.ends.sandbox_stopped(SANDBOX)
        assert await doubt == "its sandbox has been stopped"


def hooked() -> PodView:
    """Return a pod whose trainer has a preStop hook."""
    hook = ExecHook(command=("save",))
    return pod(
        containers=(
            ContainerSpec("trainer", ContainerRole.MAIN, running=True, pre_stop=hook),
            ContainerSpec("shipper", ContainerRole.SIDECAR, running=True),
        )
    )


PROBE = "Container trainer failed liveness probe, will be restarted"


def kill(*, of: str = "trainer", at: str = "1970-01-01T00:00:05Z", message: str = PROBE) -> dict[str, Any]:
    subject = {"fieldPath": f"spec.containers{{{of}}}"}
    return {"involvedObject": subject, "lastTimestamp": at, "reason": "Killing", "message": message}


async def test_error_in_a_pre_stop_hook_is_doubted_until_the_pod_is_marked() -> None:
    env = Env(pods=outside.Pods(hooked()), api=Api(kills=[[kill()]]))
    env.events.run(ContainerRef(REF, "shipper"), name="s")
    async with env.doubting(ERROR, quick=0.0) as doubt:
        assert await env.api.listed.get() == "involvedObject.uid=u,reason=Killing"
        await env.pods.put(pod(leaving="Evicted"))
        assert await doubt == "Kubernetes is ending it: Evicted"


async def test_error_in_a_pre_stop_hook_of_a_stopped_pod_is_no_fault_however_long_other_hooks_take() -> None:
    env = Env(pods=outside.Pods(hooked()), api=Api(kills=[[kill(message="Stopping container trainer")]]))
    env.events.run(ContainerRef(REF, "shipper"), name="s")
    async with env.doubting(ERROR, quick=0.0) as doubt:
        assert await doubt == "kubelet stops all its containers"
    assert env.ends.reason(REF.uid, SANDBOX) == "kubelet stops all its containers"


async def test_stop_that_kubelet_has_recorded_is_remembered() -> None:
    env = Env(pods=outside.Pods(hooked()), api=Api(kills=[[kill()]]))
    for _ in range(2):
        assert await env.ends.was_stopped(env.events.views[ContainerId("c")])
    assert env.api.listed.qsize() == 1


async def test_recorded_stop_counts_after_the_clock_was_set_back() -> None:
    env = Env(pods=outside.Pods(hooked()), api=Api(kills=[[kill(at="2024-05-05T11:10:00Z")]]))
    later = int((time.time() + 3600) * 1e9)
    env.events.run(ContainerRef(REF, "trainer"), name="c", created_at=later)
    assert await env.ends.was_stopped(env.events.views[ContainerId("c")])


async def test_kubelets_event_may_arrive_after_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exits, "QUICK", 0.01)
    env = Env(pods=outside.Pods(hooked()), api=Api(kills=[[], [kill()]]))
    assert not await env.ends.was_stopped(env.events.views[ContainerId("c")])
    assert env.api.listed.get_nowait()
    async with env.doubting(ERROR, quick=0.0) as doubt:
        assert await env.api.listed.get()
        await env.pods.put(pod(leaving="Evicted"))
        assert await doubt == "Kubernetes is ending it: Evicted"


@pytest.mark.parametrize(
    "events",
    [
        [],
        [kill(of="shipper")],
        [kill(of="my-trainer")],
        [kill(at="1970-01-01T00:00:00Z")],  # in the second in which this one was created
        [kill(at="soon")],
        [{"involvedObject": None, "lastTimestamp": None}],
    ],
)
async def test_event_of_another_kill_is_no_evidence(
    monkeypatch: pytest.MonkeyPatch, events: list[dict[str, Any]]
) -> None:
    monkeypatch.setattr(exits, "QUICK", 0.0)
    env = Env(pods=outside.Pods(hooked()), api=Api(kills=[events]))
    async with env.doubting(ERROR, quick=0.0) as doubt:
        assert await doubt == ""


async def test_large_event_is_reduced_while_it_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exits, "QUICK", 0.0)
    large = "x" * 1_000_000
    event = {"involvedObject": {"fieldPath": large, large: large}, "lastTimestamp": large, "message": large}
    env = Env(pods=outside.Pods(hooked()), api=Api(kills=[[event, kill()]]))
    env.runtime.ours.add(ContainerId("c"))
    async with env.doubting(ERROR, quick=0.0) as doubt:
        assert await doubt == ""
    kept = env.api.kept[0]
    assert sum(len(str(part)) for part in kept) < 1000


async def test_unanswered_question_for_events_leaves_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exits, "QUICK", 0.0)
    env = Env(pods=outside.Pods(hooked()), api=Api(node=None))
    async with env.doubting(ERROR, quick=0.0) as doubt:
        assert await doubt == ""


async def test_recorded_stop_of_an_end_by_this_agent_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exits, "QUICK", 0.0)
    env = Env(pods=outside.Pods(hooked()), api=Api(kills=[[kill()]]))
    env.runtime.ours.add(ContainerId("c"))
    async with env.doubting(ERROR, quick=0.0) as doubt:
        assert await doubt == ""


async def test_container_without_a_hook_costs_no_list_of_events() -> None:
    env = Env()
    async with env.doubting(ERROR, quick=0.0) as doubt:
        assert await doubt == ""
    assert env.api.listed.empty()


async def until_followed(env: Env, tasks: asyncio.TaskGroup) -> "asyncio.Task[None]":
    """Follow pods and containers from now on."""
    following = tasks.create_task(env.ends.run())
    await asyncio.sleep(0)
    return following


@pytest.mark.parametrize(
    ("parts", "is_asked", "reason"),
    [
        ({}, False, ""),
        ({}, True, "the runtime stops the container"),
        ({"runtime": Runtime(ours={ContainerId("c")})}, True, ""),
        ({"pods": outside.Pods(pod(deleting=True))}, False, "it is being deleted"),
        ({"runtime": Runtime(ready=False)}, False, "its sandbox has been stopped"),
        ({"api": Api(condition("MemoryPressure", "True"))}, False, "kubelet may evict pods of its node"),
        ({"api": Api(None)}, False, ""),
    ],
    ids=["by-itself", "by-the-runtime", "by-this-agent", "deleted", "sandbox", "pressure", "no-api-server"],
)
async def test_a_stop_is_kubelets_if_anything_shows_that_it_may_be(
    monkeypatch: pytest.MonkeyPatch, parts: dict[str, Any], is_asked: bool, reason: str
) -> None:
    monkeypatch.setattr(pod_ends, "_MISSED", 0.0)
    env = Env(**parts)
    if is_asked:
        env.ends.stop_asked(ContainerId("c"))
    async with asyncio.TaskGroup() as tasks:
        following = await until_followed(env, tasks)
        assert await env.ends.stop_reason(ContainerId("c"), REF, SANDBOX) == reason
        following.cancel()


async def test_a_stop_that_may_have_been_missed_counts_as_kubelets(monkeypatch: pytest.MonkeyPatch) -> None:
    missed, env = "a request to stop the container may not have been observed", Env()
    assert await env.ends.stop_reason(ContainerId("c"), REF, SANDBOX) == missed
    async with asyncio.TaskGroup() as tasks:
        following = await until_followed(env, tasks)
        assert await env.ends.stop_reason(ContainerId("c"), REF, SANDBOX) == missed, "no agent ran before"
        monkeypatch.setattr(pod_ends, "_MISSED", 0.0)
        assert await env.ends.stop_reason(ContainerId("c"), REF, SANDBOX) == ""
        monkeypatch.setattr(pod_ends, "_MISSED", 3600.0)
        env.ends._began -= 3600.0
        assert await env.ends.stop_reason(ContainerId("c"), REF, SANDBOX) == ""
        env.ends.request_unread()
        assert await env.ends.stop_reason(ContainerId("c"), REF, SANDBOX) == missed
        following.cancel()
