"""Load the module of a command only when the command is used or its help is shown.

Each command has its own dependencies: gRPC for the node agent, the gang rounds for the controller. ``kubemend scan`` on
a node in trouble must load none of them.
"""

import errno
import importlib
import sys
from typing import Any

import click


def unwritten(error: OSError) -> str:
    """Return the message of an error that a full disk is the cause of; empty for another error."""
    where = error.filename or "the output"
    return f"cannot write {where}: {error.strerror}" if error.errno == errno.ENOSPC else ""


class LazyGroup(click.Group):
    """``modules`` maps each command to the module that defines it as a function, named with ``_`` for ``-``."""

    def __init__(self, *args: Any, modules: dict[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules = dict(modules)

    def add_modules(self, modules: dict[str, str]) -> None:
        """Add commands, each with the module that defines it."""
        self._modules.update(modules)

    def main(self, *args: Any, **kwargs: Any) -> Any:
        """Run a command. A full disk, which most often holds the file of the output, ends it with one line."""
        try:
            return super().main(*args, **kwargs)
        except OSError as error:
            if not (message := unwritten(error)):
                raise
            click.echo(f"Error: {message}", err=True)
            sys.exit(1)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands without loading any."""
        return sorted({*self.commands, *self._modules})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command, loading its module first if necessary; None: no such command."""
        module = self._modules.get(cmd_name)
        if module is None:
            return super().get_command(ctx, cmd_name)
        found = getattr(importlib.import_module(module), cmd_name.replace("-", "_"))
        assert isinstance(found, click.Command)
        return found
