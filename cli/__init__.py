"""Provide the ``kubemend`` command (also ``kubectl mend``): the commands of agent and controller under one name."""

from kubemend.agent.cli import main

__all__ = ["main"]

main.add_modules({name: f"kubemend.cli.{name}" for name in ("completion", "controller", "status", "timeline")})
