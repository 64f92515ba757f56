"""Exchange a request and an answer with a launcher on the socket inside its container.

The path to the socket is the container's, and a file system in it may hang: call this in a ``SideProcess``.

Both sides are authenticated by the kernel. The listener must be the container's main process, as the runtime reports
it, and that must still be a process of this container afterwards, so that its pid is not another's. The launcher, in
turn, obeys only processes outside the container.
"""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from kubemend.agent.health import cgroup_paths
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import process
from kubemend.common import kernel_files, openat2, unix_sockets

_DIRECTORY = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
_MOST_BYTES = 64 * 1024
_LONGEST_REASON = 200
"""Characters of an error, which may quote the answer."""
_START_TIME_FIELD = 22  # proc_pid_stat(5), counted from 1
_PARENT_FIELD = 4
_THREADS_FIELD = 20


class NoAnswerError(Exception):
    """The launcher did not answer, or not validly. The text is one line."""


@dataclass(frozen=True, slots=True)
class LauncherAddress:
    """A running container by its main process ``pid``; ``folder`` is that of the socket, inside the container."""

    pid: int
    container_id: ContainerId
    folder: str
    proc: Path


Passing = Callable[[process.Launcher], bool]
"""Returns whether an answer is not the last one that is waited for."""


def exchange(
    address: LauncherAddress, request: bytes, *, passing: Passing, timeout: float, least: float
) -> process.Launcher:
    """Send a request and return the first answer that is not ``passing``.

    After ``timeout`` seconds return the latest answer. Raises NoAnswerError; without any answer after ``least``
    seconds, and when the launcher answers with nonsense or without end.
    """
    began = time.monotonic()
    main = _open(address)
    try:
        with _connected(main, address, timeout=least) as connection:
            connection.sendall(request)
            latest = _answers(connection, passing=passing, until=began + timeout, least=began + least)
        _check(main, address)
    except TimeoutError:
        raise NoAnswerError(f"the launcher did not answer within {least:g} s") from None
    except OSError as error:
        raise NoAnswerError(f"no connection to the launcher: {error.strerror or error}") from None
    else:
        return latest
    finally:
        os.close(main)


def in_states(states: frozenset[process.State], launcher: process.Launcher) -> bool:
    """Return whether a launcher is in one of these states."""
    return launcher.state in states


def is_known(known: process.Launcher | None, launcher: process.Launcher) -> bool:
    """Return whether an answer shows nothing new."""
    return not process.is_news(launcher, known)


def remains(
    address: LauncherAddress, *, spare: int, pids: frozenset[int], others: tuple[int, ...] = ()
) -> tuple[int, ...]:
    """Return the living processes below the main one, except for the spare, the ``others`` and those below them.

    ``spare`` and ``others`` are starts in clock ticks since boot, ``pids`` are the container's processes. A process
    that ``kubectl exec`` added to the container is not below its main process.
    """
    children: dict[int, list[int]] = {}
    starts = {each for each in (spare, *others) if each}
    for pid in pids:
        text = kernel_files.read(address.proc / str(pid) / "stat")
        if text is None:
            continue
        stat = kernel_files.parse_stat(text)
        if stat.state in ("Z", "X") and int(stat.rest[_THREADS_FIELD - 4]) <= 1:  # others live on without the first
            continue
        parent = int(stat.rest[_PARENT_FIELD - 4])
        if parent != address.pid or int(stat.rest[_START_TIME_FIELD - 4]) not in starts:
            children.setdefault(parent, []).append(pid)
    found, left = list[int](), [address.pid]
    while left:
        below = children.get(left.pop(), ())
        found += below
        left += below
    return tuple(sorted(found))


def _open(address: LauncherAddress) -> int:
    try:
        main = os.open(address.proc / str(address.pid), _DIRECTORY)
    except OSError:
        raise NoAnswerError("the container's main process has ended") from None
    try:
        _check(main, address)
    except BaseException:
        os.close(main)
        raise
    return main


def _check(main: int, address: LauncherAddress) -> None:
    """Raise NoAnswerError unless the process of this directory is one of the container: it may have ended."""
    groups = kernel_files.read("cgroup", directory=main)
    if groups is None or cgroup_paths.container_id(groups) != address.container_id:
        raise NoAnswerError("the container's main process has ended")


def _connected(main: int, address: LauncherAddress, *, timeout: float) -> socket.socket:
    namespace = os.stat("ns/mnt", dir_fd=main).st_ino
    path = f"{address.folder.rstrip('/')}/launcher-{namespace}.sock"
    root = os.open("root", _DIRECTORY, dir_fd=main)
    try:
        file = openat2.open_in_root(root, path, flags=os.O_PATH)
    except FileNotFoundError:
        raise NoAnswerError(f"the launcher has no socket in {address.folder}") from None
    finally:
        os.close(root)
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.settimeout(timeout)
        connection.connect(f"/proc/self/fd/{file}")
        listener = unix_sockets.credentials(connection).pid
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(file)
    if listener != address.pid:
        connection.close()
        raise NoAnswerError("another process than the launcher listens on its socket")
    return connection


def _answers(connection: socket.socket, *, passing: Passing, until: float, least: float) -> process.Launcher:
    latest: process.Launcher | None = None
    text, count = b"", 0
    while True:
        left = (until if latest is not None else least) - time.monotonic()
        try:
            received = _received(connection, timeout=left)
        except TimeoutError:
            if latest is not None:
                return latest
            raise
        if not received:
            raise NoAnswerError("the launcher has closed the connection")
        count += len(received)
        *lines, text = (text + received).split(b"\n")
        if count > _MOST_BYTES or len(text) > process.LONGEST_ANSWER:
            raise NoAnswerError("the launcher's answer does not end")
        for line in lines:
            try:
                latest = replace(process.answer(line), answered=time.monotonic())
            except ValueError as error:
                raise NoAnswerError(f"the launcher's answer is not valid: {str(error)[:_LONGEST_REASON]}") from None
            if not passing(latest):
                return latest


def _received(connection: socket.socket, *, timeout: float) -> bytes:
    if timeout <= 0:
        raise TimeoutError
    connection.settimeout(timeout)
    return connection.recv(process.LONGEST_ANSWER)
