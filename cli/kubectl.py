"""``kubectl_complete-mend``: what kubectl calls to complete ``kubectl mend``."""

import sys
from collections.abc import Sequence
from typing import Final

import click
from click import shell_completion

from cli import main
from cli.completion import PROGRAM, VARIABLE

_NO_FILES: Final = 4
"""Cobra's ShellCompDirectiveNoFileComp: there is nothing but what was listed."""
_DEFAULT: Final = 0
"""Cobra's ShellCompDirectiveDefault: the shell completes file names."""


def complete(arguments: Sequence[str] | None = None) -> None:
    """Print completions as kubectl expects them of a plugin's ``kubectl_complete-NAME`` (kubectl 1.26 and later).

    It is called with the words so far, the last of which (perhaps empty) is to be completed, and reads cobra's form: a
    line for each value, a tab before its description, and at last a colon and the directive.
    """
    words = list(sys.argv[1:] if arguments is None else arguments) or [""]
    items = shell_completion.ShellComplete(main, {}, PROGRAM, VARIABLE).get_completions(words[:-1], words[-1])
    for item in items:
        if item.type == "plain":
            click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(f":{_DEFAULT if any(item.type != 'plain' for item in items) else _NO_FILES}")
