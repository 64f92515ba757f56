"""The ``kubemend`` command (also ``kubectl mend``): the agent's commands and the controller's under one name."""

from agent.cli import main
from cli.completion import completion
from cli.controller import controller
from cli.status import status
from cli.timeline import timeline

__all__ = ["main"]

main.add_command(completion)
main.add_command(controller)
main.add_command(status)
main.add_command(timeline)
