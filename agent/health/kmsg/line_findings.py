"""Common construction of findings from lines of the kernel log. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType

from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceLocator
from kubemend.agent.model.findings import Finding, FindingKind, Source

NO_DEVICE = DeviceLocator()
"""The device of a line that names none."""

_UNPRINTABLE = dict.fromkeys((*range(0x20), *range(0x7F, 0xA0)), " ")


@dataclass(frozen=True, slots=True)
class LineContext:
    """Time, key and evidence with which a line was read; see ``Finding`` for the units."""

    observed_at: float
    boot_seconds: float | None = None
    key: str = ""
    evidence: tuple[tuple[str, str], ...] = ()


def make(
    kind: FindingKind,
    *,
    action: ActionClass,
    text: str,
    seen: LineContext,
    code: str = "",
    device: DeviceLocator = NO_DEVICE,
    pid: int | None = None,
    process_name: str | None = None,
    facts: Iterable[tuple[str, str | None]] = (),
) -> Finding:
    """Return the finding for a line. ``facts`` that are known become its evidence.

    Findings are printed on terminals and in conditions: control characters of the kernel text become blanks.
    """
    known = {name: value for name, value in facts if value is not None}
    return Finding(
        source=Source.KERNEL_LOG,
        kind=kind,
        code=code,
        device=device,
        action=action,
        observed_at=seen.observed_at,
        text=_printable(text),
        pid=pid,
        process_name=_printable(process_name) if process_name is not None else None,
        boot_seconds=seen.boot_seconds,
        key=seen.key,
        evidence=MappingProxyType(known | dict(seen.evidence)),
    )


def over(kind: FindingKind, *, device: DeviceLocator, text: str, seen: LineContext) -> Finding:
    """Return the finding that a fault of this kind no longer holds on the device."""
    return make(FindingKind.FAULT_OVER, code=kind.value, device=device, action=ActionClass.NONE, text=text, seen=seen)


def _printable(text: str) -> str:
    return " ".join(text.translate(_UNPRINTABLE).split())
