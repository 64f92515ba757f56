"""Intercept the execution of OCI runtimes (runc, crun) on this node by permission events.

The container runtime mounts a container's root and executes the OCI runtime, which executes the container's program
some 20 ms later. On a busy node a thread that reads the mounts may wait more than 20 ms for a processor. So while a
root is awaited, each execution of an OCI runtime is blocked until the mounts have been read.
"""

import contextlib
import errno
import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import structlog

from kubemend.agent.actuator.hold import fanotify
from kubemend.common import kernel_files

log = structlog.get_logger(__name__)

NAMES: Final = ("runc", "crun")
_USUAL: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/libexec/crio"
"""The last one has the OCI runtimes of CRI-O's own packages, and is in no search path."""

_MOST_DIRECTORIES: Final = 64
_MOST_LINKS: Final = 40  # as in the kernel (path_resolution(7))


class OciRuntimes:
    """The OCI runtimes that one container runtime executes.

    ``named`` are the programs that it names (``restart.oci_programs``), once it has been asked: absolute paths, and
    names to look up.
    """

    def __init__(self, named: Sequence[str] = ()) -> None:
        self.named = tuple(named)

    def programs(self, runtime: Path) -> tuple[Path, ...]:
        """Return their files. ``runtime`` is the container runtime's directory in /proc."""
        return find(runtime, named=self.named)


def find(runtime: Path, *, named: Sequence[str]) -> tuple[Path, ...]:
    """Return the files of OCI runtimes, each once: the named ones, then those of usual names in the search path.

    The latter count even if others are named, because a named program can execute them (nvidia-container-runtime).
    ``named`` are absolute paths, and names to look up.
    """
    found: dict[tuple[int, int], Path] = {}
    for path in _existing(runtime, named):
        with contextlib.suppress(OSError, ValueError):
            file = Path(_in_root(runtime / "root", path))
            if stat.S_ISREG((status := file.stat()).st_mode):
                found.setdefault((status.st_dev, status.st_ino), file)
    return tuple(found.values())


class Executions:
    """Permission events for executions of OCI runtimes. Closing it allows all blocked ones."""

    def __init__(self, programs: Sequence[Path]) -> None:
        """Request the events for these files. Raises OSError if the kernel refuses."""
        self.group = fanotify.new_group()
        try:
            for program in programs:
                fanotify.mark_file(self.group, program)
        except OSError:
            os.close(self.group)
            raise

    def asked(self) -> list[int]:
        """Return the blocked executions not yet returned; ``allow`` each of them."""
        found: list[int] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found += [each.file for each in fanotify.permission_events(self.group)]
        return found

    def allow(self, asked: list[int]) -> None:
        """Allow these executions."""
        for file in asked:
            with contextlib.suppress(FileNotFoundError):  # the process was killed in the meantime
                fanotify.allow(self.group, file)

    def close(self) -> None:
        """Stop intercepting."""
        os.close(self.group)


def _existing(runtime: Path, named: Sequence[str]) -> Iterator[str]:
    """Yield absolute paths, as the runtime sees them, that may be files of OCI runtimes."""
    yield from (path for path in named if path.startswith("/"))
    names = dict.fromkeys((*(name for name in named if "/" not in name), *NAMES))
    directories = f"{_search_path(runtime)}:{_USUAL}".split(":")[:_MOST_DIRECTORIES]
    for directory in dict.fromkeys(each for each in directories if each.startswith("/")):
        with contextlib.suppress(OSError, ValueError):
            there = _in_root(runtime / "root", directory)
            yield from (f"{directory}/{name}" for name in names if os.path.lexists(f"{there}/{name}"))


def _in_root(root: Path, path: str) -> str:
    """Return where the file of a process with another root is; absolute links (k3s, NixOS) lead within that root.

    Raises OSError if it does not exist, or if there are too many links.
    """
    top, at, links = str(root), "", 0
    left = path.split("/")[::-1]
    while left:
        part = left.pop()
        if part == "..":
            at = at.rpartition("/")[0]
        elif part not in ("", "."):
            try:
                target = os.readlink(f"{top}{at}/{part}")  # noqa: PTH115 - Path takes 1 ms more for all, per restart
            except OSError as error:
                if error.errno != errno.EINVAL:  # it is no link
                    raise
                at = f"{at}/{part}"
                continue
            links += 1
            if links > _MOST_LINKS:
                raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)
            at = "" if target.startswith("/") else at
            left += target.split("/")[::-1]
    return f"{top}{at}"


def _search_path(runtime: Path) -> str:
    """Return ``PATH`` of a process; empty if it cannot be read."""
    try:
        environment = kernel_files.read_bytes(runtime / "environ") or b""
    except OSError as error:
        log.debug("hold.no_search_path", runtime=str(runtime), error=str(error))
        return ""
    found = [each.removeprefix(b"PATH=") for each in environment.split(b"\0") if each.startswith(b"PATH=")]
    return os.fsdecode(found[-1]) if found else ""
