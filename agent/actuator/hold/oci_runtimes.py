"""Intercept the execution of OCI runtimes (runc, crun) on this node by permission events.

The container runtime mounts a container's root and executes the OCI runtime, which executes the container's program
some 20 ms later. On a busy node a thread that reads the mounts may wait more than 20 ms for a processor. So while a
root is awaited, each execution of an OCI runtime is blocked until the mounts have been read.
"""

import contextlib
import os
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


def programs(runtime: Path) -> tuple[Path, ...]:
    """Return the OCI runtimes that a container runtime finds. ``runtime`` is its directory in /proc."""
    directories = f"{_search_path(runtime)}:{_USUAL}".split(":")[:_MOST_DIRECTORIES]
    found: dict[tuple[int, int], Path] = {}
    for directory in directories:
        for name in NAMES:
            path = runtime / "root" / directory.lstrip("/") / name
            with contextlib.suppress(OSError, ValueError):
                if directory.startswith("/") and path.is_file():
                    status = path.stat()
                    found.setdefault((status.st_dev, status.st_ino), path)
    return tuple(found.values())


class Executions:
    """Permission events for executions of OCI runtimes. Closing it allows all blocked ones."""

    def __init__(self, runtime: Path) -> None:
        """Request the events. Raises OSError if the kernel refuses."""
        self.group = fanotify.new_group()
        try:
            for program in programs(runtime):
                fanotify.mark_file(self.group, program)
        except OSError:
            os.close(self.group)
            raise

    def asked(self) -> list[int]:
        """Return the blocked executions not yet returned; ``allow`` each of them."""
        found: list[int] = []
        with contextlib.suppress(BlockingIOError):
            while True:
                found += [each.file for each in fanotify.asked(self.group)]
        return found

    def allow(self, asked: list[int]) -> None:
        """Allow these executions."""
        for file in asked:
            with contextlib.suppress(FileNotFoundError):  # the process was killed in the meantime
                fanotify.allow(self.group, file)

    def close(self) -> None:
        """Stop intercepting."""
        os.close(self.group)


def _search_path(runtime: Path) -> str:
    """Return ``PATH`` of a process; empty if it cannot be read."""
    try:
        environment = kernel_files.read_bytes(runtime / "environ") or b""
    except OSError as error:
        log.debug("hold.no_search_path", runtime=str(runtime), error=str(error))
        return ""
    found = [each.removeprefix(b"PATH=") for each in environment.split(b"\0") if each.startswith(b"PATH=")]
    return os.fsdecode(found[-1]) if found else ""
