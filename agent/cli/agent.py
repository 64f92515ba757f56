"""``kubemend agent``."""

import asyncio
import sys

import click

from agent import settings as settings_module
from agent.settings import Settings

EXIT_CANNOT_START = 3


@click.command()
@settings_module.options
def agent(settings: Settings) -> None:
    """Run the node agent (what the DaemonSet runs).

    Every setting can be given as a flag, as a variable, or in the file named by --config; flags win over variables,
    variables over the file. Parts of the node that are missing are reported on /readyz and picked up when they
    appear.
    """
    # Imported here: nobody who asks for the help must wait for gRPC and the Kubernetes client.
    from agent.app import agent as app
    from agent.health.catalog_file import CatalogError
    from agent.history.store import HistoryError
    from common import logs
    from common.web import ListenError

    logs.configure(level=settings.log_level, log_format=settings.log_format)  # type: ignore[arg-type]
    try:
        asyncio.run(app.run(settings))
    except (HistoryError, ListenError, CatalogError) as error:
        click.echo(f"kubemend agent: {error}", err=True)
        sys.exit(EXIT_CANNOT_START)
