"""Which GPUs were there is known for as long as the node runs, and no longer."""

import pytest

from agent.health import gpu_memory
from agent.model.devices import GpuUuid, PciAddress

GPUS = {GpuUuid("GPU-1"): PciAddress.parse("0008:41:00.0")}


def test_it_outlives_the_agent_but_not_the_boot() -> None:
    text = gpu_memory.encode(GPUS, boot_id="boot-1")
    assert gpu_memory.decode(text, boot_id="boot-1") == GPUS
    assert gpu_memory.decode(text, boot_id="boot-2") == {}
    assert gpu_memory.decode(None, boot_id="boot-1") == {}


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"boot_id": "boot-1"}', '{"boot_id": "boot-1", "gpus": {"GPU-1": "nowhere"}}']
)
def test_what_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"not a|Expecting"):
        gpu_memory.decode(text, boot_id="boot-1")
