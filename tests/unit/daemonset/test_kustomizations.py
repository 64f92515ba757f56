"""Operators' additions to the shipped kustomizations have the effect that docs/operations.md describes."""

import os
from pathlib import Path

import yaml

from tests.unit.daemonset import manifests, variables

DIGEST = "sha256:" + 64 * "0"


def test_the_image_of_all_is_named_in_one_place(tmp_path: Path) -> None:
    image = {"name": "kubemend", "newName": "registry.example.com/kubemend", "digest": DIGEST}
    wanted = {"resources": [os.path.relpath(manifests.DEFAULT, tmp_path)], "images": [image]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    objects = manifests.build(tmp_path)
    templates = [obj["spec"]["template"]["spec"] for obj in objects if obj["kind"] in ("DaemonSet", "Deployment")]
    images = [container["image"] for template in templates for container in template["containers"]]
    assert images == 2 * [f"registry.example.com/kubemend@{DIGEST}"]


def test_a_variable_still_comes_before_its_use() -> None:
    assert (
        variables.expanded(manifests.agent(["monitoring"]))["KUBEMEND_METRICS_ADDRESS"] == f"{variables.NODE_IP}:9464"
    )
