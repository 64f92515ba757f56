"""Implement ``kubemend completion``."""

from typing import Final

import click
from click import shell_completion

PROGRAM: Final = "kubemend"
VARIABLE: Final = "_KUBEMEND_COMPLETE"  # the name that click expects
_SHELLS: Final = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS))
def completion(*, shell: str) -> None:
    """Print the script that makes SHELL complete kubemend's commands, options and values.

    For bash, add to ~/.bashrc (for zsh likewise, to ~/.zshrc):

    \b
        source <(kubemend completion bash)

    kubectl mend completes as soon as kubectl's own completion is enabled (kubectl completion bash) and
    kubectl_complete-mend is on the PATH, where pip installs it next to kubemend. Exit code 0; 2: usage.
    """
    kind = shell_completion.get_completion_class(shell)
    assert kind is not None
    click.echo(kind(click.get_current_context().find_root().command, {}, PROGRAM, VARIABLE).source())
