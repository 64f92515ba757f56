"""What the other tests here take for the rendered manifests is what ``kubectl kustomize`` makes of them."""

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.daemonset import manifests, variables

_SECONDS = 60.0
_PLACES = filter(None, (os.environ.get("KUBEBUILDER_ASSETS"), os.environ.get("PATH")))
_KUBECTL = shutil.which("kubectl", path=os.pathsep.join(_PLACES))

pytestmark = pytest.mark.skipif(_KUBECTL is None, reason="no kubectl in $KUBEBUILDER_ASSETS or $PATH")
every_variant = pytest.mark.parametrize("variant", manifests.VARIANTS, ids="+".join)


def rendered(variant: Sequence[str], directory: Path) -> list[manifests.Json]:
    """Return what kubectl makes of a kustomization in this directory, written as docs/operations.md says."""
    wanted = {
        "resources": [os.path.relpath(manifests.BASE, directory)],
        "components": [os.path.relpath(manifests.COMPONENTS[name], directory) for name in variant],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    assert _KUBECTL is not None
    made = subprocess.run(
        [_KUBECTL, "kustomize", str(directory)], capture_output=True, text=True, timeout=_SECONDS, check=False
    )
    assert (made.returncode, made.stderr) == (0, "")
    return list(yaml.safe_load_all(made.stdout))


@every_variant
def test_kubectl_renders_the_same(variant: Sequence[str], tmp_path: Path) -> None:
    assert in_order(rendered(variant, tmp_path)) == in_order(manifests.render(variant))


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
