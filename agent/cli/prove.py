"""``kubemend prove``."""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from kubemend.agent import settings as settings_module
from kubemend.agent.cli import progress, undetermined

if TYPE_CHECKING:
    from kubemend.agent.prove.report import Report


@click.command(cls=undetermined.Command)
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@click.option(
    "--gpu", "gpus", multiple=True, help="A GPU by index, UUID or PCI address; may be repeated. Default: all."
)
@click.option(
    "--timeout",
    default="60s",
    show_default=True,
    callback=undetermined.positive_seconds,
    help="Timeout of the whole proof. A CUDA call that takes a quarter of it hangs.",
)
@settings_module.some_options("sysfs")
def prove(*, as_json: bool, gpus: tuple[str, ...], timeout: float, sysfs: Path) -> None:
    """Prove that the idle GPUs of this machine compute, store and copy correctly; run it as root.

    It uses 90 % of their free memory for about a second, so start no workload at the same time. GPUs with
    processes, MIG, MPS or another compute mode than the default are skipped. It needs neither Kubernetes, an agent
    nor the CUDA toolkit.

    Exit code, as of kubemend scan: 0: all GPUs passed, or there is none; 2: one failed; 3: none failed, but one was
    skipped or its check was inconclusive.
    """
    from kubemend.agent.prove import rendering
    from kubemend.common import logs

    logs.configure(level="error", log_format="console")
    report = proven(gpus=gpus, timeout=timeout, sysfs=sysfs)
    if as_json:
        click.echo(json.dumps(rendering.as_json(report), indent=2))
    else:
        click.echo(rendering.text(report, colour=sys.stdout.isatty()))
    sys.exit(report.exit_code)


def proven(*, gpus: tuple[str, ...], timeout: float, sysfs: Path) -> "Report":
    """Prove these GPUs (none: all) of this machine."""
    from kubemend.agent.health.catalog import catalog_file
    from kubemend.agent.prove import proving

    proof = proving.prove(proving.Machine.here(sysfs), catalog=catalog_file.builtin(), timeout=timeout, wanted=gpus)
    return progress.run(proof, what="proving GPUs")
