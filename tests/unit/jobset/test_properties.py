"""Invariants of decisions about a JobSet, after any events in any order."""

import itertools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType
from typing import Final

from hypothesis import given, settings
from hypothesis import strategies as st

from kubemend.controller.jobset import decide
from kubemend.controller.jobset.plan import CreateJob, DeleteJob, ObservedState, Plan
from kubemend.controller.jobset.policy import failure_policy, in_place
from kubemend.controller.jobset.spec.model import (
    Action,
    ChildJob,
    DependencyStatus,
    FailurePolicy,
    FailureRule,
    JobEnd,
    JobSet,
    Operator,
    Refusal,
    ReplicatedJob,
    RestartStrategy,
    RoundView,
    StartupOrder,
    Status,
    SuccessPolicy,
)
from tests.unit.jobset import builders

REASONS: Final = ("BackoffLimitExceeded", "DeadlineExceeded", "PodFailurePolicy")

DEPENDENCIES: Final = ((), *(builders.depends("a", each) for each in DependencyStatus))

RULES = st.builds(
    FailureRule,
    name=st.just("r"),
    action=st.sampled_from(Action),
    reasons=st.lists(st.sampled_from(REASONS), max_size=2, unique=True).map(tuple),
    targets=st.sampled_from(((), ("a",), ("a", "b"))),
)


@st.composite
def policies(draw: st.DrawFn) -> FailurePolicy:
    """Return failure policies with up to two rules."""
    rules = draw(st.lists(RULES, max_size=2))
    return FailurePolicy(
        max_restarts=draw(st.sampled_from((3, 2, 1, 0))),
        rules=tuple(replace(each, name=f"r{index}") for index, each in enumerate(rules)),
        strategy=draw(st.sampled_from((RestartStrategy.IN_PLACE, RestartStrategy.IN_PLACE, *RestartStrategy))),
    )


@st.composite
def jobsets(draw: st.DrawFn) -> JobSet:
    """Return valid JobSets of up to three replicated Jobs."""
    in_order = draw(st.booleans())
    first = builders.replicated("a", replicas=draw(st.integers(1, 3)))
    others: list[ReplicatedJob] = []
    for name in draw(st.sampled_from(("b", "bc"))):
        depends = (
            () if in_order else draw(st.sampled_from(((), *(builders.depends("a", each) for each in DependencyStatus))))
        )
        others.append(builders.replicated(name, replicas=draw(st.integers(0, 2)), depends_on=depends))
    return builders.jobset(
        first,
        *others,
        startup=StartupOrder.IN_ORDER if in_order else StartupOrder.ANY,
        success=draw(st.builds(SuccessPolicy, st.sampled_from(Operator), st.sampled_from(((), ("a",))))),
        failure=draw(policies() | policies() | policies() | st.none()),
    )


@dataclass(frozen=True)
class Story:
    """A observed, the time, and the properties of the decisions so far."""

    observed: ObservedState
    plans: tuple[Plan, ...] = ()

    def reconcile(self, *, slowly: bool) -> "Story":
        """Reconcile and apply the plan; ``slowly``: deleted Jobs still exist for a while."""
        plan = decide.decide(self.observed)
        there = {each.name: each for each in self.observed.jobs}
        after = builders.applied(self.observed, plan)
        if slowly:
            going = [there[name] for name in builders.names(plan, DeleteJob)]
            after = replace(after, jobs=(*after.jobs, *(replace(each, deleting=True) for each in going)))
        return Story(after, (*self.plans, plan))


Step = Callable[[Story, int], Story]


def on_a_job(change: Callable[[ChildJob, float], ChildJob | None]) -> Step:
    """Change one of the Jobs that have not ended; None deletes it."""

    def step(story: Story, pick: int) -> Story:
        open_jobs = [each for each in story.observed.jobs if each.end is None]
        if not open_jobs:
            return story
        one = open_jobs[pick % len(open_jobs)]
        new = change(one, story.observed.now)
        kept = tuple(each for each in story.observed.jobs if each is not one)
        return replace(story, observed=replace(story.observed, jobs=kept if new is None else (*kept, new)))

    return step


def _fails(story: Story, pick: int) -> Story:
    def failing(job: ChildJob, now: float) -> ChildJob:
        return replace(job, active=0, ready=0, end=JobEnd(True, REASONS[pick % len(REASONS)], "", now))

    return on_a_job(failing)(story, pick)


def _gone(story: Story, pick: int) -> Story:
    jobs = tuple(each for each in story.observed.jobs if not each.deleting)
    return replace(story, observed=replace(story.observed, jobs=jobs))


def _suspended(story: Story, pick: int) -> Story:
    return replace(story, observed=builders.with_spec(story.observed, suspend=pick % 4 == 0))


def _fault(story: Story, pick: int) -> Story:
    """Have a member fail: a round begins if the JobSet's policy allows it, as the gang's worker does."""
    observed = story.observed
    allowed = in_place.policy(observed)
    under_way = any(each.ended_at is None for each in observed.rounds)
    if allowed.closed or under_way or allowed.limit is None:
        return story
    if allowed.used >= allowed.limit:
        refusal = Refusal(in_place.REACHED_MAX_RESTARTS, "no restart is left", at=observed.now)
        return replace(story, observed=replace(observed, refusal=refusal))
    attempt = max((each.attempt for each in observed.rounds), default=0) + 1
    begun = RoundView(f"js-{attempt}", attempt, counted=pick % 4 != 0, started_at=observed.now)
    return replace(story, observed=replace(observed, rounds=(*observed.rounds, begun)))


def _round_ends(story: Story, pick: int) -> Story:
    how = ({"restarted": True}, {"reason": "NotStopped"}, {"reason": "Cancelled"})[pick % 3]
    rounds = tuple(
        replace(each, ended_at=story.observed.now, **how) if each.ended_at is None else each
        for each in story.observed.rounds
    )
    return replace(story, observed=replace(story.observed, rounds=rounds))


STEPS: Final[Mapping[str, Step]] = MappingProxyType(
    {
        "ready": on_a_job(lambda job, now: replace(job, active=1, ready=1, started=True)),
        "unready": on_a_job(lambda job, now: replace(job, ready=0)),
        "succeeds": on_a_job(lambda job, now: replace(job, active=0, ready=0, succeeded=1, end=JobEnd(False, at=now))),
        "fails": _fails,
        "deleted": on_a_job(lambda job, now: None),
        "gone": _gone,
        "suspended": _suspended,
        "fault": _fault,
        "round ends": _round_ends,
    }
)
OFTEN: Final = ("fault", "round ends", "fails", "gone")
HAPPENINGS = st.lists(st.tuples(st.sampled_from((*OFTEN, *STEPS)), st.integers(0, 11)), min_size=12, max_size=40)


def played(owner: JobSet, happenings: list[tuple[str, int]]) -> list[Story]:
    """Return the states after each event, with a reconcile after each."""
    story = Story(builders.observed(owner, has_service=False))
    stories = [story]
    for moment, (name, pick) in enumerate(happenings, start=1):
        story = replace(story, observed=replace(story.observed, now=builders.NOW + moment))
        story = STEPS[name](story, pick).reconcile(slowly=bool(pick % 3))
        stories.append(story)
    return stories


def counted(status: Status) -> int:
    """Return all restarts that count."""
    return failure_policy.counted_restarts(status)


@settings(max_examples=150)
@given(jobsets(), HAPPENINGS)
def test_applied_decision_is_stable(owner: JobSet, happenings: list[tuple[str, int]]) -> None:
    for story in played(owner, happenings)[-1:]:
        settled = builders.carried_out(
            replace(story.observed, jobs=tuple(e for e in story.observed.jobs if not e.deleting))
        )
        plan = decide.decide(settled)
        assert plan == Plan(warnings=plan.warnings)


@settings(max_examples=150)
@given(jobsets(), HAPPENINGS)
def test_counted_restarts_grow_up_to_max_restarts(owner: JobSet, happenings: list[tuple[str, int]]) -> None:
    policy = owner.spec.failure
    most = policy.max_restarts if policy is not None else 0
    before = Status()
    for story in played(owner, happenings):
        status = story.observed.jobset.status
        assert counted(before) <= counted(status) <= most
        assert before.restarts <= status.restarts
        assert (before.current_in_place or 0) <= (status.current_in_place or 0)
        assert (before.previous_in_place or 0) <= (status.previous_in_place or 0)
        before = status


@settings(max_examples=150)
@given(jobsets(), HAPPENINGS)
def test_used_restarts_include_rounds_under_way_within_limit(owner: JobSet, happenings: list[tuple[str, int]]) -> None:
    for story in played(owner, happenings):
        policy = in_place.policy(story.observed)
        assert policy.limit is None or counted(story.observed.jobset.status) <= policy.used <= policy.limit


@settings(max_examples=150)
@given(jobsets(), HAPPENINGS)
def test_conditions_are_unique_and_end_is_final(owner: JobSet, happenings: list[tuple[str, int]]) -> None:
    ended = ""
    for story in played(owner, happenings):
        status = story.observed.jobset.status
        types = [each.type for each in status.conditions]
        true = {each.type for each in status.conditions if each.status}
        assert len(types) == len(set(types))
        assert not {"StartupPolicyInProgress", "StartupPolicyCompleted"} <= true
        assert true & {"Completed", "Failed"} == ({status.terminal_state} if status.terminal_state else set())
        assert not (status.terminal_state and "RestartingJobSet" in true)
        assert status.terminal_state == ended or not ended
        ended = status.terminal_state


@settings(max_examples=150)
@given(jobsets(), HAPPENINGS)
def test_nothing_is_created_after_end_or_recorded_without_write(
    owner: JobSet, happenings: list[tuple[str, int]]
) -> None:
    stories = played(owner, happenings)
    for before, after in itertools.pairwise(stories):
        for plan in after.plans[len(before.plans) :]:
            assert plan.status is not None or not (plan.events or plan.counts)
            if before.observed.jobset.status.terminal_state:
                assert builders.names(plan, CreateJob) == []


@settings(max_examples=100)
@given(jobsets(), HAPPENINGS, st.randoms())
def test_order_of_jobs_is_irrelevant(owner: JobSet, happenings: list[tuple[str, int]], random: Random) -> None:
    for story in played(owner, happenings)[-3:]:
        turned = list(story.observed.jobs)
        random.shuffle(turned)
        assert decide.decide(replace(story.observed, jobs=tuple(turned))) == decide.decide(story.observed)


@settings(max_examples=100)
@given(jobsets(), HAPPENINGS)
def test_jobset_ends_once_its_jobs_do(owner: JobSet, happenings: list[tuple[str, int]]) -> None:
    story = _round_ends(played(owner, happenings)[-1], 0)
    story = replace(story, observed=builders.with_spec(story.observed, suspend=False))
    reconciles = 0
    while not story.observed.jobset.status.terminal_state:
        there = [each for each in story.observed.jobs if not each.deleting]
        end = JobEnd(False, at=story.observed.now)
        done = (each if each.end else replace(each, active=0, ready=0, succeeded=1, end=end) for each in there)
        story = replace(story, observed=replace(story.observed, jobs=tuple(done))).reconcile(slowly=False)
        reconciles += 1
        assert reconciles < 50
