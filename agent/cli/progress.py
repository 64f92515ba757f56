"""What a person sees while a command takes longer than a second: what it waits for, and for how long already."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, Final, TextIO, TypeVar

_PATIENCE_SECONDS: Final = 1.0
_CLEAR_LINE: Final = "\r\x1b[K"

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T], *, what: str, to: TextIO | None = None) -> T:
    """Run ``work`` to its end in an event loop of its own, and return what it returns.

    After a second ``what`` it does is told on stderr, and again each second in the same line, which goes in the end.
    Only on a terminal: what reads a pipe or a log has no use for it.
    """
    stream = sys.stderr if to is None else to
    return asyncio.run(_told(work, what=what, stream=stream) if stream.isatty() else work)


async def _told(work: Coroutine[Any, Any, T], *, what: str, stream: TextIO) -> T:
    loop = asyncio.get_running_loop()
    began = loop.time()
    task = loop.create_task(work, name=what)
    told = False
    try:
        while not (await asyncio.wait({task}, timeout=_PATIENCE_SECONDS))[0]:
            stream.write(f"{_CLEAR_LINE}{what}: {loop.time() - began:.0f} s")
            stream.flush()
            told = True
        return task.result()
    finally:
        task.cancel()
        if told:
            stream.write(_CLEAR_LINE)
            stream.flush()
