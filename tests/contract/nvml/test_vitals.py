"""kubemend's readings of a healthy GPU, on the fake and on the real NVML alike. Reads only."""

import json
import subprocess
import sys
from typing import Any

import pytest

from kubemend.agent.health.gpu import fold
from kubemend.agent.health.gpu.limits import Limits
from kubemend.agent.health.gpu.readings import Vital
from kubemend.agent.health.gpu.speed_rules import BOARD_FAULTS
from kubemend.agent.model.findings import FindingKind
from kubemend.agent.sources.nvml import protocol
from kubemend.agent.sources.nvml.protocol import Condition, Snapshot
from tests.contract.nvml import probing

FLAGS = (Vital.REMAP_PENDING, Vital.REMAP_FAILED, Vital.RETIREMENT_PENDING, Vital.SRAM_THRESHOLD, Vital.NVLINK_ACTIVE)
COUNTERS = (Vital.ECC_CORRECTED, Vital.ECC_UNCORRECTED, Vital.PCIE_REPLAYS, Vital.PCIE_CORRECTABLE)
PCIE_COUNTERS = (
    Vital.PCIE_CORRECTABLE,
    Vital.PCIE_NAKS_RECEIVED,
    Vital.PCIE_RECEIVER,
    Vital.PCIE_BAD_TLP,
    Vital.PCIE_NAKS_SENT,
    Vital.PCIE_BAD_DLLP,
    Vital.PCIE_NON_FATAL,
    Vital.PCIE_FATAL,
    Vital.PCIE_UNSUPPORTED_REQUEST,
    Vital.PCIE_LCRC,
    Vital.PCIE_LANE,
)
"""NVML's fields from 173 to 183."""

PCIE_PROBE = """
import json, pynvml as nvml
nvml.nvmlInit()
handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
print(json.dumps([[x.nvmlReturn for x in nvml.nvmlDeviceGetFieldValues(h, list(range(173, 184)))] for h in handles]))
"""
SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED = 0, 2, 3
ALWAYS = (Vital.TEMPERATURE, Vital.SM_CLOCK, Vital.SM_CLOCK_MAX, Vital.PSTATE, Vital.CLOCKS_EVENT_REASONS)
"""Readings of every data centre GPU of the last ten years."""


@pytest.fixture
def looked(nvml_env: dict[str, str]) -> dict[str, Any]:
    """A full and a cheap poll."""
    return probing.look(nvml_env)


@pytest.fixture
def full(looked: dict[str, Any]) -> Snapshot:
    """A full poll."""
    return _snapshot(looked["full"])


def _snapshot(line: str) -> Snapshot:
    snapshot = protocol.decode(line.encode())
    assert isinstance(snapshot, Snapshot)
    return snapshot


def test_every_gpu_answers_with_the_basic_readings(full: Snapshot) -> None:
    for slot in full.slots:
        assert slot.condition is Condition.ANSWERS
        assert slot.vitals is not None
        assert all(slot.vitals.get(vital) is not None for vital in ALWAYS)


def test_values_are_of_their_kind(full: Snapshot) -> None:
    for slot in full.slots:
        assert slot.vitals is not None
        values = {vital: value for (vital, _), value in slot.vitals.values.items()}
        assert 0 < values[Vital.TEMPERATURE] < 120
        assert 0 < values[Vital.SM_CLOCK] <= values[Vital.SM_CLOCK_MAX]
        assert 0 <= values.get(Vital.UTILIZATION, 0) <= 100
        assert all(values[flag] in (0, 1) for flag in FLAGS if flag in values)
        assert all(values[counter] >= 0 for counter in COUNTERS if counter in values)
        assert values.get(Vital.PCIE_WIDTH, 0) <= values.get(Vital.PCIE_WIDTH_MAX, 0)
        assert values.get(Vital.PCIE_GENERATION, 0) <= values.get(Vital.PCIE_GENERATION_MAX, 0)
        assert values.get(Vital.FABRIC_STATE, 0) in range(4)


def test_no_reading_of_a_healthy_gpu_is_an_error_of_its_board(full: Snapshot) -> None:
    for slot in full.slots:
        assert slot.vitals is not None
        assert BOARD_FAULTS.isdisjoint(slot.vitals.errors.values())


def test_pcie_counters_are_read_only_where_they_are_supported(nvml_env: dict[str, str], full: Snapshot) -> None:
    """A GPU, its driver or a virtual machine can lack some of them."""
    results = json.loads(subprocess.check_output([sys.executable, "-c", PCIE_PROBE], env=nvml_env, timeout=60))
    for slot, of_gpu in zip(full.slots, results, strict=True):
        assert slot.vitals is not None
        assert set(of_gpu) <= {SUCCESS, INVALID_ARGUMENT, NOT_SUPPORTED}
        read = [slot.vitals.get(vital) is not None for vital in PCIE_COUNTERS]
        assert read == [result == SUCCESS for result in of_gpu]


def test_a_cheap_poll_reads_less_and_of_the_same(looked: dict[str, Any], full: Snapshot) -> None:
    cheap = _snapshot(looked["cheap"])

    for less, all_of_it in zip(cheap.slots, full.slots, strict=True):
        assert less.gpu == all_of_it.gpu
        assert less.vitals is not None
        assert all_of_it.vitals is not None
        assert not less.vitals.full
        assert less.vitals.values.keys() < all_of_it.vitals.values.keys()


def test_healthy_gpus_raise_nothing(full: Snapshot) -> None:
    for slot in full.slots:
        assert slot.vitals is not None
        _, notices = fold.fold(fold.GpuVitals(), slot.vitals, now=full.clock, limits=Limits())
        assert {notice.kind for notice in notices} <= {FindingKind.FAULT_OVER}
