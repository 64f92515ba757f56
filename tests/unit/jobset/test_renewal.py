"""Jobs that were made of another template than the JobSet has now."""

from dataclasses import replace
from typing import Any

from controller.jobset import decide
from controller.jobset.model import FailurePolicy, RestartStrategy
from controller.jobset.plan import AnnotateJob, CreateJob, DeleteJob, Plan, RequestRestart, ResumeJob, World
from tests.unit.jobset import worlds


def running(failure: FailurePolicy | None = worlds.IN_PLACE) -> World:
    """A settled JobSet of two Jobs that run."""
    return worlds.settled(worlds.jobset(failure=failure), worlds.ready("w-0"), worlds.ready("w-1"))


def changed(before: World, *, pod_annotations: dict[str, str] | None = None, **pod: Any) -> World:
    """The world after somebody has changed the pod template."""
    template = worlds.template(**pod)
    if pod_annotations is not None:
        template["spec"]["template"]["metadata"] = {"annotations": pod_annotations}
    return worlds.with_spec(before, replicated_jobs=(worlds.replicated(template=template),))


NEW_IMAGE = [{"name": "main", "image": "train:2"}]


def test_a_new_image_has_the_jobs_made_anew_which_eats_no_restart() -> None:
    plan = decide.decide(changed(running(), containers=NEW_IMAGE))
    assert worlds.names(plan, DeleteJob) == ["js-w-0", "js-w-1"]
    assert plan.status is not None
    assert (plan.status.restarts, plan.status.restarts_counted) == (0, 0)
    assert worlds.counts(plan)["w"].ready == 0


def test_a_new_placement_has_the_jobs_made_anew() -> None:
    plan = decide.decide(changed(running(), nodeSelector={"pool": "b"}))
    assert worlds.names(plan, DeleteJob) == ["js-w-0", "js-w-1"]


def test_the_jobs_that_follow_are_of_the_new_template_and_then_nothing_is_left_to_do() -> None:
    after = worlds.carried_out(changed(running(), containers=NEW_IMAGE))
    assert [each.uid for each in after.jobs] == ["uid-js-w-0-0", "uid-js-w-1-0"]
    assert decide.decide(after) == Plan()


def test_with_blocking_recreate_nothing_is_made_before_the_old_ones_are_gone() -> None:
    blocking = FailurePolicy(strategy=RestartStrategy.BLOCKING_RECREATE)
    before = worlds.settled(worlds.jobset(failure=blocking), worlds.ready("w-0"))
    gone = replace(changed(before, containers=NEW_IMAGE), jobs=before.jobs[:1])
    assert worlds.names(decide.decide(gone), CreateJob) == []


def test_new_annotations_restart_the_gang_in_place_once_and_are_noted() -> None:
    before = changed(running(), pod_annotations={"checksum/config": "2"})
    plan = decide.decide(before)
    assert [[type(write) for write in group] for group in plan.writes] == [
        [RequestRestart],
        [AnnotateJob, AnnotateJob],
    ]
    assert decide.decide(worlds.applied(before, plan)) == Plan()


def test_a_restart_in_place_is_asked_for_once_nothing_else_is_made_anew_for_till_then_it_would_be_turned_down() -> None:
    owner = worlds.jobset(worlds.replicated("a", 1), worlds.replicated("b", 1), failure=worlds.IN_PLACE)
    before = worlds.settled(owner, worlds.ready("a-0"), worlds.ready("b-0"))
    noted = worlds.template()
    noted["spec"]["template"]["metadata"] = {"annotations": {"checksum/config": "2"}}
    both = worlds.with_spec(
        before,
        replicated_jobs=(
            worlds.replicated("a", 1, template=worlds.template(containers=NEW_IMAGE)),
            worlds.replicated("b", 1, template=noted),
        ),
    )
    deleting = decide.decide(both)
    assert worlds.names(deleting, DeleteJob) == ["js-a-0"]
    assert worlds.names(deleting, RequestRestart) == worlds.names(deleting, AnnotateJob) == []
    gone = decide.decide(worlds.applied(both, deleting))
    assert worlds.names(gone, AnnotateJob) == ["js-b-0"]
    assert len(worlds.names(gone, RequestRestart)) == 1


def test_without_rounds_new_annotations_have_the_jobs_made_anew() -> None:
    plan = decide.decide(changed(running(FailurePolicy()), pod_annotations={"checksum/config": "2"}))
    assert worlds.names(plan, RequestRestart) == []
    assert worlds.names(plan, DeleteJob) == ["js-w-0", "js-w-1"]


def test_while_suspended_no_change_deletes_anything_for_kueue_changes_templates_then() -> None:
    preempted = worlds.with_spec(changed(running(), nodeSelector={"pool": "b"}), suspend=True)
    plan = decide.decide(preempted)
    assert worlds.names(plan, DeleteJob) == []


def test_what_a_resume_merges_has_no_job_made_anew() -> None:
    asleep = worlds.carried_out(worlds.with_spec(running(), suspend=True))
    plan = decide.decide(worlds.with_spec(changed(asleep, nodeSelector={"pool": "b"}), suspend=False))
    assert worlds.names(plan, DeleteJob) == []
    assert worlds.names(plan, ResumeJob) == ["js-w-0", "js-w-1"]


def test_what_a_resume_cannot_merge_has_the_job_made_anew_instead_of_resumed() -> None:
    asleep = worlds.carried_out(worlds.with_spec(running(), suspend=True))
    plan = decide.decide(worlds.with_spec(changed(asleep, containers=NEW_IMAGE), suspend=False))
    assert worlds.names(plan, DeleteJob) == ["js-w-0", "js-w-1"]
    assert worlds.names(plan, ResumeJob) == []


def test_a_job_that_ended_stays_as_it_ended() -> None:
    before = worlds.settled(worlds.jobset(failure=worlds.IN_PLACE), worlds.succeeded("w-0"), worlds.ready("w-1"))
    plan = decide.decide(changed(before, containers=NEW_IMAGE))
    assert worlds.names(plan, DeleteJob) == ["js-w-1"]


def test_a_finished_jobset_only_deletes_what_runs() -> None:
    before = worlds.settled(worlds.jobset(failure=None), worlds.failed("w-0"), worlds.ready("w-1"))
    plan = decide.decide(changed(before, containers=NEW_IMAGE))
    assert plan.writes == (), "what ran was deleted when it finished"
    assert worlds.names_of(before.jobs) == ["js-w-0"]
