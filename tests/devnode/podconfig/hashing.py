"""Compute the hash that kubelet writes on every container it creates (``container/helpers.HashContainer``).

A container whose annotation does not match is "changed" and gets killed, so clones must have the same. The formula is
FNV-1a over Go's ``spew`` dump of the JSON of name and image, in hexadecimal; it is checked against the value that
kubelet's own test pins.
"""

import json

from tests.devnode.podconfig.spec import Container

_OFFSET, _PRIME, _MASK = 0x811C9DC5, 0x01000193, 0xFFFFFFFF


def fnv1a_32(data: bytes) -> int:
    """Return the 32-bit FNV-1a hash."""
    value = _OFFSET
    for byte in data:
        value = ((value ^ byte) * _PRIME) & _MASK
    return value


def container_hash(container: Container) -> str:
    """Return the value of the annotation ``io.kubernetes.container.hash``."""
    picked = json.dumps({"image": container.image, "name": container.name}, separators=(",", ":"))
    dump = "([]uint8)[" + " ".join(str(byte) for byte in picked.encode()) + "]"
    return f"{fnv1a_32(dump.encode()):x}"
