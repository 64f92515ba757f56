"""Report the mount of a container's root as it happens: some 20 ms before anything on it is executed."""

import errno
import os
import re
import select
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

import structlog

from kubemend.agent.actuator.hold.oci_runtimes import Executions, OciRuntimes
from kubemend.agent.model.workloads import ContainerId
from kubemend.common import kernel_files

log = structlog.get_logger(__name__)

_REREAD_MS = 1000
_LIMIT = 64 << 20  # bytes; fs.mount-max is 100,000
_MOUNT_POINT = 4  # of a line's fields (proc_pid_mountinfo(5)), counted from 0
_ROOT = re.compile(rb"/[0-9a-f]{64}/rootfs [^\n]* - (?P<kind>\S+) ")  # as containerd mounts them


class RootfsMountWatcher:
    """Watch the mounts that the container runtime sees, in one thread for all awaited containers.

    The thread exists only while a container is awaited: each change of the node's mounts is read once, however many
    are. The same holds for permission events for OCI runtimes (``oci_runtimes``): they are allowed once the mounts are
    read.
    """

    def __init__(self, runtime: Path, *, oci_runtimes: OciRuntimes) -> None:
        """``runtime`` is the container runtime's directory in /proc."""
        self.runtime = runtime
        self._oci_runtimes = oci_runtimes
        self._lock = threading.Lock()
        self._awaited: dict[ContainerId, Callable[[Path], None]] = {}
        self._wake: int | None = None

    def wait_for(self, container_id: ContainerId, then: Callable[[Path], None]) -> None:
        """Call ``then`` once with the root, in another thread, as soon as it is mounted. Raises OSError."""
        with self._lock:
            if self._wake is None:
                self._wake = self._begin()
            else:
                os.eventfd_write(self._wake, 1)
            self._awaited[container_id] = then

    def _begin(self) -> int:
        """Start the thread; return what wakes it. Raises OSError."""
        wake, executions = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK), self._executions()
        try:
            threading.Thread(target=self._work, args=(wake, executions), name="container roots", daemon=True).start()
        except RuntimeError as error:  # no thread is free: nothing would allow the executions
            os.close(wake)
            if executions is not None:
                executions.close()
            raise OSError(errno.EAGAIN, str(error)) from error
        return wake

    def forget(self, container_id: ContainerId) -> None:
        """Stop waiting; ``then`` is not called after this returns."""
        with self._lock:
            if self._awaited.pop(container_id, None) is not None and self._wake is not None:
                os.eventfd_write(self._wake, 1)

    def kinds(self) -> frozenset[str]:
        """Return the file system types of the current containers' roots. Raises OSError."""
        return frozenset(kernel_files.text(found["kind"]) for found in _ROOT.finditer(self._mountinfo()))

    def shows(self, container_id: ContainerId, root: str | None = None) -> bool:
        """Return whether a container's root is a mounted overlay. Raises OSError.

        ``root`` is its place; None: one that ``wait_for`` finds.
        """
        end = root if root is not None else _end(container_id)
        return _mounted_at(end, self._mountinfo()) is not None

    def _mountinfo(self) -> bytes:
        return kernel_files.read_bytes(self.runtime / "mountinfo", limit=_LIMIT) or b""

    def _executions(self) -> Executions | None:
        try:
            return Executions(self._oci_runtimes.programs(self.runtime))
        except OSError as error:
            log.warning("hold.not_asked", runtime=str(self.runtime), error=str(error))
            return None

    def _work(self, wake: int, executions: Executions | None) -> None:
        try:
            with (self.runtime / "mountinfo").open("rb", buffering=0) as mounts:
                poll = select.poll()
                poll.register(mounts, select.POLLPRI | select.POLLERR)  # proc_pid_mountinfo(5): on every change
                poll.register(wake, select.POLLIN)
                if executions is not None:
                    poll.register(executions.group, select.POLLIN)
                while self._read_then_allow(mounts, wake, executions):
                    poll.poll(_REREAD_MS)
        except OSError as error:
            log.warning("hold.no_mounts", runtime=str(self.runtime), error=str(error))
            self._end(wake)
        finally:
            if executions is not None:
                executions.close()

    def _read_then_allow(self, mounts: BinaryIO, wake: int, executions: Executions | None) -> bool:
        """Read the mounts, then allow the executions that were requested before; see ``_read_mounts``."""
        asked = executions.asked() if executions is not None else []
        try:
            return self._read_mounts(mounts, wake)
        finally:
            if executions is not None:
                executions.allow(asked)

    def _read_mounts(self, mounts: BinaryIO, wake: int) -> bool:
        """Call back for each mounted root; return False when none is awaited any more, and this thread has ended."""
        mounts.seek(0)
        mountinfo = kernel_files.read_open(mounts.fileno(), limit=_LIMIT, name="mountinfo")
        with self._lock:
            _drain(wake)
            found = {each: at for each in self._awaited if (at := _mounted_at(_end(each), mountinfo)) is not None}
            for container_id, root in found.items():
                self._awaited.pop(container_id)(self.runtime / "root" / root.lstrip("/"))
            if self._awaited:
                return True
            self._close(wake)
        return False

    def _end(self, wake: int) -> None:
        with self._lock:
            self._awaited.clear()
            self._close(wake)

    def _close(self, wake: int) -> None:
        self._wake = None
        os.close(wake)


def _end(container_id: ContainerId) -> str:
    """Return the end of the place where containerd mounts a container's root."""
    return f"/{container_id}/rootfs"


def _mounted_at(place: str, mountinfo: bytes) -> str | None:
    """Return where an overlay is mounted, from the text of ``/proc/<pid>/mountinfo``; None if it is not (yet).

    ``place`` is the path, or its end.
    Overlays only: they are filesystems of their own. Marking the filesystem of a bind mount would block the whole node.
    The text has thousands of lines on a busy node, and is searched for each container that is started: only lines with
    the container's name are parsed. Mounts can have arbitrary names: any bytes but blanks and line feeds, which the
    kernel escapes.
    """
    end = os.fsencode(place)
    for line in _lines_with(end + b" ", mountinfo):
        mount, _, kind = line.partition(b" - ")
        fields = mount.split(b" ")
        if kind.startswith(b"overlay ") and len(fields) > _MOUNT_POINT and fields[_MOUNT_POINT].endswith(end):
            return os.fsdecode(fields[_MOUNT_POINT])
    return None


def _lines_with(needle: bytes, text: bytes) -> Iterator[bytes]:
    at = text.find(needle)
    while at >= 0:
        end = text.find(b"\n", at)
        yield text[text.rfind(b"\n", 0, at) + 1 : end if end >= 0 else len(text)]
        at = text.find(needle, at + 1)


def _drain(wake: int) -> None:
    try:
        os.eventfd_read(wake)
    except BlockingIOError:
        return
