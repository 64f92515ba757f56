"""Parse a scenario from its file. Pure, but for ``read``.

A file contains ``about`` (the rule that it shows), ``jobset`` (a JobSet's spec, as a user writes it; ``managedBy`` and
the containers of templates are filled in, and a ``podFailurePolicy`` where a Job must fail by it), ``metadata`` of the
JobSet, and ``steps``. A step is a keyword, or an object of one keyword with its arguments, and ``expect``. See
``steps`` and ``expectations`` for the keywords.
"""

import copy
from pathlib import Path
from typing import Any, Final

from kubemend.controller.jobset.spec import model as jobsets
from tests.jobset.player import checked, expectations, kubelets, steps
from tests.jobset.player.checked import Json, ScenarioError
from tests.jobset.player.model import Create, Scenario, Set, SetJobs, Step

_NAME: Final = "js"
_CONTAINERS: Final = ({"name": "worker", "image": "busybox:1"},)
_FATAL: Final = {
    "rules": [{"action": "FailJob", "onExitCodes": {"operator": "In", "values": [kubelets.FATAL_EXIT_CODE]}}]
}
_KEYS: Final = ("about", "metadata", "jobset", "steps")


def read(path: Path) -> Scenario:
    """Return the scenario of a file. Raises ScenarioError, and OSError where it cannot be read."""
    return parse(path.read_text(), name=path.stem, where=path.name)


def parse(text: str, *, name: str, where: str) -> Scenario:
    """Parse a scenario. Raises ScenarioError."""
    return build(checked.load(text, where), name, where=where)


def build(parsed: Any, name: str, *, where: str = "") -> Scenario:
    """Build a scenario from parsed YAML. Raises ScenarioError."""
    where = where or name
    given = checked.mapping(parsed, where, known=_KEYS, required=("about", "jobset", "steps"))
    reported_steps = tuple(_step(each, index, where) for index, each in enumerate(checked.items(given["steps"], where)))
    scenario = Scenario(
        name=name,
        about=checked.text(given["about"], f"{where}: about"),
        jobset=_manifest(given, where, policy=any(_is_by_policy(step) for step in reported_steps)),
        steps=reported_steps,
    )
    _check(scenario, where)
    return scenario


def _is_by_policy(step: Step) -> bool:
    return isinstance(step.action, SetJobs) and step.action.reason == "PodFailurePolicy"


def _manifest(given: Json, where: str, *, policy: bool) -> Json:
    """Return the JobSet as it is created."""
    known = ("name", "generateName", "labels", "annotations")
    metadata = checked.mapping(given.get("metadata", {}), f"{where}: metadata", known=known)
    spec: dict[str, Any] = copy.deepcopy(dict(checked.mapping(given["jobset"], f"{where}: jobset")))
    spec.setdefault("managedBy", jobsets.MANAGED_BY)
    for index, each in enumerate(checked.items(spec.get("replicatedJobs"), f"{where}: jobset.replicatedJobs")):
        at = f"{where}: jobset.replicatedJobs[{index}]"
        spec["replicatedJobs"][index] = _filled(dict(checked.mapping(each, at)), policy=policy)
    return {
        "apiVersion": jobsets.API_VERSION,
        "kind": jobsets.KIND,
        "metadata": metadata if "generateName" in metadata else {"name": _NAME, **metadata},
        "spec": spec,
    }


def _filled(replicated_job: dict[str, Any], *, policy: bool) -> dict[str, Any]:
    """Return a replicated Job, completed with the fields that its scenario leaves out."""
    job = replicated_job.setdefault("template", {}).setdefault("spec", {})
    pod = job.setdefault("template", {}).setdefault("spec", {})
    pod.setdefault("containers", copy.deepcopy([*_CONTAINERS]))
    if policy:
        job.setdefault("podFailurePolicy", copy.deepcopy(_FATAL))
        pod.setdefault("restartPolicy", "Never")  # such a policy needs it
    return replicated_job


def _step(value: Any, index: int, where: str) -> Step:
    at = f"{where}: steps[{index}]"
    if isinstance(value, str):
        return Step(f"steps[{index}] {value}", steps.parse(value, None, at))
    given = checked.mapping(value, at, known=(*steps.ACTIONS, "expect"))
    actions = [key for key in given if key != "expect"]
    if len(actions) > 1:
        raise ScenarioError(
            at, what=f"has {len(actions)} actions ({', '.join(actions)})", hint="make them steps of their own"
        )
    name = actions[0] if actions else "check"
    expect = expectations.parse(given["expect"], f"{at}.expect") if "expect" in given else None
    return Step(f"steps[{index}] {name}", steps.parse(name, given.get(name), f"{at}.{name}"), expect)


def _check(scenario: Scenario, where: str) -> None:
    if not scenario.steps or not _has_expectations(scenario.steps[-1]):
        raise ScenarioError(f"{where}: steps", what="the last one expects nothing", hint="add an expectation")
    if not any(isinstance(step.action, Create) for step in scenario.steps):
        raise ScenarioError(f"{where}: steps", what="no JobSet is created", hint="begin with the step 'create'")


def _has_expectations(step: Step) -> bool:
    return step.expect is not None or (isinstance(step.action, Create | Set) and bool(step.action.refused))
