"""Read the kernel's text files: /proc, cgroups, sysfs.

Processes in containers control much of their content: the name of a process (the kernel cuts it after 15 bytes, so any
long name that is not ASCII may end within a character), of a cgroup, of a mapped file, of a mount. So any bytes are
read without an error, and the result can be logged and sent as UTF-8. A line ends at ``\\n`` only: the kernel escapes
that character where it would do harm, and none of the others that ``str.splitlines`` and Python's text files take for
the end of a line.
"""

import errno
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

LIMIT: Final = 1 << 20
"""Default limit in bytes of one file: far beyond the kernel's output for one process or cgroup."""

_CHUNK = 1 << 16
_GONE = (errno.ENOENT, errno.ESRCH, errno.ENODEV)


class UnreadableError(OSError):
    """The file exists, but is longer than it can be, or does not have the kernel's form."""


@dataclass(frozen=True, slots=True)
class Stat:
    """Hold the parsed ``stat`` of a process or thread.

    ``rest`` are the fields from the fourth on (proc_pid_stat(5)).
    """

    name: str
    state: str
    rest: tuple[str, ...]


def read_bytes(file: Path | str, *, limit: int = LIMIT, directory: int | None = None) -> bytes | None:
    """Return the content of a file; None when the file or its subject no longer exists.

    ``directory`` is the descriptor of the directory to which a relative name refers. Raises OSError when the file
    cannot be read; UnreadableError beyond ``limit`` bytes.
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
    """Return the content of a file as text that can be written as UTF-8; see ``read_bytes``."""
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
    """Yield the lines of a file of any length, with their ends, without keeping them.

    Raises OSError, also when the file or its subject no longer exists; UnreadableError for a line longer than
    ``longest`` bytes.
    """
    with file.open("rb") as opened:
        while line := opened.readline(longest + 1):
            if len(line) > longest:
                raise UnreadableError(errno.EFBIG, f"a line of more than {longest} bytes", str(file))
            yield line


def text(found: bytes) -> str:
    """Decode bytes; those that are not UTF-8 become ``\\xNN``."""
    return found.decode("utf-8", "backslashreplace")


def lines(content: str) -> list[str]:
    """Return the lines of a text, without their ends."""
    return content.removesuffix("\n").split("\n") if content else []


def parse_stat(content: str) -> Stat:
    """Parse the text of ``/proc/<pid>/stat``; the name may contain anything, brackets too. Raises UnreadableError."""
    begin, end = content.find("("), content.rfind(")")
    state, *rest = content[end + 1 :].split() or [""]
    if begin < 0 or end < begin or not state:
        raise UnreadableError(errno.EBADMSG, "not the form of proc_pid_stat(5)", content[:80])
    return Stat(name=content[begin + 1 : end], state=state, rest=tuple(rest))
