"""Make the runs of a long benchmark one after another, up to an early end."""

import asyncio
import signal
from collections.abc import Iterable, Iterator
from typing import Final, TypeVar

import click

_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)
_REPORT_EVERY: Final = 10

_T = TypeVar("_T")


def until_signal(plans: Iterable[_T]) -> Iterator[_T]:
    """Yield the plan of each run, and none after SIGINT or SIGTERM: then the figures of the runs so far are printed.

    Writes a line on stderr after every ten runs.
    """
    ended, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in _SIGNALS:
        loop.add_signal_handler(number, ended.set)
    try:
        for made, plan in enumerate(plans):
            if ended.is_set():
                return
            if made and made % _REPORT_EVERY == 0:
                click.echo(f"{made} runs", err=True)
            yield plan
    finally:
        for number in _SIGNALS:
            loop.remove_signal_handler(number)
