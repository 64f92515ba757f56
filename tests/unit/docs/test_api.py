"""docs/api.md is current, and names all that the code knows and nothing else."""

import re
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from hack import api_doc, api_schema
from kubemend.agent.restart import options
from tests.unit.docs import api_sources, pages
from tests.unit.docs.api_tables import WRITTEN_BY_PEOPLE, WRITTEN_BY_US

NAMES: Final = (*WRITTEN_BY_PEOPLE, *WRITTEN_BY_US)
DESCRIBED: Final = frozenset(each["name"].strip("`") for each in NAMES)


def test_it_is_current() -> None:
    assert api_doc.PAGE.read_text("utf-8") == api_doc.page(), "run python -m hack.api_doc"


def test_the_code_knows_the_names_that_are_described_and_no_others() -> None:
    known = api_sources.names(pages.ROOT)
    undescribed = {name: sorted(files) for name, files in known.items() if name not in DESCRIBED}
    assert undescribed == {}, "describe them in hack/pages/api.md"
    assert known.keys() >= DESCRIBED, f"the code has no {DESCRIBED - known.keys()} any more"


def test_each_is_described_once_for_each_kind_of_object() -> None:
    places = [(each["name"], each["what"], each["of"]) for each in NAMES]
    assert len(set(places)) == len(places)
    assert all(each["meaning"].endswith(".") for each in NAMES)
    assert {each["what"] for each in NAMES} <= {"annotation", "condition", "label", "scheduling gate", "taint", "value"}


def test_all_annotations_of_pods_are_known_to_the_agent() -> None:
    described = {each["name"].strip("`") for each in NAMES if (each["what"], each["of"]) == ("annotation", "Pod")}
    assert described == options.KNOWN


@pytest.mark.parametrize("page", pages.ALL, ids=pages.name)
def test_pages_name_only_existing_names(page: Path) -> None:
    named = set(re.findall(r"(?<![\w.-])kubemend\.io/[A-Za-z][A-Za-z0-9-]*[A-Za-z0-9]", page.read_text("utf-8")))
    assert named <= DESCRIBED


@pytest.mark.parametrize("last", ["one", "none-of-ours"])
def test_names_are_found_however_they_are_written(tmp_path: Path, last: str) -> None:
    for package in (*api_sources.PACKAGES, api_sources.MANIFESTS):
        (tmp_path / package).mkdir()
    (tmp_path / "cli" / "words.py").write_text(f'A = "kubemend.io/{last}"\nB = "restarts.kubemend.io/v1"\n')
    (tmp_path / "daemonset" / "any.yaml").write_text("{kubemend.io/two: x, 'kubemend.io/': y}\n")
    assert api_sources.names(tmp_path) == {
        f"kubemend.io/{last}": {"cli/words.py"},
        "kubemend.io/two": {"daemonset/any.yaml"},
    }


def test_composed_names_are_found() -> None:
    files = api_sources.names(pages.ROOT)
    assert files["kubemend.io/clean"] == {"agent/restart/options.py"}
    assert "controller/gangs/members.py" in files["kubemend.io/grace-period"]
    assert "kubemend.io/jobset-name" not in files, "PREFIX of controller.jobset.naming is upstream's"


def test_every_field_has_a_row_with_a_description() -> None:
    (version,) = yaml.safe_load(api_doc.RESTARTS.read_text())["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]
    for part in ("spec", "status"):
        rows = list(api_schema.fields(schema[part], path=part))
        assert len(rows) == 1 + count(schema[part])
        assert all(each.description and each.type for each in rows)


def count(schema: dict[str, Any]) -> int:
    """Return how many properties a schema has, in all depths."""
    properties = schema.get("properties", {})
    below = [*properties.values(), *([schema["items"]] if "items" in schema else [])]
    return len(properties) + sum(map(count, below))


def test_field_is_described_in_full() -> None:
    schema = {
        "type": "object",
        "required": ["codes"],
        "properties": {
            "codes": {
                "type": "array",
                "maxItems": 3,
                "description": "Codes.",
                "items": {"type": "integer", "format": "int32", "minimum": 0, "enum": [0, 1]},
            },
            "mode": {"type": "string", "default": "auto", "minLength": 1},
        },
    }
    _, codes, mode = api_schema.fields(schema, path="spec")
    assert codes == api_schema.Field(
        "spec.codes",
        "list of int32",
        ("required", "at most 3 items", "each: from 0", "each: one of `0`, `1`"),
        "Codes.",
    )
    assert mode == api_schema.Field("spec.mode", "string", ("default `auto`", "not empty"), "")


@pytest.mark.parametrize("field", [{"type": "string", "not": {"enum": ["x"]}}, {"description": "of no type"}])
def test_unsupported_keyword_is_refused(field: dict[str, Any]) -> None:
    with pytest.raises(api_schema.UnknownKeywordError, match=r"spec\.odd"):
        list(api_schema.fields({"type": "object", "properties": {"odd": field}}, path="spec"))
