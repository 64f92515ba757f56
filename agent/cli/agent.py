"""``kubemend agent``."""

import asyncio
import sys

import click

from kubemend.agent import settings as settings_module
from kubemend.agent.settings import Settings

EXIT_CANNOT_START = 3


@click.command()
@settings_module.options
def agent(settings: Settings) -> None:
    """Run the node agent (the command of the DaemonSet).

    Every setting can be given as a flag, as a variable, or in the file named by --config; flags win over variables,
    variables over the file. Components of the node that are missing are reported on /readyz and used as
    soon as they appear.
    """
    # Imported here so that --help does not load gRPC and the Kubernetes client.
    from kubemend.common import footprint

    footprint.use_one_malloc_arena()
    with (
        footprint.without_system_authorities(),
        footprint.without_system_mime_types(),
        footprint.without_collection(),
    ):
        from kubemend.agent.app import agent as app
    from kubemend.agent.app.persisted_state import BootIdError
    from kubemend.agent.clients.journal.store import JournalError
    from kubemend.agent.health.catalog.catalog_file import CatalogError
    from kubemend.common import logs
    from kubemend.common.web import ListenError

    logs.configure(level=settings.log_level, log_format=settings.log_format)  # type: ignore[arg-type]
    settings_module.report_unknown_variables()
    try:
        asyncio.run(app.run(settings))
    except (JournalError, ListenError, CatalogError, BootIdError) as error:
        click.echo(f"kubemend agent: {error}", err=True)
        sys.exit(EXIT_CANNOT_START)
