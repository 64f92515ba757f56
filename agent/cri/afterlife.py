"""Keep our connections open for some seconds beyond our own end, so that the runtime finishes what it does for us.

A call ends with its caller's connection. containerd (2.1.9, measured) gives up a StartContainer whose caller was
killed: for 5 s the container is CREATED, but can neither be started nor removed, then it has exited with code 128
(StartError), and kubelet fails a pod of restartPolicy Never for that. So a process beside us has our sockets open, too.
It learns of our end by a pipe, and ends a little later.

That process leaves our cgroup where it can: the kernel may kill all of it at once (memory.oom.group, which kubelet
sets), and a runtime ends every process of a container whose first one has ended.
"""

import contextlib
import os
import socket
import subprocess
from collections.abc import AsyncIterable, Iterator
from pathlib import Path

import structlog

from common import cgroupfs

log = structlog.get_logger(__name__)

_FDS = Path("/proc/self/fd")
_KILL_SECONDS = 5.0


class Afterlife:
    """Holds connections open, for so many ``seconds`` after our end. ``cgroup_root`` is the host's cgroup hierarchy."""

    def __init__(self, *, cgroup_root: Path, seconds: float = 3.0) -> None:
        self._cgroup_root = cgroup_root
        self._seconds = seconds
        self._holder: subprocess.Popen[bytes] | None = None

    async def run(self, connected: AsyncIterable[None]) -> None:
        """Hold what is open whenever ``connected`` says that there is a new connection."""
        try:
            async for _ in connected:
                self.hold()
        finally:
            self.let_go()

    def hold(self) -> None:
        """Hold the connections that are open now, instead of those that were held before.

        Where the process cannot be started this is logged, and calls end with us as they do without it.
        """
        with _connections() as sockets:
            try:
                holder = subprocess.Popen(
                    ["/bin/sh", "-c", f"read -r _; exec sleep {self._seconds:g}"],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[each.fileno() for each in sockets],
                    start_new_session=True,
                )
            except OSError as error:
                log.warning("afterlife.unavailable", error=str(error))
                return
        self.let_go()
        self._holder = holder
        leave_cgroup(holder.pid, root=self._cgroup_root)

    def let_go(self) -> None:
        """Hold nothing any more."""
        if self._holder is None:
            return
        holder, self._holder = self._holder, None
        holder.kill()
        holder.wait(timeout=_KILL_SECONDS)
        assert holder.stdin is not None
        holder.stdin.close()


@contextlib.contextmanager
def _connections() -> Iterator[list[socket.socket]]:
    """Yield duplicates of our sockets that are connected to a service of this node; they are closed in the end."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(each) for entry in list(_FDS.iterdir()) for each in _duplicates(entry)]
        yield [each for each in sockets if each.family == socket.AF_UNIX and _peer(each)]


def _duplicates(descriptor: Path) -> Iterator[socket.socket]:
    """Yield a duplicate of what is a socket. Nothing else is touched: closing one would drop a database's locks."""
    with contextlib.suppress(OSError):  # closed since the listing
        if descriptor.readlink().name.startswith("socket:"):
            yield socket.socket(fileno=os.dup(int(descriptor.name)))


def _peer(each: socket.socket) -> str | bytes:
    """Return the name of what it is connected to; empty when it is not, or to something without a name."""
    try:
        name: str | bytes = each.getpeername()
    except OSError:
        return ""
    return name


def leave_cgroup(pid: int, *, root: Path) -> None:
    """Move a process to the root of the hierarchy (version 2) or hierarchies (version 1)."""
    for procs in cgroupfs.tops(root):
        try:
            with procs.open("r+") as group:
                group.write(str(pid))
        except OSError as error:
            log.info("afterlife.within_our_cgroup", cgroup=str(procs), error=str(error))
