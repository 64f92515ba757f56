"""Read the kernel's text files: /proc, cgroups, sysfs.

Much of what they say was written by whoever runs in a container: the name of a process (the kernel cuts it after 15
bytes, so any long name that is not ASCII may end within a character), of a cgroup, of a mapped file, of a mount. So any
bytes are read, none of them fails, and what comes back can be logged and sent as UTF-8. A line ends at ``\\n`` alone:
the kernel escapes that one where it would do harm, and none of the others that ``str.splitlines`` and Python's text
files take for the end of a line.
"""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LIMIT: Final = 1 << 20
"""Bytes of one file unless more is asked for: far beyond what the kernel says of one process or cgroup."""

_CHUNK = 1 << 16
_GONE = (errno.ENOENT, errno.ESRCH, errno.ENODEV)


class UnreadableError(OSError):
    """The file is there, but is longer than it can be, or does not have the kernel's form."""


@dataclass(frozen=True, slots=True)
class Stat:
    """What ``stat`` says of a process or thread. ``rest`` are the fields from the fourth on (proc_pid_stat(5))."""

    name: str
    state: str
    rest: tuple[str, ...]


def read_bytes(file: Path | str, *, limit: int = LIMIT, directory: int | None = None) -> bytes | None:
    """Return what a file says; None when it, or what it tells of, is gone.

    ``directory`` is an open one that a relative name begins at. Raises OSError when it cannot be read; UnreadableError
    beyond ``limit`` bytes.
    """
    try:
        opened = os.open(file, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
        try:
            return read_open(opened, limit=limit, name=str(file))
        finally:
            os.close(opened)
    except OSError as error:
        if error.errno in _GONE:
            return None
        raise


def read(file: Path | str, *, limit: int = LIMIT, directory: int | None = None) -> str | None:
    """Return what a file says as text that can be written as UTF-8; see ``read_bytes``."""
    found = read_bytes(file, limit=limit, directory=directory)
    return text(found) if found is not None else None


def read_open(opened: int, *, limit: int = LIMIT, name: str = "") -> bytes:
    """Return the rest of an open file. Raises OSError."""
    parts: list[bytes] = []
    size = 0
    while part := os.read(opened, _CHUNK):
        size += len(part)
        if size > limit:
            raise UnreadableError(errno.EFBIG, f"more than {limit} bytes", name)
        parts.append(part)
    return b"".join(parts)


def each_line(file: Path, *, longest: int = LIMIT) -> Iterator[bytes]:
    """Yield the lines of a file that may have any number of them, with their ends, and keep none.

    Raises OSError, also when the file or what it tells of is gone; UnreadableError for a line of more bytes than that.
    """
    with file.open("rb") as opened:
        while line := opened.readline(longest + 1):
            if len(line) > longest:
                raise UnreadableError(errno.EFBIG, f"a line of more than {longest} bytes", str(file))
            yield line


def text(found: bytes) -> str:
    """Return bytes as text; those that are no UTF-8 show as ``\\xNN``."""
    return found.decode("utf-8", "backslashreplace")


def lines(said: str) -> list[str]:
    """Return the lines of a text, without their ends."""
    return said.removesuffix("\n").split("\n") if said else []


def parse_stat(said: str) -> Stat:
    """Take the text of ``/proc/<pid>/stat`` apart; the name may hold anything, brackets too. Raises UnreadableError."""
    begin, end = said.find("("), said.rfind(")")
    state, *rest = said[end + 1 :].split() or [""]
    if begin < 0 or end < begin or not state:
        raise UnreadableError(errno.EBADMSG, "not the form of proc_pid_stat(5)", said[:80])
    return Stat(name=said[begin + 1 : end], state=state, rest=tuple(rest))
