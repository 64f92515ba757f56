"""A child process on pipes that is never killed. asyncio's own subprocess is not used: it sends SIGKILL on close."""

import asyncio
import os
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

LINE_LIMIT = 1 << 20  # bytes; a full snapshot of 8 GPUs with 18 NVLinks each takes about 20 KB


class Child:
    """A child process: its stdin, stdout and stderr, and its exit. Closing stdin asks it to stop.

    Construction starts it, and raises OSError when it cannot be started. Call ``connect`` next, and ``close_pipes`` at
    the end in any case.
    """

    def __init__(self, argv: Sequence[str], *, env: Mapping[str, str]) -> None:
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(argv, env=env, stdin=pipe, stdout=pipe, stderr=pipe)
        self._transports: dict[IO[bytes], asyncio.BaseTransport] = {}
        self._stdin: asyncio.WriteTransport | None = None
        self._ended = asyncio.Event()
        self.stdout = asyncio.StreamReader(limit=LINE_LIMIT)
        self.stderr = asyncio.StreamReader(limit=LINE_LIMIT)
        self._watch_exit()

    @property
    def pid(self) -> int:
        """The process id."""
        return self._process.pid

    @property
    def alive(self) -> bool:
        """Whether the process still runs."""
        return not self._ended.is_set()

    async def connect(self) -> None:
        """Connect the pipes to the event loop."""
        loop = asyncio.get_running_loop()
        stdin, stdout, stderr = self._pipes()
        self._stdin, _ = await loop.connect_write_pipe(asyncio.BaseProtocol, stdin)
        self._transports[stdin] = self._stdin
        self._transports[stdout] = await _read(self.stdout, stdout)
        self._transports[stderr] = await _read(self.stderr, stderr)

    def send(self, line: bytes) -> None:
        """Write to the child's stdin without waiting. Does nothing when either side has closed it."""
        if self._stdin is not None and not self._stdin.is_closing():
            self._stdin.write(line)

    def close_stdin(self) -> None:
        """Ask the child to stop by closing its stdin. May be called again."""
        if self._stdin is None:
            self._pipes()[0].close()
        elif not self._stdin.is_closing():
            self._stdin.abort()

    async def ended(self) -> int:
        """Wait for the process to exit and return its exit status (negative: the signal that ended it)."""
        await self._ended.wait()
        return self._process.returncode

    def close_pipes(self) -> None:
        """Close the pipes. The process is not stopped if it still runs."""
        for pipe in self._pipes():
            (self._transports.get(pipe) or pipe).close()

    def _pipes(self) -> tuple[IO[bytes], IO[bytes], IO[bytes]]:
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None
        assert stdout is not None
        assert stderr is not None
        return stdin, stdout, stderr

    def _watch_exit(self) -> None:
        """Detect the exit by a pidfd: no child watcher, no SIGCHLD handler, no effect on other children."""
        loop = asyncio.get_running_loop()
        pidfd = os.pidfd_open(self._process.pid)

        def reap() -> None:
            loop.remove_reader(pidfd)
            os.close(pidfd)
            self._process.wait()
            self._ended.set()

        loop.add_reader(pidfd, reap)


async def _read(reader: asyncio.StreamReader, pipe: IO[bytes]) -> asyncio.BaseTransport:
    loop = asyncio.get_running_loop()
    transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), pipe)
    return transport
