"""Check that a kernel log record comes from the kernel component that it appears to come from. Pure.

A user with the right to set up packet filters in the node's network namespace chooses the beginning of the kernel's
lines about packets (``iptables -j LOG --log-prefix``, ``nft … log prefix``, ebtables), for example that of an Xid line.
The facility of such a line is the kernel's, so it does not distinguish the line from a driver's. Two facts do:

- such a line always contains the direction of the packet, right after the prefix (net/netfilter/nf_log_syslog.c; before
  5.13 nf_log_common.c; net/bridge/netfilter/ebt_log.c);
- messages about a device (``dev_err`` and similar, drivers/base/core.c) carry the device's name in a field separate
  from the text, which the text cannot forge.
"""

import re

from kubemend.agent.health.kmsg import kmsg_record

_PACKET = re.compile(r"IN=[^ ]{0,15} OUT=")
"""A process with such a name hides its own Xid in this log, though not in NVML.

That is better than accepting a forgery.
"""

_ABOUT_DEVICE = re.compile(
    r"[\w.-]{1,40} (?P<rest>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?![^: ]).*)", re.IGNORECASE | re.DOTALL
)
_DEVICE = "DEVICE"
_SUBSYSTEMS = ("+pci:", "+pci_express:")


def is_of_packet(text: str) -> bool:
    """Return whether the line was printed about a network packet; its beginning does not matter."""
    return _PACKET.search(text) is not None


def is_genuine(record: kmsg_record.KmsgRecord) -> bool:
    """Return whether the kernel itself printed the record, about the PCI device that it names first, if any."""
    if record.facility != kmsg_record.KERNEL_FACILITY or is_of_packet(record.text):
        return False
    about = _ABOUT_DEVICE.match(record.text)
    if about is None:
        return True
    device = record.dictionary.get(_DEVICE, "")
    names = [device.removeprefix(subsystem) for subsystem in _SUBSYSTEMS if device.startswith(subsystem)]
    return any(name and about["rest"].startswith((f"{name}:", f"{name} ")) for name in names)
