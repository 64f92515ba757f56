"""Where the scheduler's stand-in puts pods."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from hack.devnode.jobcontroller import indexes, scheduling

Json = dict[str, Any]


def node(name: str, *, ready: str = "True", gpus: int = 2, labels: Json | None = None, **spec: Any) -> Json:
    status = {"conditions": [{"type": "Ready", "status": ready}], "allocatable": {"nvidia.com/gpu": str(gpus)}}
    return {"metadata": {"name": name, "labels": labels or {}}, "spec": spec, "status": status}


def pod(name: str = "p", *, on: str = "", gang: str = "", gpus: int = 0, **spec: Any) -> Json:
    limits = {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}} if gpus else {}
    metadata = {"name": name, "namespace": "ml", "labels": {"jobset.sigs.k8s.io/jobset-name": gang} if gang else {}}
    whole = {"containers": [{"name": "c", **limits}], **({"nodeName": on} if on else {}), **spec}
    return {"metadata": metadata, "spec": whole}


TAINT = {"key": "kubemend.io/device-failure", "value": "Xid79", "effect": "NoSchedule"}


def test_a_gang_is_spread_and_then_the_emptier_node_is_taken() -> None:
    nodes = [node("a"), node("b"), node("c")]
    placed = [pod(on="a", gang="g"), pod(on="b"), pod(on="b"), pod(on="c")]
    assert scheduling.choose(pod(gang="g"), nodes=nodes, placed=placed) == "c"
    assert scheduling.choose(pod(gang="other"), nodes=nodes, placed=placed) == "a"


def test_nodes_that_are_not_ready_or_closed_are_left_out() -> None:
    nodes = [node("a", ready="Unknown"), node("b", unschedulable=True)]
    assert scheduling.choose(pod(), nodes=nodes, placed=[]) is None


def test_selectors_and_taints_hold() -> None:
    nodes = [node("a", taints=[TAINT]), node("b", labels={"pool": "x"})]
    assert scheduling.choose(pod(), nodes=nodes[:1], placed=[]) is None
    assert scheduling.choose(pod(tolerations=[{"operator": "Exists"}]), nodes=nodes[:1], placed=[]) == "a"
    exactly = {"key": TAINT["key"], "value": "Xid79", "effect": "NoSchedule"}
    assert scheduling.choose(pod(tolerations=[exactly]), nodes=nodes[:1], placed=[]) == "a"
    assert scheduling.choose(pod(tolerations=[{**exactly, "value": "Xid48"}]), nodes=nodes[:1], placed=[]) is None
    assert scheduling.choose(pod(nodeSelector={"pool": "x"}), nodes=nodes, placed=[]) == "b"
    assert scheduling.choose(pod(nodeSelector={"pool": "y"}), nodes=nodes, placed=[]) is None


def test_devices_are_given_out_once() -> None:
    nodes = [node("a"), node("b")]
    held = [pod(on="a", gpus=2), pod(on="b", gpus=1)]
    assert scheduling.choose(pod(gpus=1), nodes=nodes, placed=held) == "b"
    assert scheduling.choose(pod(gpus=2), nodes=nodes, placed=held) is None
    over = {**pod(on="a", gpus=2), "status": {"phase": "Succeeded"}}
    assert scheduling.choose(pod(gpus=2), nodes=nodes, placed=[over]) == "a"


def test_gated_bound_and_finished_pods_do_not_wait() -> None:
    assert scheduling.is_waiting(pod())
    assert not scheduling.is_waiting(pod(on="a"))
    assert not scheduling.is_waiting(pod(schedulingGates=[{"name": "x"}]))
    assert not scheduling.is_waiting({**pod(), "status": {"phase": "Failed"}})


@given(st.frozensets(st.integers(0, 40)))
def test_indexes_are_read_as_they_were_written(found: frozenset[int]) -> None:
    text = indexes.render(found)
    assert indexes.parse(text, completions=41) == found
    assert indexes.parse(text, completions=20) == {each for each in found if each < 20}


def test_indexes_are_written_as_kubernetes_does() -> None:
    assert indexes.render([7, 0, 2, 3, 4, 6]) == "0,2-4,6,7"
