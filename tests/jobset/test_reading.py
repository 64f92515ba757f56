"""An invalid scenario is refused, in one line with its place and the fix."""

import pytest

from tests.jobset.player import reading
from tests.jobset.player.checked import ScenarioError
from tests.jobset.player.model import Create, JobState, SetJobs

GOOD = """
about: a rule
jobset:
  replicatedJobs: [{name: workers}]
steps:
  - create
  - fail: {jobs: workers-0, reason: PodFailurePolicy}
    expect: {conditions: {}}
"""


def parse(text: str) -> None:
    reading.parse(text, name="x", where="x.yaml")


def test_scenario_is_completed_with_defaults() -> None:
    scenario = reading.parse(GOOD, name="x", where="x.yaml")
    assert scenario.jobset["metadata"] == {"name": "js"}
    assert scenario.jobset["spec"]["managedBy"] == "kubemend.io/jobset-controller"
    (job,) = scenario.jobset["spec"]["replicatedJobs"]
    assert job["template"]["spec"]["template"]["spec"]["containers"]
    assert job["template"]["spec"]["podFailurePolicy"]["rules"][0]["action"] == "FailJob"
    assert [step.action for step in scenario.steps] == [
        Create(),
        SetJobs(("workers-0",), JobState.FAIL, reason="PodFailurePolicy"),
    ]


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("about: a rule", "abut: a rule", "x.yaml: unknown key 'abut'; write 'about'"),
        ("about: a rule", "about: [a]", "x.yaml: about: is a list; write a text"),
        ("  - create\n", "  - creat\n", "x.yaml: steps[0]: 'creat' is not known; write 'create'"),
        ("  - create\n", "", "x.yaml: steps: no JobSet is created; begin with the step 'create'"),
        ("  - create\n", "  - create: 7\n", "x.yaml: steps[0].create: is a int; write an object (KEY: VALUE)"),
        (
            "fail:",
            "suspend:\n    fail:",
            "x.yaml: steps[1]: has 2 actions (suspend, fail); make them steps of their own",
        ),
        ("reason: P", "raeson: P", "x.yaml: steps[1].fail: unknown key 'raeson'; write 'reason'"),
        ("PodFailurePolicy}", "Bored}", "x.yaml: steps[1].fail.reason: 'Bored' is not known; write one of Backoff"),
        ("fail: {", "pods: {ready: x, ", "x.yaml: steps[1].pods"),
        ("conditions: {}", "condition: {}", "x.yaml: steps[1].expect: unknown key 'condition'; write 'conditions'"),
        ("conditions: {}", "conditions: {A: 1}", "x.yaml: steps[1].expect.conditions.A: is a int; write a text"),
        (
            "conditions: {}",
            "jobset: away",
            "x.yaml: steps[1].expect.jobset: 'away' is not known; write one of deleting",
        ),
        (
            "conditions: {}",
            "jobs: {a: {atempt: 1}}",
            "x.yaml: steps[1].expect.jobs.a: unknown key 'atempt'; write 'att",
        ),
        ("expect: {conditions: {}}", "expect: {}", "x.yaml: steps[1].expect: expects nothing; leave it out, or"),
        ("    expect: {conditions: {}}", "", "x.yaml: steps: the last one expects nothing; add an expectation"),
        ("reason: P", "reason: Q, reason: P", "x.yaml:7: key 'reason' occurs twice; leave one of them out"),
        ("steps:", "steps: [", "x.yaml: "),
    ],
)
def test_mistake_is_reported_in_one_line(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(ScenarioError) as caught:
        parse(GOOD.replace(old, new))
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
