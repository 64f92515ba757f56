"""A command that takes long prints what it waits for, on a terminal only."""

import asyncio
import io

import pytest

from kubemend.agent.cli import progress


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


async def _after(reported: asyncio.Event) -> str:
    await reported.wait()
    return "done"


class Watched(Terminal):
    """Let the work end as soon as a message was printed."""

    def __init__(self) -> None:
        super().__init__()
        self.reported = asyncio.Event()

    def flush(self) -> None:
        self.reported.set()


def test_long_work_is_announced_and_the_line_is_cleared() -> None:
    to = Watched()
    assert progress.run(_after(to.reported), what="asking", to=to) == "done"
    assert "asking: " in to.getvalue()
    assert to.getvalue().endswith("\r\x1b[K")


async def _at_once() -> int:
    return 3


@pytest.mark.parametrize("to", [Terminal(), io.StringIO()])
def test_short_and_piped_work_print_nothing(to: io.StringIO) -> None:
    assert progress.run(_at_once(), what="asking", to=to) == 3
    assert to.getvalue() == ""


async def _fails() -> None:
    raise ValueError("no")


def test_an_error_of_the_work_is_passed_on() -> None:
    with pytest.raises(ValueError, match="no"):
        progress.run(_fails(), what="asking", to=Terminal())
