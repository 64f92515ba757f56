"""Keep the agent's connections open for some seconds after its end, so that the runtime completes its calls.

A call ends with its caller's connection. containerd (2.1.9, measured) aborts a StartContainer whose caller was killed:
for 5 s the container is CREATED, but can neither be started nor removed, then it has exited with code 128 (StartError),
and kubelet fails a pod of restartPolicy Never for that. So a helper process keeps the sockets open, too. It detects the
agent's end by a pipe, and ends a little later.

The helper leaves the agent's cgroup if it can: the kernel may kill all of the cgroup at once (memory.oom.group, which
kubelet sets), and a runtime ends every process of a container whose first one has ended.
"""

import contextlib
import os
import socket
import subprocess
from collections.abc import AsyncIterable, Iterator
from pathlib import Path

import structlog

from kubemend.common import cgroupfs

log = structlog.get_logger(__name__)

_FDS = Path("/proc/self/fd")
_KILL_SECONDS = 5.0


class ConnectionDrain:
    """Keep connections open for ``seconds`` after the agent's end. ``cgroup_root`` is the host's cgroup hierarchy."""

    def __init__(self, *, cgroup_root: Path, seconds: float = 3.0) -> None:
        self._cgroup_root = cgroup_root
        self._seconds = seconds
        self._holder: subprocess.Popen[bytes] | None = None

    async def run(self, connected: AsyncIterable[None]) -> None:
        """Keep the open connections whenever ``connected`` reports a new one."""
        try:
            async for _ in connected:
                self.hold()
        finally:
            self.stop_keeping()

    def hold(self) -> None:
        """Keep the connections that are open now, instead of the previous ones.

        If the helper cannot be started this is logged, and calls end with the agent as they would without it.
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
                log.warning("connection_drain.unavailable", error=str(error))
                return
        self.stop_keeping()
        self._holder = holder
        leave_cgroup(holder.pid, root=self._cgroup_root)

    def stop_keeping(self) -> None:
        """Stop keeping connections."""
        if self._holder is None:
            return
        holder, self._holder = self._holder, None
        holder.kill()
        holder.wait(timeout=_KILL_SECONDS)
        assert holder.stdin is not None
        holder.stdin.close()


@contextlib.contextmanager
def _connections() -> Iterator[list[socket.socket]]:
    """Yield duplicates of the agent's sockets that are connected to a service of this node; close them at the end."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(each) for entry in list(_FDS.iterdir()) for each in _duplicates(entry)]
        yield [each for each in sockets if each.family == socket.AF_UNIX and _peer(each)]


def _duplicates(descriptor: Path) -> Iterator[socket.socket]:
    """Yield a duplicate of a socket. Other descriptors are not touched: closing one would drop a database's locks."""
    with contextlib.suppress(OSError):  # closed since the listing
        if descriptor.readlink().name.startswith("socket:"):
            yield socket.socket(fileno=os.dup(int(descriptor.name)))


def _peer(each: socket.socket) -> str | bytes:
    """Return the name of a socket's peer; empty if it is not connected, or the peer has no name."""
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
            log.info("connection_drain.own_cgroup_kept", cgroup=str(procs), error=str(error))
