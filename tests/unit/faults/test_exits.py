"""Request a restart for an opted-in container that exits with an error; leave all other exits to kubelet."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from kubemend.agent.clients.cri import errors as cri_errors
from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.faults import exits as exit_faults
from kubemend.agent.faults.exits import Ended, Exits, outside_reason
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerRole,
    ContainerSpec,
    ContainerState,
    ContainerSummary,
    PodRef,
    PodUid,
    PodView,
    RestartPolicy,
    SandboxId,
)
from kubemend.agent.restart import admission, exits
from kubemend.agent.restarts.requests import Request
from kubemend.common import aio, contained
from kubemend.common.contained import Part
from kubemend.common.coordination import FaultKind
from tests.environments.node import NodeEnv
from tests.fakes import outside
from tests.unit.faults.test_hangs import broken

REF = PodRef("team", "solo", PodUid("u"))
TRAINER = ContainerRef(REF, "trainer")
C = ContainerId("c")
SECONDS = 60.0


def pod(**changes: Any) -> PodView:
    defaults: dict[str, Any] = {
        "ref": REF,
        "phase": "Running",
        "restart_policy": RestartPolicy.ALWAYS,
        "containers": (ContainerSpec("trainer", ContainerRole.MAIN, running=True, holds_devices=True),),
        "annotations": {"kubemend.io/restart": "InPlace"},
    }
    return PodView(**defaults | changes)


def status(**changes: Any) -> ContainerStatus:
    """The runtime's status of a trainer that has ended."""
    defaults: dict[str, Any] = {
        "id": C,
        "ref": TRAINER,
        "attempt": 0,
        "state": ContainerState.EXITED,
        "created_at": 1,
        "started_at": 1,
        "finished_at": 2_000_000_000,
        "exit_code": 1,
        "reason": "Error",
        "message": "",
        "log_path": "",
        "annotations": {},
    }
    return ContainerStatus(**defaults | changes)


@dataclass
class Restarts:
    """Records requests, and checks whether the cause of each still holds."""

    requests: "asyncio.Queue[tuple[Request, str]]" = field(default_factory=asyncio.Queue)

    async def submit(self, request: Request) -> None:
        self.requests.put_nowait((request, await request.withdrawal()))

    async def next(self) -> tuple[Request, str]:
        async with asyncio.timeout(SECONDS):
            return await self.requests.get()


@dataclass
class Runtime:
    infos: dict[ContainerId, ContainerStatus] = field(default_factory=dict)
    ended: set[ContainerId] = field(default_factory=set)

    async def container_status(self, container_id: ContainerId) -> ContainerStatus:
        if container_id not in self.infos:
            raise cri_errors.NotFound("no such container", where="/run/cri.sock")
        return self.infos[container_id]

    def has_ended(self, container_id: ContainerId) -> bool:
        return container_id in self.ended


@dataclass
class Ends:
    """The reason why the pod is ending; empty if it is not."""

    reason: str = ""
    asked: set[ContainerId] = field(default_factory=set)
    quick: list[float] = field(default_factory=list)

    async def was_stopped(self, ended: ContainerSummary) -> bool:
        return ended.id in self.asked

    async def present_reason(self, pod: PodRef, sandbox: SandboxId) -> str:
        return self.reason

    async def outside_reason(
        self, ended: ContainerSummary, how: exits.Exit, *, lag: float, quick: float = exits.QUICK
    ) -> str:
        self.quick.append(quick)
        return self.reason


@dataclass
class Rounds:
    busy_pods: set[PodUid] = field(default_factory=set)
    ends: set[ContainerId] = field(default_factory=set)

    def busy(self, pod: PodUid) -> bool:
        return pod in self.busy_pods

    def expects_end(self, container: ContainerId) -> bool:
        return container in self.ends


@dataclass(kw_only=True)
class Env(NodeEnv):
    pods: outside.Pods = field(default_factory=lambda: outside.Pods(pod()))
    restarts: Restarts = field(default_factory=Restarts)
    runtime: Runtime = field(default_factory=Runtime)
    ends: Ends = field(default_factory=Ends)
    rounds: Rounds = field(default_factory=Rounds)
    reported: set[PodUid] = field(default_factory=set)

    def exits(self) -> Exits:
        return Exits(
            restarts=self.restarts,  # type: ignore[arg-type]
            pods=self.pods,
            runtime=self.runtime,
            ends=self.ends,
            rounds=self.rounds,
            device_facts=self.facts(),
            now=lambda: 3.0,
            reported=lambda pod: pod.ref.uid in self.reported,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow the events of a running trainer, and of another pod's, during the block."""
        self.events.run(TRAINER, name="c")
        async with self.events.subscribe() as steps, asyncio.TaskGroup() as tasks:
            following = aio.spawn_eternal(tasks, self.exits().run(steps), name="exits")
            yield
            following.cancel()

    async def nothing_was_asked(self) -> None:
        """Check that the events so far led to no request: a later event is handled first."""
        other = PodRef("team", "other", PodUid("o"))
        await self.pods.put(pod(ref=other))
        self.events.run(ContainerRef(other, "trainer"), name="other")
        self.events.exit(ContainerId("other"), code=1)
        request, _ = await self.restarts.next()
        assert request.target.pod == other


@pytest.fixture
def env(store: Store) -> Env:
    return Env(store=store)


async def test_exit_with_error_requests_restart_without_hub(env: Env) -> None:
    env.holders.hold(TRAINER)
    async with env.running():
        env.events.exit(C, code=42)
        request, gone = await env.restarts.next()
    cause = request.cause()
    assert (request.target, request.kind, request.gang_answered, gone) == (TRAINER, FaultKind.EXIT, True, "")
    assert request.devices == frozenset({outside.GPU.uuid})
    assert (cause.code, cause.message) == ("Exit42", "container trainer ended with exit code 42")
    assert cause.container == C
    assert cause.happened_at == pytest.approx(2e-9)
    assert env.ends.quick == [0.0], "a single container is not waited for"


async def test_exit_by_oom_kill_names_it_in_cause(env: Env) -> None:
    async with env.running():
        env.events.exit(C, code=137, reason="OOMKilled")
        request, _ = await env.restarts.next()
    assert request.cause().message == "container trainer ended with exit code 137 (OOMKilled)"


@pytest.mark.parametrize(("action", "known"), [(None, True), (ActionClass.RESET_DEVICE, False)])
async def test_exit_with_unknown_devices_next_to_broken_device_is_on_hold(
    env: Env, action: ActionClass | None, *, known: bool
) -> None:
    if action is not None:
        env.verdict_store.apply(broken(action), inventory=env.devices.inventory)
    async with env.running():
        env.events.exit(C, code=1)
        request, _ = await env.restarts.next()
    assert request.devices is None
    assert request.cause().devices_known is known


async def test_exit_of_container_without_devices_skips_device_query(env: Env) -> None:
    await env.pods.put(pod(containers=(ContainerSpec("trainer", ContainerRole.MAIN, running=True),)))
    async with env.running():
        env.events.exit(C, code=1)
        request, _ = await env.restarts.next()
    assert request.devices == frozenset()


async def test_exit_of_ending_pod_withdraws_cause(env: Env) -> None:
    env.ends.reason = "it is being deleted"
    async with env.running():
        env.events.exit(C, code=1)
        _, gone = await env.restarts.next()
    assert gone == "the pod is ending: it is being deleted"


@pytest.mark.parametrize("code", [0, 137, 143])
async def test_exit_with_0_or_after_stop_is_left_to_kubelet(env: Env, code: int) -> None:
    async with env.running():
        env.events.exit(C, code=code)
        await env.nothing_was_asked()


@pytest.mark.parametrize(
    "changes", [{"annotations": {}}, {"deleting": True}, {"restart_policy": RestartPolicy.NEVER}, {"phase": "Failed"}]
)
async def test_exit_of_unmanaged_pod_is_left_to_kubelet(env: Env, changes: dict[str, Any]) -> None:
    await env.pods.put(pod(**changes))
    async with env.running():
        env.events.exit(C, code=1)
        await env.nothing_was_asked()


async def test_exit_with_error_after_stop_is_left_to_kubelet(env: Env) -> None:
    env.ends.asked.add(C)
    async with env.running():
        env.events.exit(C, code=5)
        await env.nothing_was_asked()


async def test_exit_caused_by_agent_or_round_is_ignored(env: Env) -> None:
    env.runtime.ended.add(C)
    async with env.running():
        env.events.exit(C, code=1)
        await env.nothing_was_asked()
    env.runtime.ended.clear()
    env.rounds.busy_pods.add(REF.uid)
    async with env.running():
        env.events.exit(C, code=1)
        await env.nothing_was_asked()
    env.rounds.busy_pods.clear()
    env.rounds.ends.add(C)
    async with env.running():
        env.events.exit(C, code=1)
        await env.nothing_was_asked()


async def test_restart_on_hold_after_an_exit_is_withdrawn_once_the_pod_ends(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exit_faults, "_FRESH", 0.0)
    reasons = []

    async def on_hold(request: Request) -> None:
        reasons.append(await request.withdrawal())
        env.ends.reason = "its node is shutting down"
        reasons.append(await request.withdrawal())
        env.restarts.requests.put_nowait((request, ""))

    monkeypatch.setattr(env.restarts, "submit", on_hold)
    async with env.running():
        env.events.exit(C, code=1)
        await env.restarts.next()
    assert reasons == ["", "the pod is ending: its node is shutting down"]


async def test_internal_error_on_exit_of_a_pod_leaves_the_others(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    no_fault_reason = admission.no_fault_reason

    def fails_for_trainer(pod: PodView, name: str, **more: Any) -> Any:
        if pod.ref == REF:
            raise IndexError
        return no_fault_reason(pod, name, **more)

    monkeypatch.setattr(admission, "no_fault_reason", fails_for_trainer)
    before = contained.count([Part.FAULT])
    async with env.running():
        env.events.exit(C, code=1)
        await env.nothing_was_asked()
    assert contained.count([Part.FAULT]) == before + 1


async def test_exit_reported_to_hub_restarts_after_answer_alone(env: Env) -> None:
    env.reported.add(REF.uid)
    async with env.running():
        env.events.exit(C, code=1)
        await env.nothing_was_asked()
    await env.exits().restart(Ended(env.events.views[C], exits.Exit("trainer", 1), at=2.0))
    request, _ = await env.restarts.next()
    assert request.target == TRAINER


async def test_exit_code_missing_from_event_is_queried(env: Env) -> None:
    env.runtime.infos[C] = status(exit_code=7)
    async with env.running():
        env.events.exit(C, code=None)
        request, _ = await env.restarts.next()
    assert (request.cause().code, request.cause().happened_at) == ("Exit7", 2.0)


async def test_exit_with_unknown_code_is_left_to_kubelet(env: Env) -> None:
    async with env.running():
        env.events.exit(C, code=None)
        await env.nothing_was_asked()


# ---- the end of a Never container that a fault named


def never(**changes: Any) -> PodView:
    return pod(restart_policy=RestartPolicy.NEVER, **changes)


async def doubt(
    env: Env, *, state: ContainerState = ContainerState.EXITED, code: int = 1, reason: str = "Error"
) -> str:
    env.events.run(TRAINER, name="before", created_at=0)
    env.events.run(TRAINER, name="c", created_at=1, attempt=1, state=state)
    env.runtime.infos[C] = status(exit_code=code)
    return await outside_reason(TRAINER, pods=env.pods, events=env.events, runtime=env.runtime, ends=env.ends)


async def test_end_of_a_never_container_is_its_own(env: Env) -> None:
    await env.pods.put(never())
    assert await doubt(env) == ""
    assert env.ends.quick == [0.0], "kubelet does not wait either"


@pytest.mark.parametrize("code", [137, 143])
async def test_end_as_of_a_stop_is_not_its_own(env: Env, code: int) -> None:
    await env.pods.put(never())
    assert await doubt(env, code=code) == "it was stopped"


async def test_end_on_request_is_not_its_own(env: Env) -> None:
    await env.pods.put(never())
    env.ends.asked.add(C)
    assert await doubt(env) == "it was stopped"


async def test_end_with_its_pod_is_not_its_own(env: Env) -> None:
    await env.pods.put(never())
    env.ends.reason = "its sandbox has been stopped"
    assert await doubt(env) == "the pod is ending: its sandbox has been stopped"


async def test_end_that_the_runtime_does_not_report_is_not_its_own(env: Env) -> None:
    await env.pods.put(never())
    env.events.run(TRAINER, name="c", state=ContainerState.EXITED)
    reason = await outside_reason(TRAINER, pods=env.pods, events=env.events, runtime=env.runtime, ends=env.ends)
    assert reason.startswith("the runtime does not report how it ended")


@pytest.mark.parametrize("running", [True, False])
async def test_running_container_and_other_policies_are_not_doubted(env: Env, running: bool) -> None:
    await env.pods.put(never() if running else pod())
    env.ends.asked.add(C)
    state = ContainerState.RUNNING if running else ContainerState.EXITED
    assert await doubt(env, state=state) == ""
