"""The ``kubemend`` command (also ``kubectl mend``)."""

import click

from agent.cli.lazy import LazyGroup

_MODULES = {
    "agent": "agent.cli.agent",
    "clear": "agent.cli.devices",
    "doctor": "agent.cli.doctor",
    "explain": "agent.cli.explain",
    "release-devices": "agent.cli.devices",
    "restart": "agent.cli.restart",
    "scan": "agent.cli.scan",
}


@click.group(cls=LazyGroup, modules=_MODULES, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="kubemend")
def main() -> None:
    """Fast, device-aware, in-place recovery of GPU workloads on Kubernetes."""
