"""PCIe errors: AER (advanced error reporting) and DPC (a port that disables its link).

One error is first announced by the root port, which names the sender of the message (kernels up to 4.14 by the low 16
bits of its address), then detailed by the device that detected it::

    pcieport 0000:00:1c.5: AER: Corrected error received: id=00e5
    pcieport 0000:00:03.0: AER: Multiple Uncorrected (Fatal) error received: 0000:03:00.0
    pcieport 0000:00:03.1: AER: Correctable error message received from 0000:41:00.0
    nvidia 0000:03:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, id=0300(Receiver ID)
    nvidia 0000:03:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible, (Unregistered Agent ID)
    nvidia 0000:03:00.0:   device [10de:2330] error status/mask=00000001/0000a000       (details; no severity)

Where the firmware handles errors first (drivers/acpi/apei), the last line shows that the error was not corrected::

    nvidia 0000:04:00.0: AER: aer_status: 0x00100000, aer_mask: 0x00010000
    nvidia 0000:04:00.0: AER: aer_uncor_severity: 0x000ef030

A port that contains an error has disconnected all devices below it::

    pcieport 0000:30:03.0: DPC: containment event, status:0x1f01 source:0x3400
    pcieport 0000:30:03.0: DPC: containment event, status:0x0005, ERR_FATAL received from 0000:34:00.0
    dpc 0000:10:01.2:pcie010: DPC containment event, status:0x1f09 source:0x0000

The end of an error, reported by the port above the device: ``AER: device recovery successful`` or ``failed``.
"""

import enum
import re
from dataclasses import dataclass

from kubemend.agent.model.devices import PciAddress

_BDF = r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
_HEAD = rf"[\w.-]{{1,40}} (?P<named>{_BDF}):(?:pcie\w{{1,8}}:)?\s+"
_SEVERITY = r"(?P<severity>Correct(?:ed|able)|Uncorrect(?:ed|able) \((?:Non-)?Fatal\))"

_MESSAGE = re.compile(
    rf"{_HEAD}AER: (?:Multiple )?{_SEVERITY} error (?:message )?received(?::| from) "
    rf"(?:id=(?P<id>[0-9a-f]{{4}})\b|(?P<sender>{_BDF}))(?![\w:.])",
    re.ASCII,
)
_DETAIL = re.compile(rf"{_HEAD}(?:AER: )?PCIe Bus Error: severity={_SEVERITY},", re.ASCII)
_FIRMWARE_FIRST = re.compile(rf"{_HEAD}(?:AER: )?aer_uncor_severity: 0x[0-9a-f]{{8}}\b", re.ASCII)
_CONTAINED = re.compile(rf"{_HEAD}DPC:? containment event, status:0x[0-9a-f]{{1,4}}\b", re.ASCII)
_RECOVERED = re.compile(rf"{_HEAD}AER: [Dd]evice recovery successful\b", re.ASCII)


class Severity(enum.Enum):
    """Severity of an error, in the terms of the PCIe specification."""

    CORRECTABLE = "correctable"
    NON_FATAL = "non-fatal"
    FATAL = "fatal"


class Meaning(enum.Enum):
    """The type of a line."""

    ANNOUNCED = "announced"
    DETAILED = "detailed"
    RECOVERED = "recovered"


@dataclass(frozen=True, slots=True)
class PcieLine:
    """One line: ``device`` has the error, ``reported_by`` is the reporting port, where it is another device.

    ``severity`` is None for the end of an error, which concerns all devices below ``device``.
    """

    meaning: Meaning
    device: PciAddress
    severity: Severity | None = None
    reported_by: PciAddress | None = None


def parse(text: str) -> PcieLine | None:
    """Parse a line; None unless it reports a PCIe error. Lines with details only return None as well."""
    if (match := _DETAIL.match(text)) is not None:
        return PcieLine(Meaning.DETAILED, PciAddress.parse(match["named"]), _severity(match["severity"]))
    if (match := _MESSAGE.match(text)) is not None:
        return _announced(match)
    if (match := _FIRMWARE_FIRST.match(text)) is not None:
        return PcieLine(Meaning.DETAILED, PciAddress.parse(match["named"]), Severity.NON_FATAL)
    if (match := _CONTAINED.match(text)) is not None:
        return PcieLine(Meaning.ANNOUNCED, PciAddress.parse(match["named"]), Severity.FATAL)
    if (match := _RECOVERED.match(text)) is not None:
        return PcieLine(Meaning.RECOVERED, PciAddress.parse(match["named"]))
    return None


def _announced(match: re.Match[str]) -> PcieLine:
    port = PciAddress.parse(match["named"])
    if match["sender"] is not None:
        sender = PciAddress.parse(match["sender"])
    else:
        number = int(match["id"], 16)
        sender = PciAddress(port.domain, bus=number >> 8, device=number >> 3 & 0x1F, function=number & 7)
    if (sender.bus, sender.device, sender.function) == (0, 0, 0):
        sender = port  # no requester id: the host bridge sends no such messages
    return PcieLine(
        Meaning.ANNOUNCED, sender, _severity(match["severity"]), reported_by=port if port != sender else None
    )


def _severity(text: str) -> Severity:
    if text.startswith("Correct"):
        return Severity.CORRECTABLE
    return Severity.NON_FATAL if "Non-Fatal" in text else Severity.FATAL
