"""What the other tests here take for the rendered manifests is what ``kubectl kustomize`` makes of them."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.daemonset import kubectl, manifests, variables

pytestmark = pytest.mark.skipif(kubectl.PROGRAM is None, reason=kubectl.MISSING)
every_variant = pytest.mark.parametrize("variant", manifests.VARIANTS, ids="+".join)
every_installation = pytest.mark.parametrize("directory", manifests.INSTALLATIONS, ids=lambda path: path.name)

DIGEST = "sha256:" + 64 * "0"


def rendered(variant: Sequence[str], directory: Path) -> list[manifests.Json]:
    """Return what kubectl makes of a kustomization in this directory, written as docs/operations.md says."""
    return made(
        directory,
        resources=[os.path.relpath(manifests.BASE, directory)],
        components=[os.path.relpath(manifests.COMPONENTS[name], directory) for name in variant],
    )


def made(directory: Path, **wanted: Any) -> list[manifests.Json]:
    """Return what kubectl makes of a kustomization that is written into this directory."""
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    return kubectl.render(directory)


@every_variant
def test_kubectl_renders_the_same(variant: Sequence[str], tmp_path: Path) -> None:
    assert in_order(rendered(variant, tmp_path)) == in_order(manifests.render(variant))


@every_installation
def test_kubectl_renders_the_same_of_what_is_installed(directory: Path) -> None:
    assert in_order(kubectl.render(directory)) == in_order(manifests.build(directory))


def test_the_image_of_all_is_named_in_one_place(tmp_path: Path) -> None:
    image = {"name": "kubemend", "newName": "registry.example.com/kubemend", "digest": DIGEST}
    objects = made(tmp_path, resources=[os.path.relpath(manifests.DEFAULT, tmp_path)], images=[image])
    templates = [obj["spec"]["template"]["spec"] for obj in objects if obj["kind"] in ("DaemonSet", "Deployment")]
    images = [container["image"] for template in templates for container in template["containers"]]
    assert images == 2 * [f"registry.example.com/kubemend@{DIGEST}"]


def test_a_variable_still_comes_before_its_use(tmp_path: Path) -> None:
    (daemon_set,) = [obj for obj in rendered(["monitoring"], tmp_path) if obj["kind"] == "DaemonSet"]
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    assert variables.expanded(container)["KUBEMEND_METRICS_ADDRESS"] == f"{variables.NODE_IP}:9464"


def in_order(value: Any) -> Any:
    """Return objects, and lists of things with names, sorted by them: kustomize puts a patch's items first."""
    if isinstance(value, dict):
        return {key: in_order(item) for key, item in value.items()}
    if not isinstance(value, list):
        return value
    items = [in_order(item) for item in value]
    return sorted(items, key=name) if all(map(name, items)) else items


def name(item: Any) -> tuple[str, ...]:
    """Return what tells an item of a list from the others; nothing where it is its place."""
    if not isinstance(item, dict):
        return ()
    if "metadata" in item:
        return manifests.identity(item)
    return tuple(item[key] for key in ("mountPath", "name") if key in item)
