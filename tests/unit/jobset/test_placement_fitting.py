"""Whether a node takes a pod by the scheduler's rules, and the fields of pods and nodes."""

from fractions import Fraction
from typing import Any

import pytest

from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.placement import choosing, exclusive, reading
from kubemend.controller.jobset.placement.model import Needs, Node, Taint

TAINT = {"key": "gpu", "value": "yes", "effect": "NoSchedule"}


def node(**fields: Any) -> Node:
    """Return a ready node; keywords are its labels, taints, allocatable, unschedulable and readiness."""
    return reading.node(
        {
            "metadata": {"name": "n1", "labels": fields.get("labels", {})},
            "spec": {"taints": fields.get("taints"), "unschedulable": fields.get("unschedulable", False)},
            "status": {
                "conditions": [{"type": "Ready", "status": fields.get("ready", "True")}],
                "allocatable": {"pods": "110", **fields.get("allocatable", {})},
            },
        }
    )


def needs(**spec: Any) -> Needs:
    """Return the needs of a pod with this spec."""
    found = reading.pod(pod({"schedulingGates": [{"name": exclusive.GATE}], **spec}))
    assert found is not None
    return found.needs


def pod(spec: dict[str, Any], *, labels: dict[str, str] | None = None, **fields: Any) -> dict[str, Any]:
    """Return a pod of a Job as the API has it."""
    marks = {naming.JOB_KEY: "anything", "batch.kubernetes.io/job-name": "train-w-0"} if labels is None else labels
    meta = {"namespace": "ml", "name": "p", "uid": "u", "resourceVersion": "7", "labels": marks, **fields}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Pending"}}


def affinity(*terms: dict[str, Any]) -> Needs:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": list(terms)}}
    return needs(affinity={"nodeAffinity": required})


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"key": key, "operator": operator, "values": list(values)}


@pytest.mark.parametrize(
    ("fields", "takes"),
    [({}, True), ({"unschedulable": True}, False), ({"ready": "False"}, False), ({"ready": "Unknown"}, False)],
)
def test_only_ready_uncordoned_nodes_take_pods(fields: dict[str, Any], takes: bool) -> None:
    assert choosing.node_takes(node(**fields), needs()) is takes


def test_node_without_status_is_not_ready() -> None:
    assert not reading.node({"metadata": {"name": "n"}}).usable


@pytest.mark.parametrize(
    ("toleration", "takes"),
    [
        (None, False),
        ({"operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists"}, True),
        ({"key": "gpu", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "gpu", "value": "yes"}, True),
        ({"key": "gpu", "operator": "Equal", "value": "yes", "effect": "NoSchedule"}, True),
        ({"key": "gpu", "value": "no"}, False),
        ({"key": "gpu"}, False),
        ({"key": "other", "operator": "Exists"}, False),
        ({"key": "gpu", "operator": "Gt", "value": "yes"}, True),
    ],
)
def test_untolerated_taint_excludes_pod(toleration: dict[str, Any] | None, takes: bool) -> None:
    tolerations = [] if toleration is None else [{"key": "x", "operator": "Exists"}, toleration]
    assert choosing.node_takes(node(taints=[TAINT]), needs(tolerations=tolerations)) is takes


def test_every_hard_taint_must_be_tolerated() -> None:
    other = {"key": "broken", "effect": "NoExecute"}
    wish = {"key": "wish", "effect": "PreferNoSchedule"}
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    assert choosing.node_takes(node(taints=[TAINT, wish]), needs(tolerations=tolerations))
    assert not choosing.node_takes(node(taints=[TAINT, other]), needs(tolerations=tolerations))
    assert node(taints=[wish, other]).taints == (Taint("broken", "", "NoExecute"),)


def test_node_selector_must_match_completely() -> None:
    labels = {"pool": "a", "zone": "z"}
    assert choosing.node_takes(node(labels=labels), needs(nodeSelector={"pool": "a", "zone": "z"}))
    assert not choosing.node_takes(node(labels=labels), needs(nodeSelector={"pool": "a", "rack": "r"}))


@pytest.mark.parametrize(
    ("requirement", "takes"),
    [
        (expression("model", "In", "H200", "H100"), True),
        (expression("model", "In", "A100"), False),
        (expression("model", "NotIn", "A100"), True),
        (expression("model", "NotIn", "H200"), False),
        (expression("missing", "NotIn", "a"), True),
        (expression("model", "Exists"), True),
        (expression("missing", "Exists"), False),
        (expression("missing", "DoesNotExist"), True),
        (expression("model", "DoesNotExist"), False),
        (expression("count", "Gt", "7"), True),
        (expression("count", "Gt", "8"), False),
        (expression("count", "Lt", "9"), True),
        (expression("count", "Lt", "8"), False),
        (expression("model", "Gt", "7"), False),
        (expression("missing", "Lt", "7"), False),
        (expression("count", "Gt"), False),
        (expression("count", "Unheard"), False),
    ],
)
def test_required_node_affinity_is_evaluated(requirement: dict[str, Any], takes: bool) -> None:
    one = node(labels={"model": "H200", "count": "8"})
    assert choosing.node_takes(one, affinity({"matchExpressions": [requirement]})) is takes


@pytest.mark.parametrize(
    ("terms", "takes"),
    [
        ([{"matchExpressions": [expression("a", "Exists"), expression("b", "Exists")]}], False),
        ([{"matchExpressions": [expression("b", "Exists")]}, {"matchExpressions": [expression("a", "Exists")]}], True),
        ([{}], False),
        ([], False),
        ([{"matchFields": [expression("metadata.name", "In", "n1")]}], True),
        ([{"matchFields": [expression("metadata.name", "In", "n2")]}], False),
        ([{"matchFields": [expression("metadata.uid", "In", "n1")]}], False),
        ([{"matchExpressions": [expression("metadata.name", "In", "n1")]}], False),
    ],
)
def test_one_term_must_match_completely(terms: list[dict[str, Any]], takes: bool) -> None:
    assert choosing.node_takes(node(labels={"a": ""}), affinity(*terms)) is takes


def test_preferred_affinity_excludes_no_pod() -> None:
    preferred = {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {}}]}
    assert choosing.node_takes(node(), needs(affinity={"nodeAffinity": preferred}))


def asking(**requests: str) -> dict[str, Any]:
    return {"resources": {"requests": requests}}


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ({"containers": [asking(cpu="1", gpu="4"), asking(cpu="500m")]}, {"cpu": "3/2", "gpu": "4"}),
        ({"containers": [asking(cpu="1")], "initContainers": [asking(cpu="3", disk="2")]}, {"cpu": "3", "disk": "2"}),
        (
            {"containers": [asking(cpu="1")], "initContainers": [{**asking(cpu="2"), "restartPolicy": "Always"}]},
            {"cpu": "3"},
        ),
        (
            {
                "containers": [asking(cpu="1")],
                "initContainers": [{**asking(cpu="2"), "restartPolicy": "Always"}, asking(cpu="5")],
            },
            {"cpu": "7"},
        ),
        ({"containers": [asking(cpu="1")], "overhead": {"cpu": "250m"}}, {"cpu": "5/4"}),
        ({"containers": [asking(cpu="1", gpu="1")], "resources": {"requests": {"cpu": "8"}}}, {"cpu": "8", "gpu": "1"}),
        ({"containers": [{}]}, {}),
    ],
)
def test_requests_of_pod_are_its_peak(spec: dict[str, Any], expected: dict[str, str]) -> None:
    assert dict(needs(**spec).requests) == {"pods": 1, **{name: Fraction(text) for name, text in expected.items()}}


@pytest.mark.parametrize(
    ("allocatable", "pods"),
    [
        ({"gpu": "8", "cpu": "64"}, 2),
        ({"gpu": "9", "cpu": "64"}, 2),
        ({"gpu": "8", "cpu": "6"}, 1),
        ({"gpu": "3", "cpu": "64"}, 0),
        ({"cpu": "64"}, 0),
        ({"gpu": "8000", "cpu": "64000"}, 110),
    ],
)
def test_scarcest_resource_limits_room(allocatable: dict[str, str], pods: int) -> None:
    one = needs(containers=[asking(gpu="4", cpu="4", zero="0")])
    assert choosing.pod_room([node(allocatable=allocatable)], one) == pods


def test_room_is_counted_per_node() -> None:
    one = needs(containers=[asking(gpu="4")])
    nodes = [
        node(allocatable={"gpu": "6"}),
        node(allocatable={"gpu": "6"}),
        node(allocatable={"gpu": "8"}, ready="False"),
    ]
    assert choosing.pod_room(nodes, one) == 2


def test_invalid_quantity_raises() -> None:
    with pytest.raises(ValueError, match="gpu: 'many' is not a valid quantity"):
        needs(containers=[asking(gpu="many")])


def test_only_selector_of_pod_without_gate_is_read() -> None:
    tolerations = [{"operator": "Exists"}]
    found = reading.pod(
        pod({"nodeSelector": {"rack": "r1"}, "tolerations": tolerations, "containers": [asking(gpu="8")]})
    )
    assert found is not None
    assert found.needs == Needs(selector=(("rack", "r1"),))


def test_pod_outside_jobsets_is_ignored() -> None:
    assert reading.pod(pod({}, labels={})) is None
    assert reading.pod(pod({}, labels={"batch.kubernetes.io/job-name": "train-w-0"})) is None
    assert reading.pod(pod({}, labels={naming.JOB_KEY: "k"})) is None


def test_pod_belongs_to_own_job_whatever_its_label() -> None:
    found = reading.pod(pod({"nodeName": "n1", "schedulingGates": [{"name": "a"}, {"name": "b"}]}))
    assert found is not None
    assert found.job == naming.job_key("ml", "train-w-0")
    assert (found.node, found.gates, found.over, found.resource_version) == ("n1", ("a", "b"), False, "7")


@pytest.mark.parametrize(
    ("annotations", "topology"),
    [
        ({}, ""),
        ({naming.EXCLUSIVE_TOPOLOGY: "rack"}, "rack"),
        ({naming.EXCLUSIVE_TOPOLOGY: "rack", naming.NODE_SELECTOR: "true"}, ""),
    ],
)
def test_foreign_exclusive_pods_occupy_a_domain(annotations: dict[str, str], topology: str) -> None:
    found = reading.pod(pod({}, annotations=annotations))
    assert found is not None
    assert found.topology == topology


@pytest.mark.parametrize(
    ("phase", "over"),
    [("Pending", False), ("Running", False), ("Unknown", False), ("Succeeded", True), ("Failed", True)],
)
def test_pod_occupies_domain_until_its_end(phase: str, over: bool) -> None:
    found = reading.pod({**pod({}, deletionTimestamp="2026-01-31T08:00:00Z"), "status": {"phase": phase}})
    assert found is not None
    assert (found.over, found.deleting) == (over, True)
