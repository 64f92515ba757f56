"""Implement ``kubemend status``."""

import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kubemend.agent.cli import progress

if TYPE_CHECKING:
    from kubemend.cli.gangs_view import GangView, Report


@click.command()
@click.argument("gang", required=False)
@click.option("-n", "--namespace", help="The namespace to read. Default: the kubeconfig's current namespace.")
@click.option("-A", "--all-namespaces", is_flag=True, help="Read all namespaces.")
@click.option("--json", "as_json", is_flag=True, help="Print all information as JSON.")
@click.option("--kubeconfig", type=click.Path(path_type=Path), help="Default: as kubectl finds it.")
def status(
    *, gang: str | None, namespace: str | None, all_namespaces: bool, as_json: bool, kubeconfig: Path | None
) -> None:
    """Show the state of gangs from the API server: members, devices, remaining budget, last rounds.

    Without GANG, list all gangs that kubemend manages, a line each. GANG (NAME or KIND/NAME, such as JobSet/train)
    shows one with all its members and its last rounds. The budget follows from the controller's defaults and the
    annotation kubemend.io/max-restarts.

    To restart a gang, create a Restart object:

    \b
        kubectl create -f - <<EOF
        apiVersion: restarts.kubemend.io/v1alpha1
        kind: Restart
        metadata: {generateName: train-}
        spec:
          gang: {kind: JobSet, name: train}
          reason: new NCCL settings
        EOF

    Exit code 0: every member is ready or has completed, and none of their devices is known to be bad; 1: otherwise;
    2: usage; 3: information is missing, such as objects that you may not read.
    """
    from kubemend.cli import reaching, status_text

    if all_namespaces and namespace is not None:
        raise click.UsageError("give either --namespace or --all-namespaces")
    where = None if all_namespaces else namespace or reaching.current_namespace(kubeconfig)
    now = time.time()
    asking = _read_report(where, kubeconfig=kubeconfig, now=now)
    report = progress.run(asking, what="asking the API server for pods and Restart objects")
    style = status_text.Style(now=now, colour=sys.stdout.isatty())
    if gang is None:
        shown = dataclasses.replace(report, gangs=tuple(each for each in report.gangs if each.is_ours))
        text = status_text.overview(report, style=style)
    else:
        shown = dataclasses.replace(report, gangs=_named(gang, report, where=where))
        text = "\n\n".join(status_text.details(each, shown, style=style) for each in shown.gangs)
    click.echo(json.dumps(status_text.as_json(shown), indent=2) if as_json else text)
    sys.exit(_EXIT_CODES[shown.state.value])


_EXIT_CODES = {"Well": 0, "Ill": 1, "Unknown": 3}


async def _read_report(namespace: str | None, *, kubeconfig: Path | None, now: float) -> "Report":
    """Return the report from the API server. Raises UndeterminedError when it does not provide the pods."""
    from kubemend.cli import gangs_view, reaching
    from kubemend.common.kube import errors

    async with reaching.api(kubeconfig) as api:
        pods = await reaching.gang_pods(api, namespace=namespace)
        try:
            restarts = await reaching.restarts(api, namespace=namespace)
        except (reaching.NotInstalledError, errors.ForbiddenError) as error:
            return gangs_view.report(pods, None, now=now, notes=(f"{error}; rounds and budgets are unknown",))
    return gangs_view.report(pods, restarts, now=now)


def _named(text: str, report: "Report", *, where: str | None) -> tuple["GangView", ...]:
    """Return the gangs of that name. Raises UndeterminedError when there is none."""
    from kubemend.cli import reaching

    kind, _, name = text.rpartition("/")
    found = tuple(
        each for each in report.gangs if each.key.name == name and (not kind or each.key.kind.lower() == kind.lower())
    )
    if not found:
        place = f"in namespace {where}" if where is not None else "in any namespace"
        raise reaching.UndeterminedError(f"there is no gang {text} {place}: kubemend status -A lists them")
    return found
