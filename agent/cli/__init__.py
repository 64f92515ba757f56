"""The ``kubemend`` command (also ``kubectl mend``)."""

import asyncio
import json
import sys
from pathlib import Path
from typing import TextIO

import click

from agent import settings as settings_module
from agent.cli import devices, progress
from agent.cli.restart import restart
from agent.cli.scan import scan
from agent.settings import Settings

EXIT_UNKNOWN_CODE = 1
EXIT_CANNOT_START = 3


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kubemend")
def main() -> None:
    """Fast, device-aware, in-place recovery of GPU workloads on Kubernetes."""


main.add_command(restart)
main.add_command(scan)
main.add_command(devices.clear)
main.add_command(devices.release_devices)


@main.command()
@settings_module.options
def agent(settings: Settings) -> None:
    """Run the node agent (what the DaemonSet runs).

    Every setting can be given as a flag, as a variable, or in the file named by --config; flags win over variables,
    variables over the file. Parts of the node that are missing are reported on /readyz and picked up when they
    appear.
    """
    # Imported here: the other commands must not wait for gRPC and the Kubernetes client.
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


@main.command()
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


@main.command()
@click.argument("code", required=False)
@click.option("--log", "log_file", type=click.File(errors="replace"), help="Read kernel or journal lines; - is stdin.")
@click.option("--catalog", type=click.Path(path_type=Path), help="File with changes to the catalog of fault codes.")
@click.option("--json", "as_json", is_flag=True, help="Print what the catalog has on CODE as JSON.")
def explain(*, code: str | None, log_file: TextIO | None, catalog: Path | None, as_json: bool) -> None:
    """Tell what a fault code means and what is done about it: explain 79, explain 'SXid 20034'.

    With --log, read log lines and print one JSON object per finding; lines that mean nothing print nothing.
    Exit code 1: the catalog does not have the code.
    """
    from agent.health import catalog_file
    from agent.health import explain as explaining

    if (code is None) == (log_file is None):
        raise click.UsageError("give a CODE, or --log FILE (- for stdin)")
    try:
        known = catalog_file.merged(catalog_file.builtin(), catalog.read_text()) if catalog else catalog_file.builtin()
    except (catalog_file.CatalogError, OSError) as error:
        raise click.ClickException(str(error)) from error
    if log_file is not None:
        for finding in explaining.findings_from_lines(log_file, catalog=known):
            click.echo(json.dumps(finding))
        return
    assert code is not None
    try:
        explanation = explaining.explain_code(code, catalog=known)
    except ValueError as error:
        raise click.ClickException(str(error)) from error
    click.echo(json.dumps(explanation.as_json()) if as_json else explanation.text)
    if not explanation.known:
        sys.exit(EXIT_UNKNOWN_CODE)
