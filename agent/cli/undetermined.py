"""Give commands whose exit codes 1 and 2 are results another exit code for all that is not known: 3."""

import os
import sys
from typing import Any

import click

from kubemend.agent.cli.lazy import unwritten
from kubemend.common import durations

EXIT_UNKNOWN = 3

_OF_CLICK = (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError)
"""Errors that click itself turns into messages and exit codes, or that ``Command`` does."""


class UndeterminedError(click.ClickException):
    """Nothing could be determined."""

    exit_code = EXIT_UNKNOWN


class Command(click.Command):
    """Exit with 3 on wrong usage, after an internal error or an interrupt, and if the output cannot be written.

    Click's own exit code 2 would mean an unhealthy device, and Python's exit code 1 a degraded one.
    """

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the arguments. Raises UndeterminedError."""
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            raise UndeterminedError(error.format_message()) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. Raises UndeterminedError after an internal error, whose traceback is logged."""
        from kubemend.common import contained

        try:
            with contained.within(contained.Part.DEVICE, ctx.command_path, passing=_OF_CLICK) as work:
                return self._invoke(ctx)
        except KeyboardInterrupt as error:
            raise UndeterminedError("interrupted") from error
        except BrokenPipeError as error:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the rest, which is flushed at the end
            raise click.exceptions.Exit(EXIT_UNKNOWN) from error
        assert work.error is not None
        raise UndeterminedError(contained.describe(work.error)) from work.error

    def _invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OSError as error:
            if not (message := unwritten(error)):
                raise
            raise UndeterminedError(message) from error


def positive_seconds(_: click.Context, __: click.Parameter, text: str) -> float:
    """Return an option's duration in seconds, more than 0. Raises click.BadParameter."""
    try:
        seconds = durations.seconds(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if not seconds:
        raise click.BadParameter("must be more than 0")
    return seconds
