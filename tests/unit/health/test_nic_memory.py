"""What was seen of the NICs outlives the agent, but not the boot."""

import pytest

from agent.health import nic_memory
from agent.health.nic_memory import KnownNic, NicMemory
from agent.model.devices import PciAddress

PCI = PciAddress.parse("0008:18:00.1")
MEMORY = NicMemory("boot-1", {PCI: KnownNic("mlx5_core", {"eth1": None, "mlx5_0/1": 400_000})})


def test_it_is_read_as_it_was_written() -> None:
    assert nic_memory.decode(nic_memory.encode(MEMORY), boot_id="boot-1") == MEMORY


@pytest.mark.parametrize("text", [None, nic_memory.encode(MEMORY)])
def test_on_another_boot_nothing_is_known(text: str | None) -> None:
    assert nic_memory.decode(text, boot_id="boot-2") == NicMemory("boot-2")


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
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a memory of NICs"):
        nic_memory.decode(text, boot_id="boot-1")
