"""Every ``kubectl`` command of the pages: its verb and flags are kubectl's, and its objects exist."""

import functools
from collections.abc import Mapping, Sequence
from typing import Final

import click
import pytest
import yaml

from kubemend import cli
from kubemend.agent.model import conditions
from tests.unit.daemonset import kubectl, manifests
from tests.unit.docs import kubectl_words, pages
from tests.unit.docs.api_tables import RESTART_CONDITIONS, WRITTEN_BY_PEOPLE
from tests.unit.docs.commands import Command
from tests.unit.docs.kubectl_words import Said

OURS: Final = "kubemend"
TYPED: Final = pages.of("kubectl")
SAID: Final = kubectl_words.understood(TYPED)

KUBERNETES: Final = frozenset(
    {
        "clusterrole",
        "clusterrolebinding",
        "daemonset",
        "deployment",
        "devicetaintrules",
        "events",
        "job",
        "lease",
        "namespace",
        "node",
        "nodes",
        "pod",
        "pods",
    }
)
SHORT: Final[Mapping[str, str]] = {"ds": "daemonset", "deploy": "deployment"}
OF_OTHERS: Final = frozenset({"jobset", "jobsets", "podmonitors", "prometheusrules"})
"""Resources of JobSet and of the Prometheus Operator."""
OF_THE_READER: Final = ("jobset.yaml",)
"""Files that the pages do not provide."""
OF_TELEMETRY: Final = "OTEL_"
"""Variables that OpenTelemetry's own library reads."""

each_command = pytest.mark.parametrize("said", SAID.values(), ids=SAID)


@functools.cache
def everything() -> list[manifests.Json]:
    """Return the installed objects."""
    return manifests.build(manifests.DEFAULT)


def with_verbs(*verbs: str) -> pytest.MarkDecorator:
    """Give a test the pages' commands of these verbs."""
    found = {place: said for place, said in SAID.items() if said.verb in verbs}
    assert found, verbs
    return pytest.mark.parametrize("said", found.values(), ids=found)


AWAITED: Final = frozenset(
    {
        *(
            ("condition", name)
            for name in (*RESTART_CONDITIONS, conditions.WARM_SPARE, "Ready", "Available", "Complete")
        ),
        ("jsonpath", "{.status.ready}"),  # of a Job
    }
)
"""What `kubectl wait` may wait for: conditions, and fields."""


def resources() -> frozenset[str]:
    """Return the names by which kinds of objects may be called here."""
    definitions = [obj["spec"]["names"] for obj in everything() if obj["kind"] == "CustomResourceDefinition"]
    ours = {word for each in definitions for word in (each["plural"], each["singular"], *each["shortNames"])}
    assert "restarts" in ours
    return frozenset({*KUBERNETES, *SHORT, *OF_OTHERS, *ours})


@pytest.mark.parametrize("command", TYPED.values(), ids=TYPED)
def test_its_verb_and_flags_are_known_here(command: Command) -> None:
    assert kubectl_words.read(command.words)


@pytest.mark.parametrize("command", TYPED.values(), ids=TYPED)
def test_kubectl_itself_knows_verb_and_flags(command: Command) -> None:
    words = command.words[1 : command.words.index("--")] if "--" in command.words else command.words[1:]
    if words[-1] in ("-k", "-l"):
        words = (*words, "what")  # a sentence is about the flag
    assert kubectl.run(*words, "--help")


@each_command
def test_resource_is_a_known_kind(said: Said) -> None:
    about: Sequence[str] = ()
    if said.verb in ("get", "describe", "delete", "patch", "taint", "wait", "label", "annotate") and said.arguments:
        about = said.arguments[0].partition("/")[0].split(",")
    elif said.verb in ("exec", "rollout status", "set env", "logs", "debug"):
        about = [each.partition("/")[0] for each in said.arguments[:1] if "/" in each]
    assert resources() >= set(about)


@each_command
def test_objects_in_our_namespace_are_installed(said: Said) -> None:
    if said.namespace != OURS:
        return
    assert OURS in {obj["metadata"]["name"] for obj in everything() if obj["kind"] == "Namespace"}
    installed = {(obj["kind"].lower(), obj["metadata"]["name"]) for obj in everything()}
    for word in said.arguments:
        kind, slash, name = word.partition("/")
        if slash and kind in SHORT:
            assert (SHORT[kind], name) in installed
    if said.arguments[:1] == ("lease",):
        assert said.arguments[1] in lease_names()


def lease_names() -> set[str]:
    """Return the Leases that the controller may hold."""
    rules = [rule for obj in everything() if obj["kind"] == "Role" for rule in obj["rules"]]
    return {name for rule in rules if rule["resources"] == ["leases"] for name in rule.get("resourceNames", ())}


@each_command
def test_selected_labels_are_on_our_pods(said: Said) -> None:
    if said.namespace != OURS or "labels" not in said.flags:
        return
    wanted = dict(each.split("=") for each in said.flags["labels"].split(","))
    templates = [obj["spec"]["template"] for obj in everything() if obj["kind"] in ("DaemonSet", "Deployment")]
    assert any(wanted.items() <= template["metadata"]["labels"].items() for template in templates)


@with_verbs("apply", "create", "delete")
def test_a_file_that_is_applied_holds_objects(said: Said) -> None:
    path = said.flags.get("file", "-")
    if path not in ("-", *OF_THE_READER):
        assert all("kind" in obj for obj in yaml.safe_load_all((pages.ROOT / path).read_text()))


@with_verbs("apply", "delete", "kustomize", "diff")
def test_a_kustomization_can_be_rendered(said: Said) -> None:
    path = said.flags.get("directory") or (said.arguments[0] if said.verb == "kustomize" else "")
    if not path:  # a sentence is about the verb, or something else is applied
        return
    directory = pages.ROOT / path
    assert manifests.build(directory)


@with_verbs("set env")
def test_a_variable_is_a_setting_of_the_program_that_gets_it(said: Said) -> None:
    target, *given = said.arguments
    program = {"ds/kubemend-agent": "agent", "deploy/kubemend-controller": "controller"}[target]
    command = cli.main.get_command(click.Context(cli.main), program)
    assert command is not None
    known = {name for each in command.params for name in each.envvar or ()}
    for name in (each.partition("=")[0] for each in given):
        assert name in known or (name.startswith(OF_TELEMETRY) and program == "controller")


@with_verbs("label")
def test_label_has_a_valid_value(said: Said) -> None:
    kind, _, *given = said.arguments
    for name, _, value in (each.partition("=") for each in given):
        meanings = [
            each["values"]
            for each in WRITTEN_BY_PEOPLE
            if (each["name"], each["of"].lower(), each["what"]) == (f"`{name}`", kind, "label")
        ]
        assert any(f"`{value}`" in each for each in meanings)


@with_verbs("wait")
def test_awaited_condition_exists(said: Said) -> None:
    kind, _, name = said.flags["for"].partition("=")
    assert (kind, name.partition("=")[0]) in AWAITED


@pytest.mark.parametrize(
    "words", [("get", "--nope"), ("obtain", "pods"), ("set", "selector"), ("-x", "get"), ("exec", "-k", "x")]
)
def test_command_that_kubectl_does_not_know_is_found(words: tuple[str, ...]) -> None:
    with pytest.raises(kubectl_words.NotUnderstoodError):
        kubectl_words.read(("kubectl", *words))
