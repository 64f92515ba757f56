"""``kubemend doctor``."""

import json
import sys

import click

from kubemend.agent import settings as settings_module
from kubemend.agent.cli import progress
from kubemend.agent.settings import Settings


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@settings_module.options
def doctor(settings: Settings, *, as_json: bool) -> None:
    """Check the agent's requirements on this node and print how to fix what fails.

    Run it where the agent runs, with the agent's own settings. It changes nothing. Exit code 0: all checks
    passed, perhaps with a warning; 1: a check failed or was inconclusive.
    """
    from kubemend.agent.doctor import examine, rendering
    from kubemend.common import logs

    logs.configure(level="error", log_format=settings.log_format)  # type: ignore[arg-type]
    report = progress.run(examine.examine(settings), what="checking the agent's requirements")
    if as_json:
        click.echo(json.dumps(rendering.as_json(report), indent=2))
    else:
        click.echo(rendering.text(report, colour=sys.stdout.isatty()))
    sys.exit(report.exit_code)
