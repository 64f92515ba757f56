"""Parse names of faults as people and the catalog file write them: ``Xid 79``, ``13, 39-41``, ``FallenOffBus``."""

import re

from kubemend.agent.health.catalog.catalog import FaultKey
from kubemend.agent.model.findings import FindingKind

CODED = frozenset({FindingKind.XID, FindingKind.SXID, FindingKind.RECOVERY_ACTION, FindingKind.NVML_ERROR})
"""Kinds that comprise many faults, distinguished by their codes."""

CODELESS = frozenset(FindingKind) - CODED
"""Kinds that are one fault each and need no code."""

_KINDS = {kind.value.lower(): kind for kind in FindingKind}
_NAME = re.compile(r"(?P<kind>[a-z]+(?:[ -][a-z]+)*)?[ :#]*(?P<codes>\d[\d\s,-]*)?", re.IGNORECASE | re.ASCII)
_CODE_RANGE = re.compile(r"(\d{1,9})(?:\s*-\s*(\d{1,9}))?", re.ASCII)
_LARGEST_RANGE = 100


def codes(text: str) -> tuple[str, ...]:
    """Expand ``13, 39-41`` to its codes, in order.

    Raises ValueError where the text is not such a list, or a range is reversed or larger than any real one.
    """
    found: list[str] = []
    for part in text.split(","):
        match = _CODE_RANGE.fullmatch(part.strip())
        if match is None:
            raise ValueError(f"{part.strip()!r} is neither a code nor a range such as 39-41")
        first, last = int(match[1]), int(match[2] or match[1])
        if not 0 <= last - first < _LARGEST_RANGE:
            raise ValueError(f"the range {part.strip()!r} is empty or longer than {_LARGEST_RANGE} codes")
        found += map(str, range(first, last + 1))
    return tuple(found)


def keys(text: str, *, default: FindingKind | None = None) -> tuple[FaultKey, ...]:
    """Parse ``Xid 39-41`` or ``FallenOffBus``; codes without a kind are of the ``default`` kind.

    Raises ValueError with one line for people where the text names no fault.
    """
    match = _NAME.fullmatch(text.strip())
    if match is None or not text.strip():
        raise ValueError(f"{text!r} is not a fault: write a code such as 79, or Xid 79, SXid 20034, FallenOffBus")
    kind = _kind(match["kind"]) if match["kind"] else default
    if kind is None:
        raise ValueError(f"{text!r} has no kind: write for example Xid {text.strip()}")
    if match["codes"] is not None:
        return tuple(FaultKey(kind, code) for code in codes(match["codes"]))
    if kind not in CODELESS:
        raise ValueError(f"{text!r} lacks a code: write for example {kind.value} 1")
    return (FaultKey(kind),)


def _kind(name: str) -> FindingKind:
    kind = _KINDS.get(name.lower().replace(" ", "").replace("-", ""))
    if kind is None:
        raise ValueError(f"{name!r} is not a kind of fault; use one of {', '.join(each.value for each in FindingKind)}")
    return kind
