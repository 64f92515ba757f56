"""A group of commands that loads the module of a command when that command is used, or its help is shown.

Each command has its own needs: the node agent those of gRPC, the controller those of its rounds. ``kubemend scan`` on
a node in trouble must not wait for any of them.
"""

import importlib
from typing import Any

import click


class LazyGroup(click.Group):
    """``modules`` names for each command the module that has it, under its name with ``_`` for ``-``."""

    def __init__(self, *args: Any, modules: dict[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._modules = dict(modules)

    def add_modules(self, modules: dict[str, str]) -> None:
        """Take in more commands, by the modules that have them."""
        self._modules.update(modules)

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Return the names of all commands; it loads none of them."""
        return sorted({*self.commands, *self._modules})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of that name, and load its module first if need be; None: there is no such command."""
        module = self._modules.get(cmd_name)
        if module is None:
            return super().get_command(ctx, cmd_name)
        found = getattr(importlib.import_module(module), cmd_name.replace("-", "_"))
        assert isinstance(found, click.Command)
        return found
