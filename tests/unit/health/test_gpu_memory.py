"""The GPU inventory is kept while the node runs; of earlier boots only the places of GPUs count."""

import pytest

from kubemend.agent.health.gpu import gpu_inventory_state
from kubemend.agent.health.gpu.gpu_inventory_state import KnownGpus
from kubemend.agent.model.devices import DeviceId, PciAddress

GPU = DeviceId("GPU-1")
GPUS = KnownGpus({GPU: PciAddress.parse("0008:41:00.0")}, {GPU: frozenset({0, 11})}, frozenset({GPU}))


def test_inventory_outlives_the_agent_but_not_the_boot() -> None:
    text = gpu_inventory_state.encode(GPUS, boot_id="boot-1")
    assert gpu_inventory_state.decode(text, boot_id="boot-1") == GPUS
    assert gpu_inventory_state.decode(text, boot_id="boot-2") == KnownGpus()
    assert gpu_inventory_state.decode(None, boot_id="boot-1") == KnownGpus()


def test_places_of_gpus_outlive_the_boot() -> None:
    text = gpu_inventory_state.encode(GPUS, boot_id="boot-1")
    assert gpu_inventory_state.places(text) == {GPU: "0008:41:00.0"}
    assert gpu_inventory_state.places(None) == {}


def test_inventory_of_an_agent_that_kept_less_is_read() -> None:
    text = '{"boot_id": "boot-1", "gpus": {"GPU-1": "0008:41:00.0"}}'
    assert gpu_inventory_state.decode(text, boot_id="boot-1") == KnownGpus(GPUS.gpus)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"boot_id": "boot-1"}', '{"boot_id": "boot-1", "gpus": {"GPU-1": "nowhere"}}']
)
def test_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a|Expecting"):
        gpu_inventory_state.decode(text, boot_id="boot-1")
