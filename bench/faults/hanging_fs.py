"""Provide a file system that never answers: FUSE (fuse(4)); its root exists, and every lookup hangs."""

import contextlib
import ctypes
import os
import select
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

from bench.faults.reporting import NotTriedError

_INIT, _GETATTR = 26, 3  # linux/fuse.h
_HEADER = struct.Struct("<IIQQIIII")
_libc = ctypes.CDLL(None, use_errno=True)
_DETACH = 2


class HangingFs:
    """``asked`` is set by the first lookup that stays unanswered."""

    def __init__(self, device: int) -> None:
        self.asked = threading.Event()
        self._device = device
        self._stop = os.eventfd(0, os.EFD_CLOEXEC)
        self._server = threading.Thread(target=self._serve, daemon=True)
        self._server.start()

    def end(self) -> None:
        """Fail all waiting calls with an error: without a server, they do not hang."""
        if self._server.is_alive():
            os.eventfd_write(self._stop, 1)
            self._server.join(60)
            os.close(self._device)
            os.close(self._stop)

    def _serve(self) -> None:
        """Answer the requests of the mount only."""
        poll = select.poll()
        poll.register(self._device, select.POLLIN)
        poll.register(self._stop, select.POLLIN)
        while self._stop not in {ready for ready, _ in poll.poll()}:
            _, operation, unique, *_ = _HEADER.unpack_from(os.read(self._device, 1 << 20))
            if operation == _INIT:
                self._answer(unique, struct.pack("<IIIIHHIIHHII", 7, 31, 1 << 17, 0, 12, 10, 1 << 17, *[1, 0, 0, 0, 0]))
            elif operation == _GETATTR:
                attributes = struct.pack("<QQQQQQIIIIIIIIII", 1, *[0] * 8, 0o40755, 2, 0, 0, 0, 4096, 0)
                self._answer(unique, struct.pack("<QII", 0, 0, 0) + attributes)
            else:
                self.asked.set()

    def _answer(self, unique: int, body: bytes) -> None:
        body = body.ljust(64, b"\0")  # struct fuse_init_out; the other one is longer
        os.write(self._device, struct.pack("<IiQ", 16 + len(body), 0, unique) + body)


@contextlib.contextmanager
def mounted(at: Path) -> Iterator[HangingFs]:
    """Mount one; at the end all waiting calls get an error. Raises NotTriedError without permission."""
    at.mkdir(parents=True, exist_ok=True)
    try:
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        raise NotTriedError(f"needs /dev/fuse ({error.strerror})") from error
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if _libc.mount(b"hanging", os.fsencode(at), b"fuse", 0, options):
        os.close(device)
        raise NotTriedError(f"cannot mount FUSE here ({os.strerror(ctypes.get_errno())})")
    made = HangingFs(device)
    try:
        yield made
    finally:
        made.end()
        _libc.umount2(os.fsencode(at), _DETACH)
