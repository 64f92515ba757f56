"""Give commands whose exit code 2 means a broken device another exit code for wrong usage: 3."""

from typing import Any

import click

from kubemend.common import durations

EXIT_UNKNOWN = 3


class UndeterminedError(click.ClickException):
    """Nothing could be determined."""

    exit_code = EXIT_UNKNOWN


class Command(click.Command):
    """Exit with 3 on wrong usage. Click's own exit code 2 would mean an unhealthy device."""

    def make_context(self, *args: Any, **kwargs: Any) -> click.Context:
        """Parse the arguments. Raises UndeterminedError."""
        try:
            return super().make_context(*args, **kwargs)
        except click.UsageError as error:
            raise UndeterminedError(error.format_message()) from error


def positive_seconds(_: click.Context, __: click.Parameter, text: str) -> float:
    """Return an option's duration in seconds, more than 0. Raises click.BadParameter."""
    try:
        seconds = durations.seconds(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from error
    if not seconds:
        raise click.BadParameter("must be more than 0")
    return seconds
