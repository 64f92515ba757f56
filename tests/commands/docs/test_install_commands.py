"""The README's install commands build, name and apply one and the same image."""

import os
import shutil
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest
import yaml

from tests.unit.daemonset import kubectl, manifests
from tests.unit.docs import pages
from tests.unit.docs.commands import Command

REGISTRY: Final = "registry.example.com/team"
VERSION: Final = tomllib.loads((pages.ROOT / "pyproject.toml").read_text())["project"]["version"]
TAG: Final = f"kubemend:{VERSION}"

FLAGS: Final[Mapping[str, frozenset[str]]] = {
    "build": frozenset({"-t", "--build-arg"}),
    "push": frozenset(),
    "load": frozenset({"--name"}),
}


def filled_in(command: Command) -> list[str]:
    """Return the command's words with the reader's registry."""
    return [word.replace("$REGISTRY", REGISTRY).replace("REGISTRY", REGISTRY) for word in command.words]


IMAGES: Final = pages.of("docker", "kind")


@pytest.mark.parametrize("command", IMAGES.values(), ids=IMAGES)
def test_images_are_built_and_brought_under_the_name_that_manifests_have(command: Command) -> None:
    _, verb, *words = filled_in(command)
    assert {word for word in words if word.startswith("-")} <= FLAGS[verb]
    assert sum(word in (TAG, f"{REGISTRY}/{TAG}") for word in words) == 1
    if verb == "build":
        assert (pages.ROOT / words[-1] / "Dockerfile").is_file()


def test_the_manifests_have_the_version_that_is_built() -> None:
    templates = [
        obj["spec"]["template"]["spec"]
        for obj in manifests.build(manifests.DEFAULT)
        if "template" in obj.get("spec", {})
    ]
    images = {container["image"] for template in templates for container in template["containers"]}
    assert images == {TAG}


EDITS: Final = pages.of("sed")


@pytest.mark.parametrize("command", EDITS.values(), ids=EDITS)
def test_the_registry_is_put_where_kustomize_reads_it(command: Command, tmp_path: Path) -> None:
    shutil.copytree(manifests.DAEMONSET, tmp_path / "daemonset")
    subprocess.run(filled_in(command), cwd=tmp_path, check=True, timeout=60, env={**os.environ, "LC_ALL": "C.UTF-8"})
    changed = [
        path.relative_to(tmp_path)
        for path in (tmp_path / "daemonset").rglob("*.yaml")
        if path.read_bytes() != (pages.ROOT / path.relative_to(tmp_path)).read_bytes()
    ]
    assert [str(path) for path in changed] == [command.words[-1]]
    (image,) = yaml.safe_load((tmp_path / changed[0]).read_text())["images"]
    assert image == {"name": "kubemend", "newName": f"{REGISTRY}/kubemend"}
    text = kubectl.run("kustomize", str(tmp_path / "daemonset"))
    assert text.count(f"image: {REGISTRY}/{TAG}\n") == 2
