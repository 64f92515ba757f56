"""One fault printed a thousand times is acted on once; another fault, or the same a moment later, is one of its own."""

import dataclasses
from typing import Any

import pytest

from agent.engine.storms import CALM, Storms
from agent.model.actions import ActionClass
from agent.model.devices import DeviceLocator
from agent.model.findings import Finding, FindingKind, Source

XID = Finding(
    source=Source.KERNEL_LOG,
    kind=FindingKind.XID,
    code="31",
    device=DeviceLocator(),
    action=ActionClass.RESTART_APP,
    observed_at=0.0,
    pid=7,
)


def seen(storms: Storms, *, device: str = "GPU-1", **changes: Any) -> bool:
    """Return whether it is one of many."""
    return storms.is_one_of_many(dataclasses.replace(XID, **changes), device=device)


def test_a_thousand_lines_of_one_fault_are_acted_on_once() -> None:
    storms = Storms(clock=lambda: 5.0)
    assert [seen(storms) for _ in range(1000)] == [False, *[True] * 999]


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({"pid": 8}, id="another-process"),
        pytest.param({"code": "13"}, id="another-fault"),
        pytest.param({"device": "GPU-2"}, id="another-device"),
        pytest.param({"action": ActionClass.ASK_DRIVER}, id="another-remedy"),
    ],
)
def test_what_differs_is_a_fault_of_its_own(other: dict[str, Any]) -> None:
    storms = Storms(clock=lambda: 5.0)
    assert not seen(storms)
    assert not seen(storms, **other)


def test_a_storm_that_goes_on_is_acted_on_now_and_then() -> None:
    times = [index * 0.1 for index in range(50)]
    clock = iter(times)
    storms = Storms(clock=lambda: next(clock))
    acted = [at for at in times if not seen(storms)]
    assert len(acted) == pytest.approx(times[-1] / CALM, abs=1)


def test_what_is_remembered_is_bounded() -> None:
    clock = iter(range(20_000))
    storms = Storms(clock=lambda: next(clock))
    for pid in range(20_000):
        assert not seen(storms, pid=pid)
    assert len(storms._acted) <= 4096


def test_when_what_was_acted_on_has_ended_the_next_line_is_a_fault_of_its_own() -> None:
    storms = Storms(clock=lambda: 5.0)
    assert not seen(storms)
    assert not seen(storms, device="GPU-2")
    storms.over("GPU-1")
    assert not seen(storms)
    assert seen(storms, device="GPU-2")
