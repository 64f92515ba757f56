"""Run the calls of a ``SideProcess``: ``python -m kubemend.common.side_process_worker CGROUP_ROOT``.

Each call has a thread of its own; the main thread only reads requests, so it can always end. It ends when the socket at
its stdin is closed: the parent has ended or has closed it. A call that does not return then keeps the kernel from
removing the process, so the process leaves its parent's cgroup, which could not be removed otherwise.
"""

import os
import pickle
import signal
import socket
import struct
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from kubemend.common import cgroupfs

HEADER: Final = struct.Struct("!QI")
"""Precedes each pickled call and each pickled answer: the call's number, and the number of bytes that follow."""

Answer = tuple[bool, Any]
"""Whether the call has returned, and its result or exception."""


def main() -> None:
    """Run calls until the socket is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # signals of a terminal are meant for the parent
        signal.signal(number, signal.SIG_IGN)
    parent = socket.socket(fileno=os.dup(0))
    calls = _Calls(parent)
    while header := _received(parent, HEADER.size):
        number, size = HEADER.unpack(header)
        calls.begin(number, _received(parent, size))
    if calls.out:
        cgroupfs.leave(Path(sys.argv[1]))
    os._exit(0)  # skip the hanging calls, which would block a normal exit indefinitely


class _Calls:
    """Hold the outstanding calls (``out``)."""

    def __init__(self, parent: socket.socket) -> None:
        self.out: set[int] = set()
        self._parent = parent
        self._one_answer = threading.Lock()

    def begin(self, number: int, work: bytes) -> None:
        self.out.add(number)
        threading.Thread(target=self._make, args=(number, work), daemon=True).start()

    def _make(self, number: int, pickled: bytes) -> None:
        answer = _answer(pickled)
        with self._one_answer:
            self.out.discard(number)
            try:
                self._parent.sendall(HEADER.pack(number, len(answer)) + answer)
            except OSError:
                os._exit(0)  # the parent no longer reads


def _answer(pickled: bytes) -> bytes:
    """Run the call; return its ``Answer``, pickled."""
    try:
        work: Callable[[], Any] = pickle.loads(pickled)  # noqa: S301 - from the own parent
        return pickle.dumps((True, work()))
    except Exception as error:  # noqa: BLE001 - raised where the answer is awaited
        return _failure(error)


def _failure(error: Exception) -> bytes:
    """Return the answer of a failed call, as a text if the error cannot be restored from a pickle."""
    try:
        pickled = pickle.dumps((False, error))
        pickle.loads(pickled)  # noqa: S301 - the own data
    except Exception:  # noqa: BLE001 - an error's class can raise anything
        return pickle.dumps((False, RuntimeError(repr(error))))
    return pickled


def _received(parent: socket.socket, size: int) -> bytes:
    """Return ``size`` bytes; none when the other side has closed."""
    parts = bytearray()
    while len(parts) < size:
        part = parent.recv(min(size - len(parts), 1 << 16))
        if not part:
            return b""
        parts += part
    return bytes(parts)


if __name__ == "__main__":
    main()
