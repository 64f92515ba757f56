"""Keys of the findings in kernel log records, and their order in the log."""

import re
from typing import Final

CLOCK_SLACK: Final = 1_000_000
"""Microseconds. Records of different CPUs may be stamped out of order, but by less than a second."""

_KEY = re.compile(r"kmsg:(\d{1,20}):(\d{1,20})(?:#(\d{1,9}))?", re.ASCII)


def of(seq: int, usec: int) -> str:
    """Return the key of a record's first finding. ``line_reader.LineReader`` numbers the others: ``…#2``."""
    return f"kmsg:{seq}:{usec}"


def was_read(position: tuple[int, int], *, up_to: tuple[int, int]) -> bool:
    """Return whether a record is not after another one of the same log. Both are ``(seq, usec)``.

    ``usec`` distinguishes a restarted log (a stand-in file) from the one read before.
    """
    return position[0] <= up_to[0] and position[1] <= up_to[1] + CLOCK_SLACK


def reaches(newest: str, key: str) -> bool:
    """Return whether the key of the newest finding is that of ``key`` or of a later one; False for other texts."""
    one, other = _KEY.fullmatch(newest), _KEY.fullmatch(key)
    if one is None or other is None:
        return False
    if one[1] == other[1] and one[2] == other[2]:
        return int(other[3] or 1) <= int(one[3] or 1)
    return was_read((int(other[1]), int(other[2])), up_to=(int(one[1]), int(one[2])))
