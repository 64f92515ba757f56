"""Whether a record of the kernel log is by the part of the kernel that it seems to be by. Pure.

Anybody who may set up packet filters in the node's network namespace chooses how the kernel's own lines about packets
begin (``iptables -j LOG --log-prefix``, ``nft … log prefix``, ebtables): with the words of an Xid, say. Their
facility is the kernel's and the words stand first, so neither tells them from a driver's. What does:

- such a line always says which way the packet went, right after the prefix (net/netfilter/nf_log_syslog.c; before
  5.13 nf_log_common.c; net/bridge/netfilter/ebt_log.c);
- what is printed about a device (``dev_err`` and its like, drivers/base/core.c) comes with the device's name beside
  the text, where no text gets to.
"""

import re

from agent.health import kmsg_record

_PACKET = re.compile(r"IN=[^ ]{0,15} OUT=")
"""A process of such a name hides its own Xid from this log, though not from NVML: rather that than one believed."""

_ABOUT_DEVICE = re.compile(
    r"[\w.-]{1,40} (?P<rest>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7](?![^: ]).*)", re.IGNORECASE | re.DOTALL
)
_DEVICE = "DEVICE"
_SUBSYSTEMS = ("+pci:", "+pci_express:")


def is_of_packet(text: str) -> bool:
    """Whether the line was printed about a network packet, whatever its first words say."""
    return _PACKET.search(text) is not None


def is_genuine(record: kmsg_record.KmsgRecord) -> bool:
    """Whether the record was printed by the kernel itself, and about the PCI device that it names first, if it does."""
    if record.facility != kmsg_record.KERNEL_FACILITY or is_of_packet(record.text):
        return False
    about = _ABOUT_DEVICE.match(record.text)
    if about is None:
        return True
    device = record.dictionary.get(_DEVICE, "")
    names = [device.removeprefix(subsystem) for subsystem in _SUBSYSTEMS if device.startswith(subsystem)]
    return any(name and about["rest"].startswith((f"{name}:", f"{name} ")) for name in names)
