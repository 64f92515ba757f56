"""Implement ``kubemend controller``."""

import asyncio
import sys

import click

from kubemend.controller import settings as settings_module
from kubemend.controller.settings import Settings

EXIT_CANNOT_START = 3


@click.command()
@settings_module.options
def controller(settings: Settings) -> None:
    """Run the central controller (the command of the Deployment): gang rounds, and the hub of the agents.

    Several replicas elect a leader; the others stand by. Every setting can be given as a flag, as a variable, or in the
    file named by --config. Missing components are reported on /readyz and used when they appear.
    """
    # Imported here so that --help does not wait for gRPC and the Kubernetes client.
    from kubemend.common import footprint, logs
    from kubemend.common.web import ListenError

    with (
        footprint.without_system_authorities(),
        footprint.without_system_mime_types(),
        footprint.without_collection(),
    ):
        from kubemend.controller.app import controller as app

    logs.configure(level=settings.log_level, log_format=settings.log_format)  # type: ignore[arg-type]
    settings_module.report_unknown_variables()
    refused: BaseException | None = None
    try:
        asyncio.run(app.run(settings))
    except* ListenError as errors:  # the hub begins to listen in a task, once it has its certificates
        refused = errors
        while isinstance(refused, BaseExceptionGroup):
            refused = refused.exceptions[0]
    if refused is not None:
        click.echo(f"kubemend controller: {refused}", err=True)
        sys.exit(EXIT_CANNOT_START)
