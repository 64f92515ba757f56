"""A scenario out of its file. Pure, but for ``read``.

A file holds ``about`` (the rule that it shows), ``jobset`` (a JobSet's spec, as a user writes it; ``managedBy`` and the
containers of templates are filled in), ``metadata`` of the JobSet, ``backends`` with ``why`` where not all can play it,
and ``steps``. A step is a word, or an object of one word with what it needs, and ``expect``. See ``steps`` and
``expectations`` for the words.
"""

import copy
from pathlib import Path
from typing import Any, Final

from controller.jobset import model as jobsets
from hack.jobset_scenarios import checked, expectations, steps
from hack.jobset_scenarios.checked import Json, ScenarioError
from hack.jobset_scenarios.model import BackendName, Create, FailRequests, Pass, Scenario, Set, Step, Together

_NAME: Final = "js"
_CONTAINERS: Final = ({"name": "worker", "image": "busybox:1"},)
_ONLY: Final = {
    Pass: BackendName.MEMORY,
    Together: BackendName.MEMORY,
    FailRequests: BackendName.STAND_IN,
}
_KEYS: Final = ("about", "backends", "why", "metadata", "jobset", "steps")


def read(path: Path) -> Scenario:
    """Return the scenario of a file. Raises ScenarioError, and OSError where it cannot be read."""
    return parse(path.read_text(), name=path.stem, where=path.name)


def parse(text: str, *, name: str, where: str) -> Scenario:
    """Return the scenario that a text tells. Raises ScenarioError."""
    return build(checked.load(text, where), name, where=where)


def build(told: Any, name: str, *, where: str = "") -> Scenario:
    """Return the scenario that YAML has told. Raises ScenarioError."""
    where = where or name
    given = checked.mapping(told, where, known=_KEYS, required=("about", "jobset", "steps"))
    scenario = Scenario(
        name=name,
        about=checked.text(given["about"], f"{where}: about"),
        jobset=_manifest(given, where),
        steps=tuple(_step(each, index, where) for index, each in enumerate(checked.items(given["steps"], where))),
        backends=_backends(given, where),
        why=str(given.get("why", "")),
    )
    _check(scenario, where)
    return scenario


def _backends(given: Json, where: str) -> frozenset[BackendName]:
    if "backends" not in given:
        return frozenset(BackendName)
    named = checked.texts(given["backends"], f"{where}: backends")
    checked.text(given.get("why"), f"{where}: why")
    return frozenset(BackendName(checked.one_of(each, f"{where}: backends", [*BackendName])) for each in named)


def _manifest(given: Json, where: str) -> Json:
    """Return the JobSet as it is created."""
    known = ("name", "generateName", "labels", "annotations")
    metadata = checked.mapping(given.get("metadata", {}), f"{where}: metadata", known=known)
    spec: dict[str, Any] = copy.deepcopy(dict(checked.mapping(given["jobset"], f"{where}: jobset")))
    spec.setdefault("managedBy", jobsets.MANAGED_BY)
    for index, each in enumerate(checked.items(spec.get("replicatedJobs"), f"{where}: jobset.replicatedJobs")):
        at = f"{where}: jobset.replicatedJobs[{index}]"
        _fill(dict(checked.mapping(each, at)), spec["replicatedJobs"], index)
    return {
        "apiVersion": jobsets.API_VERSION,
        "kind": jobsets.KIND,
        "metadata": metadata if "generateName" in metadata else {"name": _NAME, **metadata},
        "spec": spec,
    }


def _fill(replicated_job: dict[str, Any], all_of_them: list[Any], index: int) -> None:
    """Give a replicated Job's pods a container where the scenario does not care which."""
    template = replicated_job.setdefault("template", {})
    pod = template.setdefault("spec", {}).setdefault("template", {}).setdefault("spec", {})
    pod.setdefault("containers", copy.deepcopy([*_CONTAINERS]))
    all_of_them[index] = replicated_job


def _step(value: Any, index: int, where: str) -> Step:
    at = f"{where}: steps[{index}]"
    if isinstance(value, str):
        return Step(f"steps[{index}] {value}", steps.parse(value, None, at))
    given = checked.mapping(value, at, known=(*steps.WORDS, "expect"))
    words = [key for key in given if key != "expect"]
    if len(words) > 1:
        raise ScenarioError(
            at, what=f"has {len(words)} actions ({', '.join(words)})", mend="make them steps of their own"
        )
    word = words[0] if words else "look"
    expect = expectations.parse(given["expect"], f"{at}.expect") if "expect" in given else None
    return Step(f"steps[{index}] {word}", steps.parse(word, given.get(word), f"{at}.{word}"), expect)


def _check(scenario: Scenario, where: str) -> None:
    if not scenario.steps or not _says_something(scenario.steps[-1]):
        raise ScenarioError(f"{where}: steps", what="the last one expects nothing", mend="say what becomes of it all")
    if not any(isinstance(step.action, Create) for step in scenario.steps):
        raise ScenarioError(f"{where}: steps", what="no JobSet is created", mend="begin with the step 'create'")
    for kind, backend in _ONLY.items():
        if any(isinstance(step.action, kind) for step in scenario.steps) and scenario.backends != {backend}:
            mend = f"write 'backends: [{backend}]' and why"
            raise ScenarioError(f"{where}: backends", what=f"has a step for {backend} alone", mend=mend)


def _says_something(step: Step) -> bool:
    return step.expect is not None or (isinstance(step.action, Create | Set) and bool(step.action.refused))
