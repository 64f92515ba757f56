"""The NIC memory outlives the agent, but not the boot."""

import pytest

from kubemend.agent.health.nic import nic_inventory_state
from kubemend.agent.health.nic.nic_inventory_state import KnownNic, NicMemory
from kubemend.agent.model.devices import PciAddress

PCI = PciAddress.parse("0008:18:00.1")
MEMORY = NicMemory("boot-1", {PCI: KnownNic("mlx5_core", {"eth1": None, "mlx5_0/1": 400_000})})


def test_memory_round_trips() -> None:
    assert nic_inventory_state.decode(nic_inventory_state.encode(MEMORY), boot_id="boot-1") == MEMORY


@pytest.mark.parametrize("text", [None, nic_inventory_state.encode(MEMORY)])
def test_memory_of_another_boot_is_empty(text: str | None) -> None:
    assert nic_inventory_state.decode(text, boot_id="boot-2") == NicMemory("boot-2")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        '{"boot_id": "boot-1"}',
        '{"boot_id": "boot-1", "nics": {"0008:18:00.1": {}}}',
        '{"boot_id": "boot-1", "nics": {"eth0": {"driver": "x", "links": {}}}}',
    ],
)
def test_invalid_text_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a memory of NICs"):
        nic_inventory_state.decode(text, boot_id="boot-1")
