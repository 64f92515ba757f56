"""What is kept of JobSets and of pods that are to be placed where there is too much of them."""

from controller.jobset import model
from controller.jobset.placement import marks, reading
from controller.jobset.placement.model import Needs, Pod
from controller.jobsets import seen
from controller.jobsets.seen import NotUnderstood, Others
from tests.unit.jobset import worlds


def test_a_jobset_that_is_too_much_is_told_as_one_that_cannot_be_read() -> None:
    jobset = worlds.jobset()
    found = seen.bare(jobset)
    assert isinstance(found, NotUnderstood)
    assert (found.namespace, found.name, found.uid) == (jobset.namespace, jobset.name, jobset.uid)
    assert "take more than 64 MiB" in found.why
    assert seen.bare(found) is found


def test_of_others_jobsets_there_is_never_too_much() -> None:
    found = seen.jobset({"metadata": {"resourceVersion": "7"}, "spec": {"managedBy": f"not-{model.MANAGED_BY}"}})
    assert isinstance(found, Others)
    assert seen.bare(found) is found


def test_a_pod_that_asks_for_too_much_goes_on_waiting_and_holds_what_it_holds() -> None:
    selector = (("rack", "r1"), *((f"label-{number}", "x") for number in range(10_000)))
    waiting = Pod("team", "a", "u1", "job", topology="rack", gates=(marks.GATE,), needs=Needs(selector=selector))
    assert marks.waits(waiting)
    found = reading.bare(waiting)
    assert not marks.waits(found)
    assert (found.uid, found.job, found.needs) == ("u1", "job", Needs(selector=(("rack", "r1"),)))
