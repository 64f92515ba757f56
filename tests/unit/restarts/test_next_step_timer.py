"""Which restarted containers are timed until their next step, and the observed times."""

import time
from dataclasses import dataclass, field, replace

import pytest
from prometheus_client import CollectorRegistry
from structlog.testing import capture_logs

from kubemend.agent.health.state.heartbeat import Blank, Mark, Poll
from kubemend.agent.health.state.next_step import LONGEST_WAIT, FileCheck
from kubemend.agent.metrics import Metrics
from kubemend.agent.model.workloads import ContainerId, ContainerRef, PodUid, PodView
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restarts import next_step_timer
from kubemend.agent.restarts.next_step_timer import NextStepTimer
from tests.unit.restart import builders

OLD, NEW = builders.view("old"), builders.view("new", attempt=1)
POD = builders.pod(
    annotations={"kubemend.io/heartbeat-file": "/beat", "kubemend.io/heartbeat-timeout": "60s"},
)
AGE = 2.0
"""Seconds from the fault to the end of the restart."""


@dataclass
class Env:
    """The timer, and clocks that the test sets."""

    timer: NextStepTimer
    registry: CollectorRegistry
    now: float = 500.0
    clocks: dict[int, float] = field(default_factory=dict)

    def check(self, result: Mark | Blank, *, after: float) -> FileCheck:
        """A check so many seconds after now."""
        at = self.now + after
        poll = Poll(began=at, ended=at, slept=0.0, result=result)
        return FileCheck(poll, unix=unix(at), started_at=unix(self.now + 1.0))

    def touched(self, *, after: float, inode: int = 7) -> Mark:
        changed = int(unix(self.now + after) * 1e9)
        return Mark(device=1, inode=inode, modified=changed, changed=changed)

    def expect(
        self, *, pod: PodView | None = POD, new: ContainerId | None = NEW.id, age: float = AGE, restart: str = "r1"
    ) -> None:
        self.timer.expect(
            restart,
            strategy=Strategy.SWAP,
            pod=pod,
            old=frozenset({OLD.id}),
            successors={"trainer": new},
            fault_age=age,
        )

    def steps(self, container: object = NEW) -> None:
        """Let the container's file be absent, and be touched 10 s after the restart."""
        assert container in (OLD, NEW)
        view = NEW if container is NEW else OLD
        self.timer.polled(view, self.check(Blank.ABSENT, after=1.0))
        self.timer.polled(view, self.check(self.touched(after=10.0), after=15.0))

    def total(self, since: str) -> float | None:
        labels = {"strategy": "swap", "since": since}
        count = self.registry.get_sample_value("kubemend_restart_next_step_seconds_count", labels)
        assert count in (None, 1.0)
        return self.registry.get_sample_value("kubemend_restart_next_step_seconds_sum", labels)


def unix(at: float) -> float:
    return 1_790_000_000.0 + at


@pytest.fixture
def env(monkeypatch: pytest.MonkeyPatch) -> Env:
    registry = CollectorRegistry()
    made = Env(NextStepTimer(metrics=Metrics(registry)), registry)
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    monkeypatch.setattr(time, "time", lambda: unix(made.now))
    monkeypatch.setattr(time, "clock_gettime", lambda _: made.now)
    return made


def test_step_is_observed_from_the_fault_and_from_the_end_of_the_restart(env: Env) -> None:
    with capture_logs() as logs:
        env.expect()
        env.steps()
        env.steps()  # later ones are not of this restart
    assert env.total("start") == pytest.approx(10.0)
    assert env.total("fault") == pytest.approx(AGE + 10.0)
    (event,) = logs
    assert (event["event"], event["restart"]) == ("restart.next_step", "r1")
    assert (event["milliseconds"], event["at_least_milliseconds"]) == (10_000.0, 1000.0)
    assert event["milliseconds_since_fault"] == 12_000.0


def test_file_seen_before_the_restart_ended_is_compared(env: Env) -> None:
    old = env.touched(after=-3.0)
    env.timer.polled(NEW, env.check(old, after=-1.0))
    env.expect()
    env.timer.polled(NEW, env.check(old, after=14.0))
    assert env.total("start") is None
    env.timer.polled(NEW, env.check(env.touched(after=20.0), after=29.0))
    assert env.total("start") == pytest.approx(20.0)


def test_fault_in_the_future_is_not_observed(env: Env) -> None:
    env.expect(age=-0.5)
    env.steps()
    assert env.total("start") == pytest.approx(10.0)
    assert env.total("fault") is None


def test_touch_of_the_old_container_is_not_observed(env: Env) -> None:
    env.expect()
    env.steps(OLD)
    assert env.total("start") is None
    env.timer.unwatched(OLD)
    env.steps()
    assert env.total("start") == pytest.approx(10.0)


def test_container_that_kubelet_starts_counts_from_its_start(env: Env) -> None:
    env.expect(new=None)
    env.steps(OLD)
    env.timer.unwatched(OLD)
    env.steps()
    assert env.total("start") == pytest.approx(9.0)
    assert env.total("fault") == pytest.approx(AGE + 10.0)


def test_container_that_kubelet_ends_and_replaces_has_no_step_but_the_next_one_has(env: Env) -> None:
    """Kubelet has seen the pod half cleared, started a main container, and begins with the init containers."""
    env.expect(new=None)
    env.timer.polled(replace(NEW, id=ContainerId("too early")), env.check(Blank.ABSENT, after=1.0))
    env.timer.unwatched(replace(NEW, id=ContainerId("too early")))
    env.steps()
    assert env.total("start") == pytest.approx(9.0)
    assert env.total("fault") == pytest.approx(AGE + 10.0)


def test_container_that_ended_before_its_step_is_not_observed(env: Env) -> None:
    env.expect()
    env.timer.polled(NEW, env.check(Blank.ABSENT, after=1.0))
    with capture_logs() as logs:
        env.timer.unwatched(NEW)
    assert [event["event"] for event in logs] == ["restart.next_step_unknown"]
    again = replace(NEW, id=ContainerId("newer"))
    env.timer.polled(again, env.check(env.touched(after=10.0), after=15.0))
    assert env.total("start") is None


def test_other_container_than_the_successor_is_not_observed(env: Env) -> None:
    env.expect(new=ContainerId("ended at once"))
    env.steps()
    assert env.total("start") is None


def test_file_that_another_container_touches_too_is_not_observed(env: Env) -> None:
    env.expect()
    other = replace(OLD, id=ContainerId("other"), ref=replace(OLD.ref, name="other"))
    env.timer.polled(other, env.check(env.touched(after=9.0), after=9.5))
    with capture_logs() as logs:
        env.steps()
    assert env.total("start") is None
    assert logs[0]["reason"] == "another container has the same heartbeat file"


@pytest.mark.parametrize(
    "pod",
    [
        None,
        replace(POD, annotations={}),
        replace(POD, annotations={"kubemend.io/heartbeat-file": "/beat"}),
        replace(POD, annotations={**POD.annotations, "kubemend.io/containers": "other"}),
    ],
)
def test_container_without_a_watched_file_is_not_awaited(env: Env, pod: PodView | None) -> None:
    env.expect(pod=pod)
    env.steps()
    assert env.total("start") is None


def test_waits_are_bounded_and_expire(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(next_step_timer, "MOST_WAITS", 2)
    pods = [replace(POD, ref=replace(builders.POD, uid=PodUid(f"uid-{number}"))) for number in range(3)]
    with capture_logs() as logs:
        for pod in pods:
            env.expect(pod=pod)
        env.expect(pod=pods[0], restart="r2")  # takes the place of its first
    assert [event["reason"] for event in logs] == ["too many are awaited"]
    env.now += LONGEST_WAIT + 1.0
    env.expect(pod=pods[2])
    ref = ContainerRef(pods[2].ref, "trainer")
    env.timer.polled(replace(NEW, ref=ref), env.check(env.touched(after=5.0), after=8.0))
    assert env.total("start") == pytest.approx(5.0)
