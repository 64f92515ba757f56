"""A scenario that cannot be what its writer meant is refused, in one line that says where and how to mend it."""

import pytest

from hack.jobset_scenarios import reading
from hack.jobset_scenarios.checked import ScenarioError
from hack.jobset_scenarios.model import BackendName, Create, JobState, SetJobs

GOOD = """
about: a rule
jobset:
  replicatedJobs: [{name: workers}]
steps:
  - create
  - fail: {jobs: workers-0, reason: PodFailurePolicy, at: -5}
    expect: {conditions: {}}
"""


def parse(text: str) -> None:
    reading.parse(text, name="x", where="x.yaml")


def test_scenario_is_read_with_what_it_leaves_out() -> None:
    scenario = reading.parse(GOOD, name="x", where="x.yaml")
    assert scenario.backends == frozenset(BackendName)
    assert scenario.jobset["metadata"] == {"name": "js"}
    assert scenario.jobset["spec"]["managedBy"] == "kubemend.io/jobset-controller"
    (job,) = scenario.jobset["spec"]["replicatedJobs"]
    assert job["template"]["spec"]["template"]["spec"]["containers"]
    assert [step.action for step in scenario.steps] == [
        Create(),
        SetJobs(("workers-0",), JobState.FAIL, reason="PodFailurePolicy", at=-5),
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
        ("at: -5", "att: -5", "x.yaml: steps[1].fail: unknown key 'att'; write 'at'"),
        ("at: -5", "at: soon", "x.yaml: steps[1].fail.at: is a str; write a number"),
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
        ("    expect: {conditions: {}}", "", "x.yaml: steps: the last one expects nothing; say what becomes of it all"),
        ("steps:", "backends: [cloud]\nwhy: x\nsteps:", "x.yaml: backends: 'cloud' is not known; write one of memory"),
        ("steps:", "backends: [memory]\nsteps:", "x.yaml: why: is a nothing; write a text"),
        (
            "  - fail",
            "  - pass: 5\n  - fail",
            "x.yaml: backends: has a step for memory alone; write 'backends: [memory]'",
        ),
        ("reason: P", "reason: Q, reason: P", "x.yaml:7: key 'reason' is there twice; leave one of them out"),
        ("steps:", "steps: [", "x.yaml: "),
    ],
)
def test_mistake_is_told_in_one_line(old: str, new: str, said: str) -> None:
    assert old in GOOD
    with pytest.raises(ScenarioError) as caught:
        parse(GOOD.replace(old, new))
    assert str(caught.value).startswith(said)
    assert "\n" not in str(caught.value)
