"""``NVRM: Xid`` lines, in every known form of the drivers.

::

    NVRM: Xid (PCI:0000:41:00): 31, pid=4242, name=python3, Ch 00000008, intr 10000000. MMU Fault: ...
    NVRM: Xid (PCI:0000:01:00 GPU-I:05 GPU-CI:00): 94, pid='<unknown>', name=<unknown>, Contained: ...
    NVRM: Xid (0008:01:00.0): 46
    NVRM: Xid (PCI:0000:dc:00): 45, pid=18, name=ray::WorkerDict, Ch 00000001 caused by previous Xid 149
    NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)
"""

import re
from dataclasses import dataclass

from kubemend.agent.model.devices import PciAddress

_XID = re.compile(
    r"""
    NVRM:\s+Xid\s+\(
        \s*(?P<pci>(?:PCI:)?[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7])?)
        (?:\s+GPU-I:(?P<gi>\d{1,3}))?
        (?:\s+GPU-CI:(?P<ci>\d{1,3}))?
    \s*\):\s*
    (?P<code>\d{1,9})
    (?:\s*,\s*|\s+|$)                                       # some driver versions leave the comma out
    (?:pid=(?P<pid>\d{1,10}|'?<unknown>'?)(?:\s*,\s*|\s+|$))?
    (?:name=(?P<name>.*?)(?:,\s+|,?\s*$))?                  # may hold spaces, brackets and colons
    (?P<text>.*)
    """,
    re.VERBOSE | re.IGNORECASE | re.DOTALL | re.ASCII,
)
_CAUSED_BY = re.compile(r"caused by previous Xid\s+(\d{1,9})\b", re.IGNORECASE)
_RECOVERY = re.compile(r"recovery action changed from .{0,80}? to (0x[0-9a-f]{1,8}|\d{1,9})\b", re.IGNORECASE)
_SEVERITY = re.compile(r"\b(non-?)?fatal\b", re.IGNORECASE)
_RECOVERY_ACTION_CHANGED = "154"
_LONGEST_NAME = 15
"""Characters of a process's name at most (TASK_COMM_LEN in the kernel's include/linux/sched.h, less the zero)."""


@dataclass(frozen=True, slots=True)
class XidLine:
    """One Xid line. ``pid`` and ``name`` are None where the driver did not know them.

    A process chooses its name, which may hold a comma: ``name`` and ``text`` are for people. ``drivers_text`` is the
    part of the text that is the driver's, whatever the name is. ``recovery_action`` is the new value that an Xid 154
    announces, as NVML's number.
    """

    pci: PciAddress
    code: str
    gpu_instance: int | None = None
    compute_instance: int | None = None
    pid: int | None = None
    name: str | None = None
    text: str = ""
    drivers_text: str = ""
    caused_by: str | None = None
    severity: str | None = None
    recovery_action: str | None = None


def parse(text: str) -> XidLine | None:
    """Parse a line; None unless it is an Xid line."""
    match = _XID.match(text)
    if match is None:
        return None
    code, rest = str(int(match["code"])), _drivers_text(match).strip()
    caused_by = _CAUSED_BY.search(rest)
    severity = _SEVERITY.search(rest)
    return XidLine(
        pci=PciAddress.parse(match["pci"]),
        code=code,
        gpu_instance=_number(match["gi"]),
        compute_instance=_number(match["ci"]),
        pid=_number(match["pid"]) or None,  # the driver's 0 is the kernel, not a process
        name=_known(match["name"]),
        text=match["text"].strip(),
        drivers_text=rest,
        caused_by=str(int(caused_by[1])) if caused_by is not None else None,
        severity=("Non-fatal" if severity[1] else "Fatal") if severity is not None else None,
        recovery_action=_recovery_action(rest) if code == _RECOVERY_ACTION_CHANGED else None,
    )


def _drivers_text(match: re.Match[str]) -> str:
    """Return the text after the last place at which the name may end."""
    if match["name"] is None:
        return match["text"]
    begin = match.start("name")
    end = match.string.rfind(", ", begin, begin + _LONGEST_NAME + len(", "))
    return match.string[end + len(", ") :] if end > match.end("name") else match["text"]


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isdigit() else None


def _known(name: str | None) -> str | None:
    name = (name or "").strip()
    return name if name and name.strip("'") != "<unknown>" else None


def _recovery_action(text: str) -> str | None:
    changed = _RECOVERY.search(text)
    if changed is None:
        return None
    return str(int(changed[1], 16 if changed[1][:2].lower() == "0x" else 10))
