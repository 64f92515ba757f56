"""The chart's templates: patches become conditions, and text of manifests stays text."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from hack import generated
from hack.chart import __main__ as chart
from hack.chart import conditional, content, sources, template
from hack.chart.conditional import Choice, FromValues, When
from tests.unit.daemonset import manifests

A, B = ".Values.components.a", ".Values.components.b"


def test_chart_is_current() -> None:
    assert generated.stale(chart.files()) == []


def test_file_that_does_not_belong_to_the_chart_must_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chart, "CHART", tmp_path)
    (tmp_path / "left.yaml").write_text("")
    (tmp_path / "Chart.yaml").write_text("old")
    made = chart.files()
    assert made[tmp_path / "left.yaml"] is None
    assert made[tmp_path / "Chart.yaml"] == content.files()["Chart.yaml"]


def test_check_succeeds_without_kubectl_and_helm() -> None:
    command = [sys.executable, "-m", "hack.chart", "--check"]
    subprocess.run(command, cwd=manifests.REPOSITORY, env={"PATH": ""}, check=True, timeout=60)


def test_every_component_and_optional_directory_is_a_switch() -> None:
    switches = {each.name for each in sources.options() if each.group == "components"}
    assert len(switches) == len(manifests.COMPONENTS) + len(("admission", "hub-from-nodes", "jobset"))
    defaults = {each.name for each in sources.options() if each.default}
    assert defaults == {"admission", "deviceTaints", "gangs"}, "daemonset/default"


def test_every_switch_is_explained() -> None:
    assert [each.name for each in sources.options() if not re.match(r"[A-Z]\w+", each.meaning)] == []


def test_field_that_a_patch_adds_is_conditional() -> None:
    tree = conditional.merged({"a": 1}, {"b": {"c": 2}}, A)
    assert tree == {"a": 1, "b": Choice(A, {"c": 2})}
    assert template.text(tree) == f"a: 1\n{{{{- if {A} }}}}\nb:\n  c: 2\n{{{{- end }}}}\n"


def test_field_that_a_patch_changes_has_two_values() -> None:
    tree = conditional.merged({"a": {"b": 1}}, {"a": {"b": 2}}, A)
    assert template.text(tree) == f"a:\n  {{{{- if {A} }}}}\n  b: 2\n  {{{{- else }}}}\n  b: 1\n  {{{{- end }}}}\n"


def test_field_that_a_patch_removes_is_there_without_it() -> None:
    tree = conditional.merged({"a": 1}, {"a": None}, f"or {A} {B}")
    assert template.text(tree) == f"{{{{- if not (or {A} {B}) }}}}\na: 1\n{{{{- end }}}}\n"


def test_two_patches_with_the_same_addition_have_it_once() -> None:
    patch = {"env": [{"name": "X", "value": "1"}]}
    tree = conditional.merged(conditional.merged({"env": []}, patch, A), patch, B)
    assert tree == {"env": [When(f"or {A} {B}", {"name": "X", "value": "1"})]}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"a": 2}, {"a": 3}),
        ({"env": [{"name": "X", "value": "1"}]}, {"env": [{"name": "X", "value": "2"}]}),
    ],
)
def test_two_patches_that_disagree_are_refused(first: manifests.Json, second: manifests.Json) -> None:
    tree = conditional.merged({"a": 1, "env": []}, first, A)
    with pytest.raises(conditional.ChartError):
        conditional.merged(tree, second, B)


def test_patch_of_another_form_is_refused() -> None:
    with pytest.raises(conditional.ChartError):
        conditional.merged({"a": 1}, {"a": {"b": 2}}, A)


def test_braces_in_a_manifest_are_no_template() -> None:
    text = template.text({"a": "{{ $value }}", "b": "x\n{{y}}"})
    assert text == 'a: "{{`{{`}} $value }}"\nb: |-\n  x\n  {{`{{`}}y}}\n'


@pytest.mark.parametrize(
    "value", ["true", "null", "1", "1e3", "", " x", "a: b", "- a", "#", "x\ny\n", "x\ny", "\nx", "x\n\n", "é", '"\\']
)
def test_strings_stay_the_same(value: str) -> None:
    assert yaml.safe_load(template.text({"a": value, "b": [value]})) == {"a": value, "b": [value]}


def test_the_releases_namespace_is_text_whatever_its_name() -> None:
    quoted = "{{ quote .Release.Namespace }}"
    assert (
        template.text({"namespace": "kubemend", "name": template.NAMESPACE}) == f"namespace: {quoted}\nname: {quoted}\n"
    )


@pytest.mark.parametrize("value", [None, True, 0, 1.5, [], {}, [[1]], [{"a": [1, {"b": "c"}]}]])
def test_other_values_stay_the_same(value: object) -> None:
    assert yaml.safe_load(template.text({"a": value})) == {"a": value}


def test_item_whose_first_field_is_conditional_is_one_item() -> None:
    text = template.text({"items": [{"a": Choice(A, 1), "b": 2}]})
    rendered = "".join(line for line in text.splitlines(keepends=True) if "{{" not in line)
    assert yaml.safe_load(rendered) == {"items": [{"a": 1, "b": 2}]}


def test_values_replace_whole_fields() -> None:
    assert template.text({"a": FromValues(".Values.a", scalar=True)}) == "a: {{ .Values.a }}\n"
    assert "toYaml . | nindent 2" in template.text({"a": FromValues(".Values.a")})
