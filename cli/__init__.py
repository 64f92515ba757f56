"""The ``kubemend`` command (also ``kubectl mend``): the agent's commands and the controller's under one name."""

from agent.cli import main

__all__ = ["main"]

main.add_modules({name: f"cli.{name}" for name in ("completion", "controller", "status", "timeline")})
