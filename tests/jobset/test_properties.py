"""What holds for every JobSet whatever happens to it: in memory, with the decisions alone."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.jobset.worlds import World

Json = dict[str, Any]

JOBS = ("driver-0", "workers-0", "workers-1", "workers-2")
IN_PLACE: Json = {"parallelism": 1, "completions": 1, "backoffLimit": 2**31 - 1, "podReplacementPolicy": "Failed"}
STRATEGIES = ("Recreate", "BlockingRecreate", "InPlaceRestart")
REASONS = ("PodFailurePolicy", "BackoffLimitExceeded")


def spec(**more: Any) -> Json:
    template = {"spec": IN_PLACE}
    jobs = [{"name": "driver", "template": template}, {"name": "workers", "replicas": 3, "template": template}]
    return {"replicatedJobs": jobs, **more}


@dataclass(frozen=True)
class Story:
    """What happens to Jobs, each Job's own in its order, and after which of it the controller looks."""

    happenings: tuple[tuple[str, str], ...]
    looks: tuple[bool, ...]


@st.composite
def stories(draw: st.DrawFn, ends: Sequence[str]) -> Story:
    """One interleaving of: each Job gets active, then ready, then ends as ``ends`` says."""
    happenings = draw(st.permutations([job for job in JOBS for _ in range(3)]))
    words = {job: iter(("active", "ready", end)) for job, end in zip(JOBS, ends, strict=True)}
    told = tuple((next(words[job]), job) for job in happenings)
    return Story(told, tuple(draw(st.lists(st.booleans(), min_size=len(told), max_size=len(told)))))


async def end_of(story: Story, made_of: Json) -> tuple[Json, list[str]]:
    """Return the status and the events in which a story ends."""
    world = World(made_of)
    await world.begin()
    for (word, job), looks in zip(story.happenings, story.looks, strict=True):
        assert await world.happen(word, job)
        if looks:
            await world.settle()
    await world.settle()
    status = await world.status()
    for condition in status["conditions"]:
        del condition["lastTransitionTime"]
    return status, await world.events()


def in_canonical_order(ends: Sequence[str]) -> Story:
    told = tuple((word, job) for job, end in zip(JOBS, ends, strict=True) for word in ("active", "ready", end))
    return Story(told, (True,) * len(told))


@settings(max_examples=40, deadline=None)
@given(story=stories(["complete"] * 4))
def test_any_order_of_successes_ends_the_same(story: Story) -> None:
    expected = asyncio.run(end_of(in_canonical_order(["complete"] * 4), spec()))
    assert expected[0]["terminalState"] == "Completed"
    assert asyncio.run(end_of(story, spec())) == expected


@settings(max_examples=40, deadline=None)
@given(story=stories(["complete", "complete", "fail", "complete"]))
def test_any_order_with_one_failure_ends_the_same(story: Story) -> None:
    expected = asyncio.run(end_of(in_canonical_order(["complete", "complete", "fail", "complete"]), spec()))
    assert expected[0]["terminalState"] == "Failed"
    assert asyncio.run(end_of(story, spec())) == expected


@st.composite
def policies(draw: st.DrawFn, *, strategy: str) -> Json:
    """A failure policy with up to two rules."""
    actions = (
        "RestartJobSet",
        "RestartJobSetAndIgnoreMaxRestarts",
        "RestartJob",
        "RestartJobAndIgnoreMaxRestarts",
        "FailJobSet",
    )
    rules = [
        {"name": f"rule{index}", "action": draw(st.sampled_from(actions)), "onJobFailureReasons": [reason]}
        for index, reason in enumerate(REASONS)
        if draw(st.booleans())
    ]
    return {"maxRestarts": draw(st.sampled_from((0, 2, 3, 4))), "restartStrategy": strategy, "rules": rules}


def happenings(*, most: int) -> st.SearchStrategy[list[tuple[str, Any]]]:
    """Anything that may happen, whether it makes sense now or not."""
    jobs = st.sampled_from(JOBS)
    failure = st.tuples(st.just("fail"), st.fixed_dictionaries({"jobs": jobs, "reason": st.sampled_from(REASONS)}))
    one_goes = st.tuples(st.just("finish-deletions"), jobs)
    all_go = st.just(("finish-deletions", "all"))
    rounds = st.tuples(st.sampled_from(("round-begins", "round-ends")), st.none())
    others = st.one_of(
        st.tuples(st.sampled_from(("active", "ready", "complete")), jobs),
        st.tuples(st.just("delete"), jobs.map(lambda job: {"jobs": job})),
        st.tuples(st.sampled_from(("suspend", "resume", "restart-controller", "look")), st.none()),
        st.just(("stopped", "all")),
    )
    return st.lists(st.one_of(failure, failure, one_goes, all_go, rounds, rounds, others), min_size=15, max_size=most)


class Rounds:
    """Plays the gang's desk: it begins a round only where the JobSet's policy leaves one, and numbers them."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._attempt = 0
        self._is_on = False

    async def happen(self, word: str) -> None:
        said = await self._world.stage.gang(await self._world.jobset())
        if self._is_on and (word == "round-ends" or said["closed"]):
            ended = {"reason": "Cancelled", "phase": "Failed"} if said["closed"] else {}
            await self._world.happen("round-ends", {"attempt": self._attempt, **ended})
            self._is_on = False
        elif word == "round-begins" and not said["closed"] and not self._is_on and said["limit"] is not None:
            if said["used"] >= said["limit"]:
                await self._world.happen("round-refused", {"reason": "ReachedMaxRestarts"})
                return
            self._attempt += 1
            self._is_on = True
            await self._world.happen("round-begins", {"attempt": self._attempt})


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_restarts_are_never_more_than_allowed_and_an_end_is_an_end(strategy: str, data: st.DataObject) -> None:
    asyncio.run(live(data.draw(policies(strategy=strategy)), data.draw(happenings(most=40))))


async def live(policy: Json, told: list[tuple[str, Any]]) -> None:
    world = World(spec(failurePolicy=policy))
    await world.begin()
    rounds = Rounds(world)
    before = await world.status()
    for word, value in told:
        if word.startswith("round"):
            await rounds.happen(word)
        else:
            await world.happen(word, value)
        for _ in range(10):
            if not await world.look():
                break
            before = await checked(world, policy, before)
        before = await checked(world, policy, before)


async def checked(world: World, policy: Json, before: Json) -> Json:
    """Check what must hold now, and against what was before; return the status."""
    status, jobs = await world.status(), await world.jobs()
    assert counted(status) <= policy["maxRestarts"]
    assert status.get("restarts", 0) >= before.get("restarts", 0)
    assert counted(status) >= counted(before)
    assert (status.get("currentInPlaceRestartAttempt") or 0) >= (before.get("currentInPlaceRestartAttempt") or 0)
    assert status.get("restartsCountTowardsMax", 0) <= status.get("restarts", 0) + rounds_of(status)
    if before.get("terminalState"):
        assert status["terminalState"] == before["terminalState"]
    attempts = {int(job["metadata"]["labels"]["jobset.sigs.k8s.io/restart-attempt"]) for job in jobs}
    assert max(attempts, default=0) <= status.get("restarts", 0)
    if policy["restartStrategy"] == "BlockingRecreate":
        assert len(attempts) <= 1
    return status


def counted(status: Json) -> int:
    of_jobs = (each.get("jobRestartsCountTowardsMax") or [] for each in status.get("replicatedJobsStatus") or ())
    return int(status.get("restartsCountTowardsMax", 0)) + sum(sum(each) for each in of_jobs)


def rounds_of(status: Json) -> int:
    return int(status.get("currentInPlaceRestartAttempt") or 0)


@pytest.mark.parametrize("strategy", STRATEGIES)
@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_whatever_has_happened_it_comes_to_an_end(strategy: str, data: st.DataObject) -> None:
    """Nothing can wedge a JobSet: once Jobs run to their end, it does too."""
    assert asyncio.run(run_out(data.draw(policies(strategy=strategy)), data.draw(happenings(most=30))))


async def run_out(policy: Json, told: list[tuple[str, Any]]) -> bool:
    """Have things happen, and then all Jobs succeed; return whether that completes the JobSet, or it had failed."""
    world = World(spec(failurePolicy=policy))
    await world.begin()
    rounds = Rounds(world)
    for word, value in told:
        await (rounds.happen(word) if word.startswith("round") else world.happen(word, value))
        await world.settle()
    await world.happen("resume")
    await world.collect()
    if not (await world.status()).get("terminalState"):
        assert {job["metadata"]["name"] for job in await world.jobs()} == {f"js-{job}" for job in JOBS}
        await world.happen("complete", "all")
        await world.collect()
        return bool((await world.status())["terminalState"] == "Completed")
    return bool((await world.status())["terminalState"] in ("Completed", "Failed"))
