"""``kubemend doctor``."""

import json
import sys

import click

from agent import settings as settings_module
from agent.cli import progress
from agent.settings import Settings


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@settings_module.options
def doctor(settings: Settings, *, as_json: bool) -> None:
    """Tell whether everything that the agent needs works on this node, and if not, what mends it.

    Run it where the agent runs, with the agent's own settings. It changes nothing. Exit code 0: all works; 1:
    something does not, or it could not be told.
    """
    from agent.doctor import examine, rendering
    from common import logs

    logs.configure(level="error", log_format=settings.log_format)  # type: ignore[arg-type]
    report = progress.run(examine.examine(settings), what="looking at what the agent needs")
    if as_json:
        click.echo(json.dumps(rendering.as_json(report), indent=2))
    else:
        click.echo(rendering.text(report, colour=sys.stdout.isatty()))
    sys.exit(report.exit_code)
