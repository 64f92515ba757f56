"""``python -m bench.faults.crowd``: very many connections to the hub, without a token.

One JSON line on stdin has the number of connections, the hub's address, and the source addresses. It connects with TLS
and then sends nothing; a connection that is closed is opened again. It prints a line of JSON when each has been opened
or refused once, and another one when stdin ends.
"""

import asyncio
import contextlib
import dataclasses
import json
import os
import resource
import ssl
import sys
from collections import Counter
from dataclasses import dataclass
from typing import Final, Self

_OTHER_FILES: Final = 64
_AT_ONCE: Final = 256
"""Concurrent TLS handshakes: with more of them this client would finish none in the hub's time limit."""
_A_SECOND: Final = 400
"""Connections opened again per second: this client must leave some of the machine to others."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """Describe the crowd: half of the ``connections`` come from the first of the ``addresses``, the others from all in
    turn.
    """

    host: str
    port: int
    connections: int
    addresses: tuple[str, ...]

    @classmethod
    def of(cls, line: str) -> Self:
        """Parse the result of ``line``."""
        reported = json.loads(line)
        return cls(reported["host"], reported["port"], reported["connections"], tuple(reported["addresses"]))

    def line(self) -> str:
        """Format it as a line."""
        return json.dumps(dataclasses.asdict(self)) + "\n"

    def address(self, number: int) -> str:
        """Return the source address of a connection."""
        return self.addresses[0 if number % 2 else number // 2 % len(self.addresses)]


class Crowd:
    """Connect, and count."""

    def __init__(self, wanted: Wanted) -> None:
        self.counts: Counter[str] = Counter()
        self._wanted = wanted
        self._untried = wanted.connections
        self._all_tried = asyncio.Event()
        self._handshakes = asyncio.Semaphore(_AT_ONCE)
        self._context = ssl.create_default_context()
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE
        self._context.set_alpn_protocols(["h2"])

    async def run(self) -> None:
        """Connect until cancelled."""
        await asyncio.gather(*(self._again_and_again(number) for number in range(self._wanted.connections)))

    async def wait_tried(self) -> None:
        """Wait until each connection has been opened or refused once."""
        await self._all_tried.wait()

    async def _again_and_again(self, number: int) -> None:
        tried = False
        while True:
            writer = None
            with contextlib.suppress(OSError):  # ssl.SSLError is one
                reader, writer = await self._connect(number)
                self.counts["opened"] += 1
                self.counts["open"] += 1
                self.counts["most_open"] = max(self.counts["most_open"], self.counts["open"])
            if not tried:
                tried = True
                self._untried -= 1
                if not self._untried:
                    self._all_tried.set()
            if writer is None:
                self.counts["refused"] += 1
            else:
                with contextlib.suppress(OSError):
                    while await reader.read(4096):
                        pass
                self.counts["open"] -= 1
                self.counts["sent_away"] += 1
                writer.transport.abort()
            await asyncio.sleep(max(1.0, self._wanted.connections / _A_SECOND))

    async def _connect(self, number: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        wanted = self._wanted
        async with self._handshakes:
            return await asyncio.open_connection(
                wanted.host, wanted.port, ssl=self._context, local_addr=(wanted.address(number), 0)
            )


def open_files(wanted: int) -> bool:
    """Raise this process's limit of open files to ``wanted``; return whether it is that high now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, max(hard, wanted)))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0] >= wanted


async def _main() -> None:
    loop = asyncio.get_running_loop()
    wanted = Wanted.of(await loop.run_in_executor(None, sys.stdin.readline))
    if not open_files(wanted.connections + _OTHER_FILES):
        sys.exit(f"no {wanted.connections} files can be open: see ulimit -Hn")
    crowd = Crowd(wanted)
    running = asyncio.create_task(crowd.run())
    await crowd.wait_tried()
    print(json.dumps(crowd.counts), flush=True)
    await loop.run_in_executor(None, sys.stdin.read)
    print(json.dumps(crowd.counts), flush=True)
    if running.done():
        running.result()  # raises its error
    os._exit(0)  # exit without cleanup: the connections end as they are


if __name__ == "__main__":
    asyncio.run(_main())
