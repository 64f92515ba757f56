"""Views of pods that are as large as possible, in a memory cgroup."""

import dataclasses
import json

import pytest

from bench.faults.reporting import NotTriedError
from bench.memory import __main__ as memory
from bench.memory import pods
from bench.memory.pods import Crowd

_SMALL = 160 * 2**20
"""Bytes. The pods below take more than twice as many when they are read whole."""


@pytest.mark.parametrize(
    ("role", "crowd", "limit"),
    [
        # 60 pods in 160 MiB leave room for 110 below the limit, so the node that is full only repeats them.
        pytest.param(
            "agent", Crowd(110, 1_000_000, pods.environment), memory.limit_of("agent"), marks=pytest.mark.long
        ),
        ("agent", Crowd(60, 1_000_000, pods.environment), _SMALL),
        ("controller", Crowd(60, 1_000_000, pods.environment), _SMALL),
        ("controller", Crowd(300, 250_000, pods.our_annotations), _SMALL),
    ],
    ids=["agent-at-its-limit", "agent", "controller", "controller-annotations"],
)
async def test_large_pods_do_not_exhaust_memory(role: str, crowd: Crowd, limit: int) -> None:
    try:
        found = await memory.tried(memory.Trial(role, "large pods", crowd), limit=limit)
    except NotTriedError as error:
        pytest.skip(str(error))
    assert (found["killed"], found["lost"]) == (0, 0)


@pytest.mark.parametrize("role", ["agent", "controller"])
def test_the_limits_are_those_of_the_manifests(role: str) -> None:
    assert 2**28 < memory.limit_of(role) <= 2**31


@pytest.mark.parametrize("trial", memory.TRIALS, ids=lambda trial: trial.what)
def test_crowds_have_pods_of_the_given_size(trial: memory.Trial) -> None:
    crowd = dataclasses.replace(trial.crowd, count=2)
    first, second = (json.loads(each) for each in crowd.objects())
    assert first["metadata"]["uid"] != second["metadata"]["uid"]
    assert crowd.size <= len(crowd.one(0)) <= 1.5 * crowd.size + 20_000
