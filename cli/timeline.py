"""Implement ``kubemend timeline``."""

import dataclasses
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kubemend.agent.cli import progress

if TYPE_CHECKING:
    from kubemend.cli.bars import Chart

EXIT_NOTHING = 1

_NO_MATPLOTLIB = "pictures need matplotlib: pip install '.[plots]' in a checkout of kubemend"


class _NothingError(click.ClickException):
    """There is nothing to draw, or matplotlib is missing."""

    exit_code = EXIT_NOTHING


@click.command()
@click.argument("restart")
@click.option("-n", "--namespace", help="The Restart's namespace. Default: the kubeconfig's current one.")
@click.option("-o", "--output", type=click.Choice(["text", "svg", "json"]), default="text", show_default=True)
@click.option("--json", "output", flag_value="json", help="The same as -o json.")
@click.option(
    "--output-file", type=click.Path(path_type=Path, dir_okay=False), help="Write to this file instead of the terminal."
)
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Default: as kubectl finds it.")
def timeline(
    *, restart: str, namespace: str | None, output: str, output_file: Path | None, kubeconfig: Path | None
) -> None:
    """Draw the round of RESTART: each member's phases, when all old containers were dead, when all members ran again.

    RESTART is the name of a Restart object (kubectl get restarts, kubemend status GANG), or NAMESPACE/NAME. Of many
    members the 40 slowest are drawn. For a post-mortem:

        kubemend timeline train-3-1f2e -o svg --output-file round.svg

    The picture is the same, byte for byte, each time it is drawn. It needs matplotlib (pip install
    '.[plots]' in a checkout).

    Exit code 0: drawn; 1: there is nothing to draw (the round has not ended, nothing was done), or matplotlib is not
    installed, or the file cannot be written; 2: usage; 3: there is no such object, or the API server does not answer.
    """
    from kubemend.cli import reaching

    where, name = _named(restart, namespace)
    where = where or reaching.current_namespace(kubeconfig)
    reading = _read(where, name, kubeconfig=kubeconfig)
    chart = _chart(progress.run(reading, what="asking the API server for the Restart object"))
    if output == "svg":
        text = _svg(chart)
    elif output == "json":
        text = json.dumps(_object(chart), indent=2) + "\n"
    else:
        text = _text(chart, terminal=output_file is None)
    if output_file is None:
        click.echo(text, nl=False)
        return
    try:
        output_file.write_text(text, "utf-8")
    except OSError as error:
        raise _NothingError(f"cannot write {output_file}: {error.strerror}") from error


def _named(text: str, namespace: str | None) -> tuple[str | None, str]:
    """Return namespace and name of ``NAME``, ``restart/NAME`` or ``NAMESPACE/NAME``."""
    first, slash, last = text.rpartition("/")
    given = first if slash and first not in ("restart", "restarts", "rst") else None
    if not last or "/" in first or given == "" or (given and namespace and given != namespace):
        raise click.BadParameter(f"{text!r} is not a Restart; write NAME or NAMESPACE/NAME", param_hint="RESTART")
    return given or namespace, last


async def _read(namespace: str, name: str, *, kubeconfig: Path | None) -> dict[str, Any]:
    from kubemend.cli import reaching

    async with reaching.api(kubeconfig) as api:
        return await reaching.restart(api, namespace=namespace, name=name)


def _chart(restart: dict[str, Any]) -> "Chart":
    from kubemend.cli import bars
    from kubemend.controller.restarts import objects

    try:
        read = objects.parse(restart)
    except (KeyError, ValueError, TypeError, AttributeError) as error:
        raise _NothingError(f"the Restart has an unknown format: {error!r}") from error
    try:
        return bars.chart(read)
    except bars.NothingToDrawError as error:
        raise _NothingError(str(error)) from error


def _text(chart: "Chart", *, terminal: bool) -> str:
    from kubemend.cli import bars_text

    width = shutil.get_terminal_size().columns
    return bars_text.draw(chart, width=width, colour=terminal and sys.stdout.isatty()) + "\n"


def _svg(chart: "Chart") -> str:
    try:
        from kubemend.cli import bars_svg
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "matplotlib":
            raise
        raise _NothingError(_NO_MATPLOTLIB) from error
    return bars_svg.draw(chart)


def _object(chart: "Chart") -> dict[str, Any]:
    """Return the chart for programs; times are milliseconds since the fault."""
    return dataclasses.asdict(chart) | {"left_out": chart.left_out}
