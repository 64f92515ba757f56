"""The fake NVML answers what a real one did: the agent's first full poll of an H100 in a virtual machine.

``h100_snapshot.json`` is that poll, as the worker sent it (H100 80GB HBM3 without NVLinks, driver 580.159.04).
"""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from hack.fakenvml import control
from kubemend.agent.health.gpu.readings import Vital
from kubemend.agent.sources.nvml import protocol
from kubemend.agent.sources.nvml.protocol import Slot, Snapshot
from tests.contract.nvml import probing

NOT_SUPPORTED = 3
LACKING = {
    Vital.PCIE_NAKS_RECEIVED: 174,
    Vital.PCIE_NAKS_SENT: 177,
    Vital.PCIE_BAD_DLLP: 178,
    Vital.PCIE_LANE: 183,
}
SENSORS = (Vital.TEMPERATURE, Vital.MEMORY_TEMPERATURE, Vital.TEMPERATURE_MARGIN, Vital.POWER)
"""They differ from board to board, and with the load."""


@pytest.fixture
def recorded() -> Slot:
    """The GPU of the recorded poll."""
    return _first(Path(__file__).with_name("h100_snapshot.json").read_text())


@pytest.fixture
def fake(nvml_library: Path, tmp_path: Path) -> Iterator[control.FakeNvml]:
    """A fake NVML of one GPU in a virtual machine: it has no NVLinks, and so no fabric."""
    with control.FakeNvml(tmp_path / "nvml-state", nvml_library, gpus=1) as fake:
        fake.links(0, gpu=0)
        fake.set(gpu=0, fabric_state=0, fabric_mask=0)
        fake.error("nvmlDeviceGetRetiredPagesPendingStatus", NOT_SUPPORTED, gpu=0)
        yield fake


def _first(line: str) -> Slot:
    snapshot = protocol.decode(line.encode())
    assert isinstance(snapshot, Snapshot)
    return snapshot.slots[0]


def _polled(fake: control.FakeNvml) -> Slot:
    return _first(probing.look({**os.environ, **fake.env()})["full"])


def test_fake_answers_what_the_h100_did(fake: control.FakeNvml, recorded: Slot) -> None:
    answered = _polled(fake)
    assert answered.vitals is not None
    assert recorded.vitals is not None
    assert answered.vitals.values.keys() == recorded.vitals.values.keys()
    assert answered.vitals.errors == recorded.vitals.errors
    differ = {key[0] for key, value in recorded.vitals.values.items() if answered.vitals.values[key] != value}
    assert differ <= set(SENSORS)
    assert (answered.condition, answered.recovery_action) == (recorded.condition, recorded.recovery_action)


def test_pcie_counters_that_are_not_supported_are_missing(fake: control.FakeNvml, recorded: Slot) -> None:
    for field in LACKING.values():
        fake.field(field, gpu=0, result=NOT_SUPPORTED)
    answered = _polled(fake)
    assert answered.vitals is not None
    assert recorded.vitals is not None
    assert recorded.vitals.values.keys() - answered.vitals.values.keys() == {(vital, 0) for vital in LACKING}
    assert answered.vitals.errors == {}
    assert answered.condition is recorded.condition


def test_margin_ends_at_the_slowdown_temperature(fake: control.FakeNvml, recorded: Slot) -> None:
    for slot in (recorded, _polled(fake)):
        assert slot.vitals is not None
        of = {vital: value for (vital, _), value in slot.vitals.values.items()}
        slowdown = of[Vital.TEMPERATURE] + of[Vital.TEMPERATURE_MARGIN] - of[Vital.SLOWDOWN_MARGIN]
        assert slowdown == of[Vital.SLOWDOWN_TEMPERATURE]
