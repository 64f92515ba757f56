"""``kubemend scan``."""

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from kubemend.agent import settings as settings_module
from kubemend.agent.cli import progress, prove, undetermined

if TYPE_CHECKING:
    from kubemend.agent.scan.report import Report


_PROOF_SECONDS: Final = 60.0
_SEVERITY: Final = (0, 3, 1, 2)
"""Exit codes, the mildest first: a known fault ranks above an unknown state."""


@click.command(cls=undetermined.Command)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option("--agent", "of_agent", is_flag=True, help="Print the verdicts of this node's agent; check no device.")
@click.option("--active", is_flag=True, help="Prove the idle GPUs as well (kubemend prove), in a minute at most.")
@click.option(
    "--timeout",
    default="15s",
    show_default=True,
    callback=undetermined.positive_seconds,
    help="Timeout of the whole scan. Without persistence mode NVML needs seconds for each GPU: give it 60s.",
)
@settings_module.some_options("kernel_log", "proc", "sysfs", "catalog", "state_dir")
def scan(
    *,
    as_json: bool,
    of_agent: bool,
    active: bool,
    timeout: float,
    kernel_log: Path,
    proc: Path,
    sysfs: Path,
    catalog: Path | None,
    state_dir: Path,
) -> None:
    """Check every GPU and NIC of this machine once and print their health; run it as root.

    It needs neither Kubernetes nor an agent, and changes nothing. It cannot detect faults that only show over time
    (growing error counters, a link that was lost, heat). The agent can, and --agent prints the agent's verdicts.

    Exit code, as for monitoring plugins: 0: all are healthy, or there is no device; 1: one is degraded; 2: one is
    unhealthy; 3: no fault was found, but a check was inconclusive.
    """
    from kubemend.agent.prove import rendering as rendering_proof
    from kubemend.agent.scan import rendering
    from kubemend.common import logs

    if active and of_agent:
        raise undetermined.UndeterminedError("--active proves GPUs, and --agent checks no device: give one of them")

    logs.configure(level="error", log_format="console")
    if of_agent:
        report = _held_by_agent(state_dir)
    else:
        report = _scanned(kernel_log=kernel_log, proc=proc, sysfs=sysfs, overrides=catalog, timeout=timeout)
    proof = prove.proven(gpus=(), timeout=max(timeout, _PROOF_SECONDS), sysfs=sysfs) if active else None
    colour = sys.stdout.isatty()
    if as_json:
        proven = {"proof": rendering_proof.as_json(proof)} if proof is not None else {}
        click.echo(json.dumps({**rendering.as_json(report), **proven}, indent=2))
    else:
        click.echo(rendering.text(report, colour=colour))
        if proof is not None:
            click.echo(f"\n{rendering_proof.text(proof, colour=colour)}")
    codes = [report.exit_code, *([proof.exit_code] if proof is not None else [])]
    sys.exit(max(codes, key=_SEVERITY.index))


def _scanned(*, kernel_log: Path, proc: Path, sysfs: Path, overrides: Path | None, timeout: float) -> "Report":
    from kubemend.agent.health.catalog import catalog_file
    from kubemend.agent.scan import checks, judging

    try:
        catalog = catalog_file.load(overrides)
    except catalog_file.CatalogError as error:
        raise undetermined.UndeterminedError(str(error)) from error
    machine = checks.Machine(kernel_log=kernel_log, proc=proc, sysfs=sysfs)
    checking = checks.run(machine, catalog=catalog, timeout=timeout)
    found = progress.run(checking, what="checking GPUs and NICs")
    return judging.judge(found, catalog=catalog, now=time.time())


def _held_by_agent(state_dir: Path) -> "Report":
    from kubemend.agent.control import client, devices, messages
    from kubemend.agent.scan import judging

    try:
        return judging.of_agent(asyncio.run(devices.listed(socket=state_dir / messages.SOCKET)))
    except (client.NotReachableError, client.NotAcceptedError, client.LostError) as error:
        raise undetermined.UndeterminedError(str(error)) from error
    except ValueError as error:
        raise undetermined.UndeterminedError(f"the agent is of another version: {error}") from error
