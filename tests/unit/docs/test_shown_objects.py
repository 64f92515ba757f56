"""YAML on the pages is valid for its consumer."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.restart import options
from kubemend.controller.gangs import gang_options
from tests.unit.daemonset import manifests
from tests.unit.docs import pages

Json = Mapping[str, Any]

_BLOCK: Final = re.compile(r"^ *```yaml\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
(_DEFINITION,) = yaml.safe_load_all((manifests.DAEMONSET / "crds" / "restarts.yaml").read_text())
(_VERSION,) = _DEFINITION["spec"]["versions"]
RESTART_FIELDS: Final = frozenset(_VERSION["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"])


def shown() -> Mapping[str, Json]:
    """Return each object by the page that shows it."""
    return {
        f"{pages.name(page)}#{number}": each
        for page in pages.ALL
        for number, block in enumerate(_BLOCK.findall(page.read_text("utf-8")))
        for each in yaml.safe_load_all(block)
    }


def annotations(value: Any) -> list[Mapping[str, str]]:
    """Return all annotations in an object, in its templates too."""
    if isinstance(value, list):
        return [found for each in value for found in annotations(each)]
    if not isinstance(value, dict):
        return []
    own = [value["annotations"]] if "annotations" in value else []
    return own + [found for each in value.values() for found in annotations(each)]


def of_kind(**fields: Any) -> pytest.MarkDecorator:
    """Give a test the objects that have all of these fields; None: with any value."""
    found = {
        place: each
        for place, each in shown().items()
        if all(name in each and value in (None, each[name]) for name, value in fields.items())
    }
    assert found, fields
    return pytest.mark.parametrize("obj", found.values(), ids=found)


@pytest.mark.parametrize("obj", shown().values(), ids=shown())
def test_its_annotations_can_be_understood(obj: Json) -> None:
    for each in annotations(obj):
        asked = {name: text for name, text in each.items() if name.startswith(options.PREFIX)}
        if asked:
            assert options.parse(asked).opted_in
            assert gang_options.exit_codes(asked.get(gang_options.FATAL_EXIT_CODES, "")) is not None


@of_kind(kind="Restart")
def test_a_restart_has_the_fields_of_one(obj: Json) -> None:
    assert obj["spec"].keys() <= RESTART_FIELDS
    assert obj["apiVersion"] == f"{_DEFINITION['spec']['group']}/{_VERSION['name']}"


@of_kind(components=None)
def test_kustomization_refers_to_existing_files(obj: Json, tmp_path: Path) -> None:
    (tmp_path / "kubemend").symlink_to(pages.ROOT)
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(obj))
    assert manifests.build(tmp_path)


@of_kind(schema=None)
def test_a_catalog_override_fits(obj: Json) -> None:
    assert catalog_file.merged(catalog_file.builtin(), yaml.safe_dump(dict(obj)))


@pytest.mark.parametrize("page", ["README.md", "docs/rounds.md"])
def test_restarts_are_listed_as_the_server_lists_them(page: str) -> None:
    columns = [
        "NAME",
        *(each["name"].upper() for each in _VERSION["additionalPrinterColumns"] if not each.get("priority")),
    ]
    heads = re.findall(r"^\$ kubectl get restarts\n(.*)$", (pages.ROOT / page).read_text(), re.MULTILINE)
    assert [head.split() for head in heads] == [columns]
