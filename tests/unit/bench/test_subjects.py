"""The pods of the crash benchmark have the properties that they test."""

import pytest

from bench.crash import subjects
from bench.crash.subjects import Subject
from kubemend.agent.model.workloads import RestartPolicy
from kubemend.agent.restart import options
from kubemend.agent.restart.intents import Strategy


@pytest.mark.parametrize("subject", subjects.ALL, ids=lambda subject: subject.name)
def test_annotations_are_understood(subject: Subject) -> None:
    manifest = subject.manifest(node="n")
    wishes = options.parse(manifest["metadata"]["annotations"])
    assert wishes.opted_in
    assert wishes.strategy is subject.strategy
    assert wishes.grace_seconds == subject.grace
    assert wishes.containers == (set(subject.mains) if len(subject.mains) > 1 else set())
    names = {container["name"] for container in manifest["spec"]["containers"]}
    assert names == set(subject.mains)


def test_every_policy_and_strategy_occurs() -> None:
    assert {subject.policy for subject in subjects.ALL} == {policy.value for policy in RestartPolicy}
    without_launcher = set(Strategy) - {Strategy.AUTO, Strategy.PROCESS}  # see tests/scenarios/test_launcher.py
    assert {subject.strategy for subject in subjects.ALL} == without_launcher


def test_each_lasting_container_has_a_lease_of_its_own() -> None:
    pair = next(subject for subject in subjects.ALL if len(subject.mains) > 1)
    spec = pair.manifest(node="n")["spec"]
    scripts = [container["command"][-1] for container in (*spec["containers"], spec["initContainers"][-1])]
    ports = [script.partition("nc -ll -p ")[2].split()[0] for script in scripts]
    assert len(set(ports)) == len(scripts) == 3


def test_a_swap_replaces_the_mains_and_a_rerun_all_that_lasts() -> None:
    assert Subject("s").replaced == {"trainer"}
    assert Subject("s").restarted == {"trainer"}
    assert Subject("s", strategy=Strategy.RERUN).replaced == {"trainer", "shipper"}
    assert Subject("s", strategy=Strategy.RERUN).restarted == {"prepare", "trainer", "shipper"}


def test_the_rules_are_declared_where_they_are_the_strategy() -> None:
    ruled = next(subject for subject in subjects.ALL if subject.strategy is Strategy.RULES)
    (main,) = ruled.manifest(node="n")["spec"]["containers"]
    assert main["restartPolicyRules"][0]["action"] == "RestartAllContainers"
