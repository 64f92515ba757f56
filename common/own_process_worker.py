"""The process that makes the calls of an ``OwnProcess``: ``python -m common.own_process_worker CGROUP_ROOT``.

Each call has a thread of its own; the main one only reads what is asked for, so it can always end. It ends when the
socket at its stdin is closed, that is when its parent has ended or wants no more. Then a call that does not come back
keeps the kernel from taking the process away: it leaves its parent's cgroup, which could not be removed with it inside.
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

from common import cgroupfs

HEADER: Final = struct.Struct("!QI")
"""What goes before each pickled call, and each pickled answer: the call's number, and how many bytes follow."""

Answer = tuple[bool, Any]
"""Whether the call has returned, and what; or what it has raised."""


def main() -> None:
    """Make calls until the socket is closed."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal's are meant for the parent
        signal.signal(number, signal.SIG_IGN)
    parent = socket.socket(fileno=os.dup(0))
    calls = _Calls(parent)
    while header := _received(parent, HEADER.size):
        number, size = HEADER.unpack(header)
        calls.begin(number, _received(parent, size))
    if calls.out:
        _leave(Path(sys.argv[1]))
    os._exit(0)  # past the calls that hang, which would hold up a normal exit for ever


class _Calls:
    """The calls that are ``out``."""

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
                os._exit(0)  # nobody wants to know any more


def _answer(pickled: bytes) -> bytes:
    """Make the call; return its ``Answer``, pickled."""
    try:
        work: Callable[[], Any] = pickle.loads(pickled)  # noqa: S301 - from our own parent
        return pickle.dumps((True, work()))
    except Exception as error:  # noqa: BLE001 - raised where the answer is awaited
        return _failure(error)


def _failure(error: Exception) -> bytes:
    """Return what says that a call has failed: in words, where the error itself cannot be made anew from a pickle."""
    try:
        pickled = pickle.dumps((False, error))
        pickle.loads(pickled)  # noqa: S301 - our own
    except Exception:  # noqa: BLE001 - whatever an error's class makes of it
        return pickle.dumps((False, RuntimeError(repr(error))))
    return pickled


def _received(parent: socket.socket, size: int) -> bytes:
    """Return so many bytes; none when the other side has closed."""
    parts = bytearray()
    while len(parts) < size:
        part = parent.recv(min(size - len(parts), 1 << 16))
        if not part:
            return b""
        parts += part
    return bytes(parts)


def _leave(cgroup_root: Path) -> None:
    for procs in cgroupfs.tops(cgroup_root):
        try:
            procs.write_text(str(os.getpid()))
        except OSError:
            continue  # not ours to leave


if __name__ == "__main__":
    main()
