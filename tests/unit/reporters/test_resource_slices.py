from typing import Any

from kubemend.agent.model.workloads import ClaimDevice
from kubemend.agent.reporters import taint_rules

DRIVER = "gpu.nvidia.com"


def piece(*devices: dict[str, Any], pool: str = "node-1", generation: int = 1) -> dict[str, Any]:
    return {"spec": {"driver": DRIVER, "pool": {"name": pool, "generation": generation}, "devices": list(devices)}}


def device(name: str, **attributes: str) -> dict[str, Any]:
    return {"name": name, "attributes": {key: {"string": value} for key, value in attributes.items()}}


def named(name: str) -> ClaimDevice:
    return ClaimDevice(driver=DRIVER, pool="node-1", device=name)


def test_gpu_is_named_by_uuid_and_mig_also_by_gpu() -> None:
    found = taint_rules.published(
        [piece(device("gpu-0", uuid="GPU-a"), device("gpu-1-mig-9", uuid="MIG-b", parentUUID="GPU-b"))]
    )
    assert found == {named("gpu-0"): frozenset({"GPU-a"}), named("gpu-1-mig-9"): frozenset({"MIG-b", "GPU-b"})}


def test_pci_address_is_parsed_in_any_spelling_and_domain() -> None:
    attributes = {
        "resource.kubernetes.io/pciBusID": {"string": "00000000:3B:00.1"},
        "example.com/pciAddress": {"string": "not one"},
        "numaNode": {"int": 1},
    }
    found = taint_rules.published([piece({"name": "nic-0", "attributes": attributes})])
    assert found == {named("nic-0"): frozenset({"0000:3b:00.1"})}


def test_v1beta1_attributes_are_one_level_down() -> None:
    found = taint_rules.published([piece({"name": "gpu-0", "basic": {"attributes": {"uuid": {"string": "GPU-a"}}}})])
    assert found == {named("gpu-0"): frozenset({"GPU-a"})}


def test_only_the_newest_generation_of_a_pool_counts() -> None:
    found = taint_rules.published(
        [
            piece(device("gpu-0", uuid="GPU-old"), generation=1),
            piece(device("gpu-0", uuid="GPU-new"), generation=2),
            piece(device("gpu-1", uuid="GPU-b"), generation=2),
            piece(device("gpu-0", uuid="GPU-c"), pool="other", generation=1),
        ]
    )
    assert found[named("gpu-0")] == frozenset({"GPU-new"})
    assert len(found) == 3


def test_device_without_attributes_has_no_name() -> None:
    assert taint_rules.published([piece({"name": "x"})]) == {named("x"): frozenset()}
    assert taint_rules.published([{"spec": {"driver": DRIVER, "pool": {"name": "empty"}}}]) == {}
