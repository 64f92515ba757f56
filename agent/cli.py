"""The ``kubemend`` command (also ``kubectl mend``)."""

import asyncio
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TextIO

import click

from agent import settings as settings_module
from agent.restart import intents, options
from agent.settings import Settings

EXIT_UNKNOWN_CODE = 1
EXIT_CANNOT_START = 3
EXIT_INTERRUPTED = 130  # 128 and SIGINT, as shells have it


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kubemend")
def main() -> None:
    """Fast, device-aware, in-place recovery of GPU workloads on Kubernetes."""


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
    from agent.app.web import ListenError
    from agent.health.catalog_file import CatalogError
    from agent.history.store import HistoryError
    from common import logs

    logs.configure(level=settings.log_level, log_format=settings.log_format)  # type: ignore[arg-type]
    try:
        asyncio.run(app.run(settings))
    except (HistoryError, ListenError, CatalogError) as error:
        click.echo(f"kubemend agent: {error}", err=True)
        sys.exit(EXIT_CANNOT_START)


@main.command()
@click.argument("pod")
@click.option("-n", "--namespace", help="The pod's namespace (default: default); also POD as NAMESPACE/NAME.")
@click.option("-c", "--container", "containers", multiple=True, help="The container; may be repeated.")
@click.option(
    "--strategy",
    type=click.Choice([strategy.value for strategy in intents.Strategy]),
    help="How; without it, as the pod is annotated.",
)
@click.option("--grace", help="Time after SIGTERM, such as 10s or 500ms; 0 is SIGKILL at once. Default: as annotated.")
@click.option("--reason", default="", help="Why, in a line, for the pod's condition and the agent's log.")
@click.option("--wait/--no-wait", default=True, show_default=True, help="Follow it to its verified end.")
@click.option("--json", "as_json", is_flag=True, help="Print the progress as JSON, an object a line.")
@settings_module.some_options("state_dir")
def restart(
    *,
    pod: str,
    namespace: str | None,
    containers: tuple[str, ...],
    strategy: str | None,
    grace: str | None,
    reason: str,
    wait: bool,
    as_json: bool,
    state_dir: Path,
) -> None:
    """Restart containers of a pod in place, through the agent of this node; run it there, as root.

    Without --container it restarts those that the pod is annotated for, else its only main container. The pod need
    not have opted in, and its budget is not asked; whatever could harm it is refused all the same. Ctrl-C ends the
    watching only: the agent sees the restart through.

    Exit code 0: restarted and verified (with --no-wait: taken in); 1: refused, failed or not verified; 2: usage;
    3: no agent answers.
    """
    from agent.control import client, following, messages, rendering
    from agent.restart import asking

    where, name = _pod(pod, namespace)
    try:
        asked = asking.Asked(
            strategy=intents.Strategy(strategy) if strategy is not None else None,
            containers=frozenset(containers),
            grace_seconds=options.seconds(grace) if grace is not None else None,
        )
    except ValueError as error:
        raise click.BadParameter(f"--grace {error}") from error
    lines = rendering.Lines()

    def show(event: Mapping[str, Any]) -> None:
        line = json.dumps(event) if as_json else lines.line(event)
        if line is not None:
            click.echo(line)

    request = messages.RestartRequest(namespace=where, pod=name, asked=asked, reason=reason)
    try:
        code = asyncio.run(following.follow(request, socket=state_dir / messages.SOCKET, wait=wait, show=show))
    except client.NotReachableError as error:
        code = _failed(error, following.EXIT_NOT_REACHABLE)
    except client.NotAcceptedError as error:
        code = _failed(error, following.EXIT_USAGE if error.usage else following.EXIT_NOT_DONE)
    except client.LostError as error:
        code = _failed(f"{error}; what was begun is seen through by it or by its successor", following.EXIT_NOT_DONE)
    except KeyboardInterrupt:
        code = _failed("no longer followed; the agent sees through what it has taken in", EXIT_INTERRUPTED)
    sys.exit(code)


def _pod(text: str, namespace: str | None) -> tuple[str, str]:
    """Return namespace and name of ``NAME``, ``pod/NAME`` or ``NAMESPACE/NAME``."""
    first, slash, last = text.rpartition("/")
    given = first if slash and first not in ("pod", "pods", "po") else None
    if not last or "/" in first or given == "" or (given and namespace and given != namespace):
        raise click.BadParameter(f"{text!r} is no pod; write NAME, NAMESPACE/NAME or pod/NAME", param_hint="POD")
    return given or namespace or "default", last


def _failed(why: object, code: int) -> int:
    click.echo(f"kubemend restart: {why}", err=True)
    return code


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
    report = asyncio.run(examine.examine(settings))
    if as_json:
        click.echo(json.dumps(rendering.as_json(report), indent=2))
    else:
        click.echo(rendering.text(report, colour=sys.stdout.isatty()))
    sys.exit(report.exit_code)


@main.command()
@click.argument("code", required=False)
@click.option("--log", "log_file", type=click.File(errors="replace"), help="Read kernel or journal lines; - is stdin.")
@click.option("--catalog", type=click.Path(path_type=Path), help="File with changes to the catalog of fault codes.")
def explain(code: str | None, log_file: TextIO | None, catalog: Path | None) -> None:
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
    click.echo(explanation.text)
    if not explanation.known:
        sys.exit(EXIT_UNKNOWN_CODE)


if __name__ == "__main__":
    main()
