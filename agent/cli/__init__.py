"""The ``kubemend`` command (also ``kubectl mend``)."""

import click

from kubemend.agent.cli.lazy import LazyGroup

_MODULES = {
    "agent": "kubemend.agent.cli.agent",
    "clear": "kubemend.agent.cli.devices",
    "doctor": "kubemend.agent.cli.doctor",
    "explain": "kubemend.agent.cli.explain",
    "prove": "kubemend.agent.cli.prove",
    "release-devices": "kubemend.agent.cli.devices",
    "restart": "kubemend.agent.cli.restart",
    "scan": "kubemend.agent.cli.scan",
}


@click.group(cls=LazyGroup, modules=_MODULES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kubemend")
def main() -> None:
    """Fast, device-aware, in-place recovery of GPU workloads on Kubernetes."""
