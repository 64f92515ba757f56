"""Has the kernel ask before an OCI runtime (runc, crun) is executed on this node.

The container runtime mounts a container's root, executes the OCI runtime, and that executes the container's program
some 20 ms later. On a busy node 20 ms can pass before a thread that looks at the mounts gets a processor. So while a
root is awaited, each execution of an OCI runtime stands still until the mounts have been looked at.
"""

import contextlib
import os
from pathlib import Path
from typing import Final

import structlog

from agent.actuator import fanotify
from common import kernel_files

log = structlog.get_logger(__name__)

_NAMES: Final = ("runc", "crun")
_USUAL: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_MOST_DIRECTORIES: Final = 64


def programs(runtime: Path) -> tuple[Path, ...]:
    """Return the OCI runtimes that a container runtime finds. ``runtime`` is its directory in /proc."""
    directories = f"{_search_path(runtime)}:{_USUAL}".split(":")[:_MOST_DIRECTORIES]
    found: dict[tuple[int, int], Path] = {}
    for directory in directories:
        for name in _NAMES:
            path = runtime / "root" / directory.lstrip("/") / name
            with contextlib.suppress(OSError, ValueError):
                if directory.startswith("/") and path.is_file():
                    status = path.stat()
                    found.setdefault((status.st_dev, status.st_ino), path)
    return tuple(found.values())


class Executions:
    """What is asked about executions of OCI runtimes. Close it: all that stand still go on then."""

    def __init__(self, runtime: Path) -> None:
        """Begin to be asked. Raises OSError when the kernel does not do that for us."""
        self.group = fanotify.new_group()
        try:
            for program in programs(runtime):
                fanotify.mark_file(self.group, program)
        except OSError:
            os.close(self.group)
            raise

    def asked(self) -> list[int]:
        """Return those that stand still and have not been returned before; ``allow`` each of them."""
        found: list[int] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found += [each.file for each in fanotify.asked(self.group)]
        return found

    def allow(self, asked: list[int]) -> None:
        """Let them go on."""
        for file in asked:
            with contextlib.suppress(FileNotFoundError):  # who asked was killed meanwhile
                fanotify.allow(self.group, file)

    def close(self) -> None:
        """Ask no more."""
        os.close(self.group)


def _search_path(runtime: Path) -> str:
    """Return ``PATH`` of a process; empty when it cannot be told."""
    try:
        environment = kernel_files.read_bytes(runtime / "environ") or b""
    except OSError as error:
        log.debug("hold.no_search_path", runtime=str(runtime), error=str(error))
        return ""
    found = [each.removeprefix(b"PATH=") for each in environment.split(b"\0") if each.startswith(b"PATH=")]
    return os.fsdecode(found[-1]) if found else ""
