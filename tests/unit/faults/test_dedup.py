"""Handle a fault that is printed a thousand times once; another fault, or the same one later, is handled by itself."""

import dataclasses
from typing import Any

import pytest

from kubemend.agent.faults.finding_queue import CALM, FindingDeduplicator
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceLocator
from kubemend.agent.model.findings import Finding, FindingKind, Source

XID = Finding(
    source=Source.KERNEL_LOG,
    kind=FindingKind.XID,
    code="31",
    device=DeviceLocator(),
    action=ActionClass.RESTART_APP,
    observed_at=0.0,
    pid=7,
)


def seen(deduplicator: FindingDeduplicator, *, device: str = "GPU-1", **changes: Any) -> bool:
    """Return whether it is a duplicate."""
    return deduplicator.is_duplicate(dataclasses.replace(XID, **changes), device=device)


def test_dedup_thousand_lines_of_one_fault_count_once() -> None:
    deduplicator = FindingDeduplicator(clock=lambda: 5.0)
    assert [seen(deduplicator) for _ in range(1000)] == [False, *[True] * 999]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"pid": 8}, id="another-process"),
        pytest.param({"code": "13"}, id="another-fault"),
        pytest.param({"device": "GPU-2"}, id="another-device"),
        pytest.param({"action": ActionClass.ASK_DRIVER}, id="another-remedy"),
    ],
)
def test_dedup_different_finding_is_no_duplicate(other: dict[str, Any]) -> None:
    deduplicator = FindingDeduplicator(clock=lambda: 5.0)
    assert not seen(deduplicator)
    assert not seen(deduplicator, **other)


def test_dedup_continuing_storm_is_handled_periodically() -> None:
    times = [index * 0.1 for index in range(50)]
    clock = iter(times)
    deduplicator = FindingDeduplicator(clock=lambda: next(clock))
    acted = [at for at in times if not seen(deduplicator)]
    assert len(acted) == pytest.approx(times[-1] / CALM, abs=1)


def test_dedup_memory_is_bounded() -> None:
    clock = iter(range(20_000))
    deduplicator = FindingDeduplicator(clock=lambda: next(clock))
    for pid in range(20_000):
        assert not seen(deduplicator, pid=pid)
    assert len(deduplicator._acted) <= 4096


def test_dedup_after_end_of_fault_next_line_counts() -> None:
    deduplicator = FindingDeduplicator(clock=lambda: 5.0)
    assert not seen(deduplicator)
    assert not seen(deduplicator, device="GPU-2")
    deduplicator.over("GPU-1")
    assert not seen(deduplicator)
    assert seen(deduplicator, device="GPU-2")
