"""Uevents: the kernel's messages when devices come and go (``lib/kobject_uevent.c``).

They only trigger a scan of sysfs, so a lost or foreign uevent does no harm.
"""

from dataclasses import dataclass

from kubemend.agent.sources.network import sockets

_NETLINK_KOBJECT_UEVENT = 15
_GROUP_KERNEL = 0x1  # udevd's own messages, in group 2, come later and contain no more


@dataclass(frozen=True, slots=True)
class Uevent:
    """One message: ``remove`` of ``/devices/pci0000:00/0000:00:03.0``, in the subsystem ``pci``."""

    action: str
    path: str
    subsystem: str


def listen(*, receive_buffer: int) -> sockets.Listener:
    """Open a socket that receives every uevent of the host. Raises OSError."""
    return sockets.Listener(_NETLINK_KOBJECT_UEVENT, groups=_GROUP_KERNEL, receive_buffer=receive_buffer)


def parse(message: bytes) -> Uevent | None:
    """Return the uevent, or None if the message is not one."""
    head, *lines = message.decode(errors="replace").split("\0")
    action, at, path = head.partition("@")
    if not at:
        return None
    values = dict(line.partition("=")[::2] for line in lines)
    return Uevent(action=action, path=path, subsystem=values.get("SUBSYSTEM", ""))
