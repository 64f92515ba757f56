"""Messages of NVIDIA's network adapter driver (mlx5_core), and of the kernel's watchdog of their queues.

From drivers/net/ethernet/mellanox/mlx5/core: health.c, cmd.c, events.c, en_main.c; net/sched/sch_generic.c. A prefix
``function:line:(pid N):`` precedes most of them, except those about modules::

    mlx5_core 0000:5c:00.0: poll_health:471:(pid 0): device's health compromised - reached miss count
    mlx5_core 0000:5c:00.0: poll_health:800:(pid 0): Fatal error 3 detected
    mlx5_core 0000:08:00.0: print_health_info:425:(pid 9): Health issue observed, EQ error, severity(3) ERROR:
    mlx5_core 0000:61:00.0: print_health_info:520:(pid 0): synd 0x10: High temperature
    mlx5_core 0000:61:00.1: mlx5_health_try_recover:381:(pid 1): health recovery flow aborted, PCI reads still not ...
    mlx5_core 0000:03:00.0: wait_func:964:(pid 112): ENABLE_HCA(0x104) timeout. Will cause a leak of a command resource
    mlx5_core 0000:65:00.0 eth0: TX timeout detected
    mlx5_core 0000:65:00.0 eth0: NETDEV WATCHDOG: CPU: 5: transmit queue 0 timed out 5032 ms
    mlx5_core 0000:61:00.0: temp_warn:171:(pid 0): High temperature on sensors with bit set 0 1
    mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature
    mlx5_core 0000:5c:00.0: Port module event: module 0, Cable unplugged

Refused commands (``ACCESS_REG(0x805) op_mod(0x1) failed``) are not a fault: reading counters causes them. Before
6.8 the watchdog named the interface without an address; the driver then prints its own message.
"""

import enum
import re
from dataclasses import dataclass

from kubemend.agent.model.devices import PciAddress

_HEAD = re.compile(
    r"""
    (?P<driver>[a-z][\w-]{0,30})\s(?P<pci>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])
    (?:\s(?P<interface>[^\s:/]{1,15}))?:\s+
    (?:\w{1,60}:\d{1,6}:\(pid\s\d{1,10}\):\s+)?
    """,
    re.VERBOSE | re.IGNORECASE | re.ASCII,
)
_WATCHDOG = re.compile(r"NETDEV WATCHDOG: CPU: \d{1,5}: transmit queue \d{1,6} timed out\b", re.ASCII)
_MODULE = re.compile(
    r"Port module event(?:\[error\])?: module (?P<module>\d{1,3}), (?P<state>Cable \w+)(?:, (?P<error>\S.*))?"
)
_HEALTH = re.compile(r"Health issue observed, (?P<issue>\S.*?), severity\((?P<severity>[0-7])\) ", re.DOTALL)
_SYNDROME = re.compile(r"synd 0x(?!0+\b)[0-9a-f]{1,8}: (?P<issue>\S.*)", re.IGNORECASE | re.DOTALL)
_ERROR_LEVEL = 3
"""KERN_ERR: less severe issues are informational."""


class Meaning(enum.Enum):
    """The meaning of a line for the adapter."""

    FATAL = "fatal"
    TIMEOUT = "timeout"
    HOT = "hot"
    UNPLUGGED = "unplugged"
    CABLE_ERROR = "cable-error"
    PLUGGED = "plugged"
    RECOVERED = "recovered"


_PATTERNS = (
    (re.compile(r"device's health compromised - reached miss count"), Meaning.FATAL),
    (re.compile(r"Fatal error \d{1,3} detected", re.ASCII), Meaning.FATAL),
    (re.compile(r"health recovery flow aborted, PCI reads still not working"), Meaning.FATAL),
    (re.compile(r"health recovery failed"), Meaning.FATAL),
    (re.compile(r"health recovery succeeded|health revovery succeded"), Meaning.RECOVERED),  # spelling in 5.10
    (re.compile(r"\w{1,60}\(0x[0-9a-f]{1,4}\) timeout\. Will cause a leak of a command resource"), Meaning.TIMEOUT),
    (re.compile(r"TX timeout detected"), Meaning.TIMEOUT),
    (re.compile(r"RX timeout on channel\b"), Meaning.TIMEOUT),
    (re.compile(r"High temperature on sensors with bit set\b"), Meaning.HOT),
)


@dataclass(frozen=True, slots=True)
class NicLine:
    """One line about one adapter. ``module`` is the number of the cage, where the line concerns a cable."""

    meaning: Meaning
    pci: PciAddress
    text: str
    interface: str | None = None
    module: str | None = None


def parse(text: str) -> NicLine | None:
    """Parse a line; None unless it is about a fault of an adapter that it names by its address."""
    head = _HEAD.match(text)
    if head is None:
        return None
    rest = text[head.end() :].strip()
    module = None
    if _WATCHDOG.match(rest) is not None:
        meaning: Meaning | None = Meaning.TIMEOUT
    elif head["driver"] != "mlx5_core":
        return None
    elif (match := _MODULE.match(rest)) is not None:
        meaning, module = _module_meaning(match["state"], match["error"]), match["module"]
    else:
        meaning = _meaning(rest)
    if meaning is None:
        return None
    return NicLine(meaning, PciAddress.parse(head["pci"]), text=rest, interface=head["interface"], module=module)


def _meaning(rest: str) -> Meaning | None:
    for pattern, meaning in _PATTERNS:
        if pattern.match(rest) is not None:
            return meaning
    if (match := _HEALTH.match(rest)) is not None and int(match["severity"]) > _ERROR_LEVEL:
        return Meaning.HOT if _is_hot(match["issue"]) else None
    match = match or _SYNDROME.match(rest)
    if match is None:
        return None
    return Meaning.HOT if _is_hot(match["issue"]) else Meaning.FATAL


def _module_meaning(state: str, error: str | None) -> Meaning | None:
    if state == "Cable error" and error is not None:
        return Meaning.HOT if _is_hot(error) else Meaning.CABLE_ERROR
    return {"Cable plugged": Meaning.PLUGGED, "Cable unplugged": Meaning.UNPLUGGED}.get(state)


def _is_hot(text: str) -> bool:
    return text.lower().startswith("high temperature")
