"""The pod condition for warm spares: one line for all containers of the pod, the reason of the worst one."""

from collections.abc import Mapping
from dataclasses import replace

import pytest

from kubemend.agent.model.conditions import WARM_SPARE, Condition, ConditionStatus
from kubemend.agent.restart import spares
from kubemend.agent.restart.process import Launcher, LauncherUnavailable, NoSpare, State

TRUE, FALSE, UNKNOWN = ConditionStatus.TRUE, ConditionStatus.FALSE, ConditionStatus.UNKNOWN
NONE = Launcher(State.RUNNING, program=1)
IMPORTS = replace(NONE, spare=77, spare_memory=1 << 20)
READY = replace(IMPORTS, ready=True, spare_memory=1288490189)
DROPPED = replace(NONE, spare_reason=NoSpare.DEVICE_OPENED, no_spare="it holds /dev/nvidia0 open")
SILENT = LauncherUnavailable("the launcher has no socket in /var/cache/kubemend")


@pytest.mark.parametrize(
    ("launchers", "status", "reason", "message"),
    [
        ({"a": READY}, TRUE, "Ready", "a: ready, 1.2 GiB"),
        ({"a": replace(READY, spare_memory=0)}, TRUE, "Ready", "a: ready"),
        ({"a": replace(READY, state=State.HELD)}, TRUE, "Ready", "a: ready, 1.2 GiB"),
        ({"a": NONE}, FALSE, "NotDue", "a: no spare is due yet"),
        ({"a": IMPORTS}, FALSE, "Importing", "a: the spare is importing"),
        ({"a": DROPPED}, FALSE, "DeviceOpened", "a: it holds /dev/nvidia0 open"),
        ({"a": SILENT}, UNKNOWN, "LauncherSilent", "a: the launcher has no socket in /var/cache/kubemend"),
        ({"a": LauncherUnavailable("no socket in /\n\ud800")}, UNKNOWN, "LauncherSilent", "a: no socket in /??"),
        ({}, UNKNOWN, "NotRunning", "no container with the launcher runs that may be restarted"),
        ({"b": READY, "a": SILENT}, UNKNOWN, "LauncherSilent", f"a: {SILENT.reason}; b: ready, 1.2 GiB"),
        ({"b": DROPPED, "a": SILENT}, FALSE, "DeviceOpened", f"a: {SILENT.reason}; b: {DROPPED.no_spare}"),
        ({"b": NONE, "a": DROPPED}, FALSE, "DeviceOpened", f"a: {DROPPED.no_spare}; b: no spare is due yet"),
    ],
)
def test_condition(
    launchers: Mapping[str, Launcher | LauncherUnavailable], status: ConditionStatus, reason: str, message: str
) -> None:
    assert spares.condition(launchers) == Condition(WARM_SPARE, status, reason, message)
    assert reason in spares.REASONS


@pytest.mark.parametrize(("length", "kept"), [(256, "x" * 256), (257, "x" * 255 + "…"), (4000, "x" * 255 + "…")])
def test_a_launchers_text_is_cut(length: int, kept: str) -> None:
    for launcher in (replace(DROPPED, no_spare="x" * length), LauncherUnavailable("x" * length)):
        assert spares.condition({"a": launcher}).message == f"a: {kept}"


def test_the_message_for_many_containers_is_cut() -> None:
    message = spares.condition({f"trainer-{number:03}": READY for number in range(256)}).message
    assert len(message) == spares.LONGEST_MESSAGE
    assert message.endswith("…")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0.0 KiB"), (1023, "1.0 KiB"), (1 << 20, "1.0 MiB"), (1 << 30, "1.0 GiB"), (2**53, "8.0 PiB")],
)
def test_memory_is_in_binary_units(size: int, text: str) -> None:
    assert spares.binary(size) == text
