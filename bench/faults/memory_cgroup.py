"""Provide a cgroup that limits the memory of a process: of cgroup v1's memory controller, or of v2."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from bench.faults.reporting import NotTriedError

_ROOT = Path("/sys/fs/cgroup")


class MemoryCgroup(Protocol):
    """Limit and read one cgroup."""

    def add(self, pid: int) -> None: ...
    def limit(self, size: int) -> None: ...
    def used(self) -> int:
        """Return the bytes that its processes use, with the page cache that is accounted to it."""
        ...

    def most(self) -> int:
        """Return its peak usage."""
        ...

    def kills(self) -> int:
        """Return how many of its processes the kernel has killed for memory."""
        ...


@contextlib.contextmanager
def made(name: str) -> Iterator[MemoryCgroup]:
    """Create one for the length of the block; its processes must have ended then. Raises NotTriedError."""
    version_1 = (_ROOT / "memory").is_dir()
    path = _ROOT / "memory" / name if version_1 else _ROOT / name
    try:
        path.mkdir()
    except OSError as error:
        raise NotTriedError(f"no memory cgroup can be made ({error}); run as root, with cgroups writable") from error
    try:
        if not version_1 and not (path / "memory.max").exists():
            raise NotTriedError(f"{_ROOT} does not hand the memory controller on: see its cgroup.subtree_control")
        yield _Version1(path) if version_1 else _Version2(path)
    finally:
        path.rmdir()


class _Version1:
    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, pid: int) -> None:
        (self._path / "cgroup.procs").write_text(str(pid))

    def limit(self, size: int) -> None:
        (self._path / "memory.limit_in_bytes").write_text(str(size))

    def used(self) -> int:
        return int((self._path / "memory.usage_in_bytes").read_text())

    def most(self) -> int:
        return int((self._path / "memory.max_usage_in_bytes").read_text())

    def kills(self) -> int:
        return _field(self._path / "memory.oom_control", "oom_kill")


class _Version2:
    """``cgroup.subtree_control`` of the root must have memory, as systemd sets it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def add(self, pid: int) -> None:
        (self._path / "cgroup.procs").write_text(str(pid))

    def limit(self, size: int) -> None:
        (self._path / "memory.max").write_text(str(size))

    def used(self) -> int:
        return int((self._path / "memory.current").read_text())

    def most(self) -> int:
        return int((self._path / "memory.peak").read_text())

    def kills(self) -> int:
        return _field(self._path / "memory.events", "oom_kill")


def _field(path: Path, name: str) -> int:
    values = dict(line.split() for line in path.read_text().splitlines())
    return int(values[name])
