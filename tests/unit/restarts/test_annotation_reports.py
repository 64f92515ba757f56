"""The author of a pod learns of wrong annotations when the agent sees the pod, not by the first fault."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.event_messages import EventMessage, Level
from kubemend.agent.model.workloads import PodView
from kubemend.agent.restart import options
from kubemend.agent.restarts.annotation_reports import AnnotationReports
from kubemend.agent.sources import pod_objects
from kubemend.common import contained
from tests.fakes import outside
from tests.unit.restart import builders

NOW = 1_790_000_000.0


@dataclass
class Env:
    """A node's pods, and what is reported about them."""

    pods: outside.Pods = field(default_factory=outside.Pods)
    said: outside.Conditions = field(default_factory=outside.Conditions)
    recorded: list[EventMessage] = field(default_factory=list)

    def record(self, event_message: EventMessage) -> None:
        self.recorded.append(event_message)

    def begin(self) -> None:
        AnnotationReports(pods=self.pods, conditions=self.said, events=self, now=lambda: NOW).begin()

    def condition(self) -> Condition:
        return self.said.said[builders.POD, conditions.IN_PLACE_RESTART]


@pytest.fixture
def env() -> Env:
    return Env()


def pod(annotations: Mapping[str, str], **changes: Any) -> PodView:
    return replace(builders.pod(), annotations=annotations, **changes)


@pytest.mark.parametrize(
    ("annotations", "hint"),
    [
        ({options.RESTART: "inplace"}, "annotation kubemend.io/restart is 'inplace'; the only value is 'InPlace'"),
        ({options.GRACE_PERIOD: "10 s"}, "write seconds"),
        ({options.MAX_RESTARTS: "many"}, "write a whole number"),
        ({options.HEARTBEAT_FILE: "/tmp/beat"}, "annotation kubemend.io/heartbeat-timeout is missing"),
        ({options.CONTAINERS: "trainer,trianer"}, "names trianer: neither a main container nor a"),
    ],
)
@pytest.mark.parametrize("known", [True, False], ids=["pod of before", "new pod"])
async def test_invalid_annotations_are_a_condition(
    env: Env, annotations: dict[str, str], hint: str, *, known: bool
) -> None:
    if not known:
        env.begin()
    await env.pods.put(pod({options.RESTART: options.IN_PLACE} | annotations))
    if known:
        env.begin()
    condition = env.condition()
    assert (condition.status, condition.reason) == (ConditionStatus.FALSE, "BadAnnotation")
    assert condition.message.startswith("nothing is restarted or watched: annotation kubemend.io/")
    assert hint in condition.message


@pytest.mark.parametrize("known", [True, False], ids=["pod of before", "new pod"])
async def test_annotations_that_were_corrected_while_no_agent_ran_end_the_condition(env: Env, *, known: bool) -> None:
    previous = Condition(conditions.IN_PLACE_RESTART, ConditionStatus.FALSE, "BadAnnotation", "nothing is restarted")
    if not known:
        env.begin()
    await env.pods.put(pod({"kubemend.io/restart": "InPlace"}, conditions=(previous,)))
    if known:
        env.begin()
    assert (env.condition().status, env.condition().reason) == (ConditionStatus.UNKNOWN, "NoRestart")
    env.said.said.clear()
    await env.pods.put(pod({"kubemend.io/restart": "InPlace"}, conditions=(previous,), phase="Failed"))
    assert not env.said.said, "it is on its way"


async def test_restart_that_a_previous_agent_has_reported_stays(env: Env) -> None:
    done = Condition(conditions.IN_PLACE_RESTART, ConditionStatus.TRUE, "Swapped", "trainer restart 1 by swap")
    await env.pods.put(pod({"kubemend.io/restart": "InPlace"}, conditions=(done,)))
    env.begin()
    assert not env.said.said


async def test_corrected_annotations_end_the_condition_once(env: Env) -> None:
    env.begin()
    await env.pods.put(pod({"kubemend.io/restart": "on"}))
    await env.pods.put(pod({"kubemend.io/restart": "InPlace"}))
    condition = env.condition()
    assert (condition.status, condition.reason) == (ConditionStatus.UNKNOWN, "NoRestart")
    env.said.said.clear()
    await env.pods.put(pod({"kubemend.io/restart": "InPlace"}, labels={"changed": "yes"}))
    assert env.said.said == {}


async def test_annotations_of_a_pod_that_is_not_kept_are_not_reported(env: Env) -> None:
    previous = Condition(conditions.IN_PLACE_RESTART, ConditionStatus.FALSE, "BadAnnotation", "nothing is restarted")
    env.begin()
    for reported in ((), (previous,)):
        await env.pods.put(pod_objects.bare(pod({}, conditions=reported)))
        assert env.said.said == {}


async def test_unknown_annotations_are_one_event_until_they_change(env: Env) -> None:
    env.begin()
    for labels in ({}, {"changed": "yes"}):
        await env.pods.put(pod({"kubemend.io/max-restart": ""}, labels=labels))
    await env.pods.put(pod({}))
    (message,) = env.recorded
    assert (message.about, message.reason, message.at) == (builders.POD, "UnknownAnnotation", NOW)
    assert (message.level, env.said.said) == (Level.WARNING, {})
    assert message.message == (
        "unknown annotations have no effect: kubemend.io/max-restart (did you mean kubemend.io/max-restarts?)"
    )


async def test_deleted_pods_leave_nothing_and_an_error_about_one_is_contained(
    env: Env, monkeypatch: pytest.MonkeyPatch
) -> None:
    env.begin()
    for _ in range(2):  # another one of the same name and UID is reported again
        env.said.said.clear()
        await env.pods.put(pod({"kubemend.io/restart": "on", "kubemend.io/x": ""}))
        assert env.condition().reason == "BadAnnotation"
        env.pods.drop(builders.POD.uid)
    assert len(env.recorded) == 2
    monkeypatch.setattr(options, "parse", lambda _: 1 // 0)
    before = contained.count([contained.Part.CONDITION])
    await env.pods.put(pod({}))
    assert contained.count([contained.Part.CONDITION]) == before + 1
