"""Uevents are parsed in the kernel's format, and other messages are ignored."""

from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.sources.network import sockets
from kubemend.agent.sources.network.sockets import Uevent
from tests.fakes.netlink import uevent_message

UNBIND = (
    b"unbind@/devices/pci0000:15/0000:15:01.0/0000:18:00.0\0ACTION=unbind\0"
    b"DEVPATH=/devices/pci0000:15/0000:15:01.0/0000:18:00.0\0SUBSYSTEM=pci\0PCI_CLASS=20000\0PCI_ID=15B3:1021\0"
    b"PCI_SUBSYS_ID=15B3:0041\0PCI_SLOT_NAME=0000:18:00.0\0MODALIAS=pci:v000015B3d00001021\0SEQNUM=7345\0"
)


def test_uevent_has_action_and_device() -> None:
    assert sockets.parse_uevent(UNBIND) == Uevent("unbind", "/devices/pci0000:15/0000:15:01.0/0000:18:00.0", "pci")
    stood_in = uevent_message("remove", "/devices/pci0000:15/0000:15:01.0/0000:18:00.0/infiniband/mlx5_0", "infiniband")
    parsed = sockets.parse_uevent(stood_in)
    assert parsed is not None
    assert (parsed.action, parsed.subsystem) == ("remove", "infiniband")


def test_messages_of_udevd_are_ignored() -> None:
    assert sockets.parse_uevent(b"libudev\0\xfe\xed\xca\xfe\0\0\0(\0\0\0(\0\0\0\x9c") is None


@given(st.binary(max_size=200))
def test_noise_is_tolerated(noise: bytes) -> None:
    sockets.parse_uevent(noise)
