"""Helm renders the chart to the same objects as kustomize renders the kustomizations."""

import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack.chart.__main__ import CHART
from tests import helm
from tests.unit.daemonset import manifests, variables
from tests.unit.daemonset.manifests import Json

pytestmark = [pytest.mark.long, pytest.mark.timeout(1200)]

KEEP = "helm.sh/resource-policy"
IN_DEFAULT = {"device-taints", "gangs"}
OFF = {"gangs": False, "admission": False, "deviceTaints": False}
KIND: Json = {
    "image": {"pullPolicy": "Never"},
    "agent": {"affinity": None, "env": [{"name": "KUBEMEND_LOG_LEVEL", "value": "debug"}]},
    "controller": {"env": [{"name": "KUBEMEND_LOG_LEVEL", "value": "debug"}]},
}
OVERLAYS: Mapping[str, Json] = {
    "containerd": {},
    "cri-o": {"components": {"criO": True}},
    "kind": KIND,
    "observe-only": {"overlays": {"observeOnly": True}},
    "without-jobsets": {"overlays": {"withoutJobsets": True}},
}


def rendered(values: Json, *, namespace: str = "kubemend") -> list[Json]:
    """Return the objects that Helm renders, with the Namespace."""
    wanted = {"namespace": {"create": True}, **values}
    answer = helm.run("template", "kubemend", str(CHART), f"--namespace={namespace}", values=wanted)
    assert (answer.returncode, answer.stderr) == (0, "")
    return [each for each in yaml.safe_load_all(answer.stdout) if each]


def comparable(objects: Sequence[Json]) -> dict[tuple[str, str, str], Json]:
    """Return objects by identity, with lists that have names sorted by them, and without Helm's own annotation."""
    found = {manifests.identity(each): _sorted(each) for each in objects}
    assert len(found) == len(objects)
    for each in found.values():
        if each["kind"] == "CustomResourceDefinition":
            each["metadata"].get("annotations", {}).pop(KEEP, None)
            each["metadata"] = {key: value for key, value in each["metadata"].items() if value != {}}
    return found


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(each) for key, each in value.items()}
    if isinstance(value, list):
        items = [_sorted(each) for each in value]
        keyed = all(isinstance(each, dict) and {"name", "mountPath"} & set(each) for each in items)
        return sorted(items, key=lambda each: str(each.get("mountPath", each.get("name")))) if keyed else items
    return value


def camel(name: str) -> str:
    """Return a component's name among the chart's values."""
    return re.sub(r"-(\w)", lambda found: found[1].upper(), name)


def switched(names: Sequence[str]) -> Json:
    """Return the values that switch components on."""
    return {"components": {camel(name): True for name in names}}


@functools.cache
def agents_variables(values: str) -> dict[str, str]:
    """Return the agent's variables, each of which refers only to those before it."""
    (agent,) = (each for each in rendered(yaml.safe_load(values)) if each["kind"] == "DaemonSet")
    return variables.expanded(agent["spec"]["template"]["spec"]["containers"][0])


def test_lint_accepts_the_chart() -> None:
    answer = helm.run("lint", "--strict", str(CHART))
    assert (answer.returncode, "0 chart(s) failed" in answer.stdout) == (0, True), answer.stdout


@pytest.mark.parametrize("component", sorted(set(manifests.COMPONENTS) - IN_DEFAULT))
def test_each_component_has_the_same_objects(component: str) -> None:
    expected = manifests.combined(manifests.DEFAULT, manifests.COMPONENTS[component])
    assert comparable(rendered(switched([component]))) == comparable(expected)


def test_all_components_together_have_the_same_objects() -> None:
    names = sorted(set(manifests.COMPONENTS) - IN_DEFAULT)
    expected = manifests.combined(manifests.DEFAULT, *(manifests.COMPONENTS[name] for name in names))
    assert comparable(rendered(switched(names))) == comparable(expected)


def test_overlays_of_the_kustomization_are_all_compared() -> None:
    assert set(OVERLAYS) == set(manifests.OVERLAYS)


@pytest.mark.parametrize("overlay", OVERLAYS)
def test_each_overlay_has_the_same_objects(overlay: str) -> None:
    assert comparable(rendered(OVERLAYS[overlay])) == comparable(manifests.build(manifests.OVERLAYS[overlay]))


def test_agents_alone_are_the_base() -> None:
    assert comparable(rendered({"components": OFF})) == comparable(manifests.build(manifests.BASE))


def test_hub_that_admits_only_nodes_has_the_same_objects() -> None:
    expected = manifests.combined(manifests.DEFAULT, manifests.DAEMONSET / "hub-from-nodes")
    values = switched(["hub-from-nodes"]) | {"controller": {"ingress": []}}
    assert comparable(rendered(values)) == comparable(expected)


def test_jobset_resource_is_the_same() -> None:
    jobset = comparable(manifests.build(manifests.DAEMONSET / "jobset"))
    with_it, without = comparable(rendered(switched(["jobset"]))), comparable(rendered({}))
    assert {key: value for key, value in with_it.items() if key not in without} == jobset


def test_image_is_the_operators() -> None:
    digest = f"sha256:{64 * '0'}"
    for image, name in (
        ({"repository": "registry.example.com/kubemend"}, "registry.example.com/kubemend:0.1.0"),
        ({"tag": "0.2.0"}, "kubemend:0.2.0"),
        ({"tag": "0.2.0", "digest": digest}, f"kubemend@{digest}"),
    ):
        pods = [each["spec"]["template"]["spec"] for each in rendered({"image": image}) if "replicas" in str(each)]
        images = {container["image"] for pod in pods for container in pod.get("containers", ())}
        assert images == {name}


def test_operators_fields_replace_the_defaults() -> None:
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    values = {
        "agent": {"tolerations": tolerations, "nodeSelector": {"pool": "gpu"}, "resources": {"limits": {"cpu": "1"}}},
        "controller": {"replicas": 3},
        "image": {"pullSecrets": [{"name": "registry"}]},
    }
    objects = {each["kind"]: each["spec"] for each in rendered(values) if each["kind"] in ("DaemonSet", "Deployment")}
    pod = objects["DaemonSet"]["template"]["spec"]
    assert pod["tolerations"] == tolerations
    assert pod["nodeSelector"] == {"kubernetes.io/os": "linux", "pool": "gpu"}
    assert pod["containers"][0]["resources"]["limits"] == {"cpu": "1", "memory": "384Mi"}
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert objects["Deployment"]["replicas"] == 3


def test_release_in_another_namespace_names_no_object_of_the_manifests_namespace() -> None:
    everything = switched(sorted({*manifests.COMPONENTS, "hub-from-nodes", "jobset"}))
    text = yaml.safe_dump_all(rendered(everything, namespace="gpu-ops"), width=1000)
    assert (
        re.findall(r"namespace: kubemend\b|serviceaccount:kubemend:|\.kubemend\.svc|request.namespace .= 'k", text)
        == []
    )
    (namespace,) = (each for each in rendered({}, namespace="gpu-ops") if each["kind"] == "Namespace")
    assert namespace["metadata"]["name"] == "gpu-ops"


def test_release_in_a_namespace_named_as_a_number_names_it_as_text() -> None:
    found = {each["metadata"].get("namespace") for each in rendered(switched(["jobset"]), namespace="123")}
    assert found == {"123", None}


def test_release_in_another_namespace_sets_it_for_agents_and_controller() -> None:
    objects = rendered({}, namespace="gpu-ops")
    found = {
        item["name"]: item.get("value")
        for each in objects
        if each["kind"] in ("DaemonSet", "Deployment")
        for item in each["spec"]["template"]["spec"]["containers"][0]["env"]
    }
    assert found["KUBEMEND_HUB"] == "kubemend-hub.gpu-ops.svc:9465"
    assert found["KUBEMEND_HUB_NAME"] == "kubemend-hub.gpu-ops.svc"
    assert found["KUBEMEND_AGENT_ACCOUNT"] == "gpu-ops/kubemend-agent"


def test_variables_come_before_their_use() -> None:
    found = agents_variables(yaml.safe_dump(switched(["monitoring"])))
    assert found["KUBEMEND_METRICS_ADDRESS"] == f"{variables.NODE_IP}:9464"


@pytest.mark.parametrize("values", [{"components": {"ganks": True}}, {"agent": {"toleration": []}}, {"images": {}}])
def test_unknown_values_are_refused(values: Json) -> None:
    answer = helm.run("template", "kubemend", str(CHART), values=values)
    assert answer.returncode != 0
    assert "additional properties" in answer.stderr


def test_resource_of_restarts_is_kept_when_the_release_is_removed() -> None:
    definitions = [each for each in rendered(switched(["jobset"])) if each["kind"] == "CustomResourceDefinition"]
    assert len(definitions) == 2
    assert all(each["metadata"]["annotations"][KEEP] == "keep" for each in definitions)


def test_package_carries_the_whole_chart(tmp_path: Path) -> None:
    answer = helm.run("package", str(CHART), f"--destination={tmp_path}")
    assert (answer.returncode, [path.name for path in tmp_path.iterdir()]) == (0, ["kubemend-0.1.0.tgz"])
