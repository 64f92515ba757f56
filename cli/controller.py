"""``kubemend controller``."""

import asyncio
import sys

import click

from controller import settings as settings_module
from controller.settings import Settings

EXIT_CANNOT_START = 3


@click.command()
@settings_module.options
def controller(settings: Settings) -> None:
    """Run the central controller (what the Deployment runs): gang rounds, and the hub of the agents.

    Several replicas elect one that leads; the others stand by. Every setting can be given as a flag, as a variable, or
    in the file named by --config. Parts that are missing are reported on /readyz and picked up when they appear.
    """
    # Imported here: nobody who asks for the help must wait for gRPC and the Kubernetes client.
    from common import logs
    from common.web import ListenError
    from controller.app import controller as app

    logs.configure(level=settings.log_level, log_format=settings.log_format)  # type: ignore[arg-type]
    try:
        asyncio.run(app.run(settings))
    except ListenError as error:
        click.echo(f"kubemend controller: {error}", err=True)
        sys.exit(EXIT_CANNOT_START)
