"""Build the pod condition ``WarmSpare`` from what the launchers in the pod's containers report. Pure."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.restart.process import Launcher, LauncherUnavailable, NoSpare, Spare

READY: Final = "Ready"
IMPORTING: Final = "Importing"
LAUNCHER_SILENT: Final = "LauncherSilent"
NOT_RUNNING: Final = "NotRunning"
REASONS: Final = frozenset({READY, IMPORTING, LAUNCHER_SILENT, NOT_RUNNING, *(each.value for each in NoSpare)})
"""All reasons of the condition."""
LONGEST_REASON: Final = 256
"""Characters of one container's text in the message."""
LONGEST_MESSAGE: Final = 1024

_WORST_FIRST = (ConditionStatus.FALSE, ConditionStatus.UNKNOWN, ConditionStatus.TRUE)
_UNITS = ("KiB", "MiB", "GiB", "TiB", "PiB")


def condition(launchers: Mapping[str, Launcher | LauncherUnavailable]) -> Condition:
    """Return the condition of a pod with these launchers, by container name; none: no launcher is followed.

    True only if the next restart of each program begins with a spare that is ready. The reason is that of the worst
    container, the message names all.
    """
    if not launchers:
        text = "no container with the launcher runs that may be restarted"
        return Condition(conditions.WARM_SPARE, ConditionStatus.UNKNOWN, NOT_RUNNING, text)
    found = {name: _of(launchers[name]) for name in sorted(launchers)}
    status, reason, _ = min(found.values(), key=lambda each: _WORST_FIRST.index(each[0]))
    message = "; ".join(f"{name}: {text}" for name, (_, _, text) in found.items())
    return Condition(conditions.WARM_SPARE, status, reason, _cut(message, LONGEST_MESSAGE))


def without_memory(launcher: Launcher | LauncherUnavailable) -> Launcher | LauncherUnavailable:
    """Return the same state without the spare's memory, of which a change alone is not published."""
    return launcher if isinstance(launcher, LauncherUnavailable) else replace(launcher, spare_memory=0)


def _of(launcher: Launcher | LauncherUnavailable) -> tuple[ConditionStatus, str, str]:
    """Return status, reason and text for one container."""
    if isinstance(launcher, LauncherUnavailable):
        return ConditionStatus.UNKNOWN, LAUNCHER_SILENT, _cut(launcher.reason, LONGEST_REASON)
    match launcher.spare_state:
        case Spare.READY:
            memory = f", {binary(launcher.spare_memory)}" if launcher.spare_memory else ""
            return ConditionStatus.TRUE, READY, f"ready{memory}"
        case Spare.IMPORTING:
            return ConditionStatus.FALSE, IMPORTING, "the spare is importing"
        case Spare.NONE:
            reason = _cut(launcher.no_spare, LONGEST_REASON) or "no spare is due yet"
            return ConditionStatus.FALSE, launcher.spare_reason.value, reason


def binary(size: int) -> str:
    """Return a number of bytes in binary units, such as ``1.2 GiB``."""
    power = min(max((size.bit_length() - 1) // 10, 1), len(_UNITS))
    return f"{size / 1024**power:.1f} {_UNITS[power - 1]}"


def _cut(text: str, length: int) -> str:
    """Return a text in one line: a reason may name a path or a variable of the container."""
    line = "".join(each if each.isprintable() else "?" for each in text[: length + 1])
    return line if len(line) <= length else line[: length - 1] + "…"
