"""``kubemend explain``."""

import json
import sys
from pathlib import Path
from typing import TextIO

import click

from kubemend.agent.cli import undetermined

EXIT_UNKNOWN_CODE = 1


@click.command(cls=undetermined.Command)
@click.argument("code", required=False)
@click.option("--log", "log_file", type=click.File(errors="replace"), help="Read kernel or journal lines; - is stdin.")
@click.option("--catalog", type=click.Path(path_type=Path), help="File with changes to the catalog of fault codes.")
@click.option("--json", "as_json", is_flag=True, help="Print the catalog's entry for CODE as JSON.")
def explain(*, code: str | None, log_file: TextIO | None, catalog: Path | None, as_json: bool) -> None:
    """Explain a fault code and the action that it triggers: explain 79, explain 'SXid 20034'.

    With --log, read log lines and print one JSON object per finding; lines without a finding print nothing.
    Exit code 1: the catalog does not have the code; 3: wrong usage or an invalid catalog, or the command failed.
    """
    from kubemend.agent.health.catalog import catalog_file
    from kubemend.agent.health.catalog import explain as explaining

    if (code is None) == (log_file is None):
        raise undetermined.UndeterminedError("give a CODE, or --log FILE (- for stdin)")
    try:
        known = catalog_file.load(catalog)
    except catalog_file.CatalogError as error:
        raise undetermined.UndeterminedError(str(error)) from error
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
