from typing import Any

import pytest

from tests.devnode.podconfig import config, hashing, quantities
from tests.devnode.podconfig.spec import Container, Pod


def container(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "image": "image", **fields}


def pod(*containers: dict[str, Any], **spec: Any) -> Pod:
    metadata = {"namespace": "ns", "name": "p", "uid": "u"}
    return Pod.parse({"metadata": metadata, "spec": {"containers": list(containers), **spec}})


def test_the_hash_is_the_one_that_kubelets_own_test_pins() -> None:
    parsed = Container.parse({"name": "test_container", "image": "foo/image:v1"})
    assert hashing.container_hash(parsed) == "8e45cbd0"


@pytest.mark.parametrize(("text", "value"), [("500m", "0.5"), ("64Mi", "67108864"), ("2", "2"), ("1.5k", "1500.0")])
def test_quantities(text: str, value: str) -> None:
    assert str(quantities.parse(text).normalize()) == str(quantities.parse(value).normalize())


@pytest.mark.parametrize(
    ("resources", "qos"),
    [
        ({}, "BestEffort"),
        ({"limits": {"nvidia.com/gpu": 1}}, "BestEffort"),
        ({"requests": {"cpu": 1}}, "Burstable"),
        ({"limits": {"cpu": 1, "memory": "1Gi"}}, "Guaranteed"),
    ],
)
def test_qos_class(resources: dict[str, object], qos: str) -> None:
    assert quantities.qos_class([container("main", resources=resources)]) == qos


def test_a_containers_annotations_are_kubelets() -> None:
    hook = {"exec": {"command": ["x"]}}
    subject = pod(container("main", lifecycle={"preStop": hook}), terminationGracePeriodSeconds=7)
    made = config.container_annotations(subject.mains[0], pod=subject, attempt=3)
    assert made == {
        "io.kubernetes.container.hash": hashing.container_hash(subject.mains[0]),
        "io.kubernetes.container.restartCount": "3",
        "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
        "io.kubernetes.container.terminationMessagePolicy": "File",
        "io.kubernetes.container.preStopHandler": '{"exec":{"command":["x"]}}',
        "io.kubernetes.pod.terminationGracePeriod": "7",
    }
