"""Show progress of a command that takes longer than a second: its current step and the elapsed time."""

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, Final, TextIO, TypeVar

_INTERVAL_SECONDS: Final = 1.0
_CLEAR_LINE: Final = "\r\x1b[K"

T = TypeVar("T")


def run(work: Coroutine[Any, Any, T], *, what: str, to: TextIO | None = None) -> T:
    """Run ``work`` in an event loop of its own and return its result.

    After one second, print ``what`` and the elapsed time on stderr, update the line each second and erase it at the
    end. Print only on a terminal, because pipes and logs have no use for it.
    """
    stream = sys.stderr if to is None else to
    return asyncio.run(_with_progress(work, what=what, stream=stream) if stream.isatty() else work)


async def _with_progress(work: Coroutine[Any, Any, T], *, what: str, stream: TextIO) -> T:
    loop = asyncio.get_running_loop()
    began = loop.time()
    task = loop.create_task(work, name=what)
    shown = False
    try:
        while not (await asyncio.wait({task}, timeout=_INTERVAL_SECONDS))[0]:
            stream.write(f"{_CLEAR_LINE}{what}: {loop.time() - began:.0f} s")
            stream.flush()
            shown = True
        return task.result()
    finally:
        task.cancel()
        if shown:
            stream.write(_CLEAR_LINE)
            stream.flush()
