"""Implement ``kubectl_complete-mend``, which kubectl calls to complete ``kubectl mend``."""

import sys
from collections.abc import Sequence
from typing import Final

import click
from click import shell_completion

from kubemend.cli import main
from kubemend.cli.completion import PROGRAM, VARIABLE

_NO_FILES: Final = 4
"""Cobra's ShellCompDirectiveNoFileComp: only the listed values."""
_DEFAULT: Final = 0
"""Cobra's ShellCompDirectiveDefault: the shell completes file names."""


def complete(arguments: Sequence[str] | None = None) -> None:
    """Print completions as kubectl expects them of a plugin's ``kubectl_complete-NAME`` (kubectl 1.26 and later).

    Its arguments are the command line so far; it completes the last one, which may be empty. The output has cobra's
    form: a line for each value, with a tab before its description, and finally a colon and the directive.
    """
    words = list(sys.argv[1:] if arguments is None else arguments) or [""]
    items = shell_completion.ShellComplete(main, {}, PROGRAM, VARIABLE).get_completions(words[:-1], words[-1])
    for item in items:
        if item.type == "plain":
            click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(f":{_DEFAULT if any(item.type != 'plain' for item in items) else _NO_FILES}")
