"""Compare kubemend with other projects that restart containers and report faults, in one run on one real cluster.

Gangs: upstream's JobSet controller with InPlaceRestart against kubemend's, the same workers, the same failures. One
container: kubelet's own restart and its rule RestartAllContainers (KEP-5532) against the agent's. From a line in the
kernel log to the node's condition in the API: node-problem-detector against the agent. All have their defaults, and are
built from their modules (``hack/peers``).

Prints JSON. Each part has both sides; ratios state how many times longer the others take.
"""

import asyncio
import contextlib
import json
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

import click

from bench.peers import containers, gangs, lines, modules, upstream
from hack.devnode import apiserver, jobsets, kubernetes, layout, node
from kubemend.common import logs

_PARTS: Final = ("gang", "container", "log-line")

Json = dict[str, Any]


async def measure(*, only: tuple[str, ...], members: int, failures: int, exits: int, log_lines: int) -> Json:
    """Run everything and return the figures."""
    reported: Json = {"versions": _versions()}
    where = layout.NodeLayout.named("bench-peers")
    async with contextlib.AsyncExitStack() as stack:
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="kubemend-bench-"))
        # Upstream's agents run in pods and watch the API server from there: it listens on the pods' bridge, too.
        api = apiserver.KubeApiServer(Path(directory), options=["--bind-address=0.0.0.0"])
        await stack.enter_async_context(api)
        dev = await stack.enter_async_context(node.DevNode(where, api=api))
        reported["node"] = dev.kinds
        if "log-line" in only:
            reported["log_line"] = await lines.measure(dev, lines=log_lines)
        if "container" in only:
            reported["container"] = await containers.measure(dev, exits=exits)
        if "gang" in only:
            await upstream.define_jobsets(dev)
            await stack.enter_async_context(jobsets.run_on(dev))
            reported["gang"] = await gangs.measure(dev, members=members, failures=failures)
    return reported


def _versions() -> dict[str, str]:
    return {"Kubernetes": kubernetes.version(), **{each.name: each.version for each in modules.MODULES}}


@click.command(help=__doc__)
@click.option("--only", multiple=True, type=click.Choice(_PARTS), help="Only this part; may be repeated.")
@click.option("--members", default=20, show_default=True, help="Members of the gangs, all on one node.")
@click.option("--failures", default=4, show_default=True, help="Failures of each gang, one after another.")
@click.option("--exits", default=3, show_default=True, help="Exits of each container, one after another.")
@click.option("--lines", "log_lines", default=20, show_default=True, help="Kernel log lines.")
def main(only: tuple[str, ...], members: int, failures: int, exits: int, log_lines: int) -> None:
    """Measure and print."""
    logs.configure(level="error", log_format="console")
    parts = only or _PARTS
    reported = asyncio.run(measure(only=parts, members=members, failures=failures, exits=exits, log_lines=log_lines))
    click.echo(json.dumps(reported, indent=2))


if __name__ == "__main__":
    sys.exit(main())
