"""Print the demo's observations, and wait for an agent."""

import asyncio
import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from hack.devnode.node import Agent

_SECONDS = 120.0
_LOOK_SECONDS = 0.1


@dataclass
class Report:
    """Print each observation as it is made, and record whether all were as expected."""

    failures: list[str] = field(default_factory=list)

    def section(self, title: str) -> None:
        """Begin a section."""
        click.secho(f"\n{title}", bold=True)

    def say(self, what: str) -> None:
        """Print a line that is not a check."""
        click.echo(f"    {what}")

    def check(self, what: str, holds: bool, found: object) -> None:  # noqa: FBT001 - the verdict is the point
        """Record one observation."""
        mark = click.style("ok", fg="green") if holds else click.style("NO", fg="red", bold=True)
        click.echo(f"  {mark} {what}: {found}")
        if not holds:
            self.failures.append(what)


async def until_ready(agent: Agent) -> Mapping[str, Mapping[str, str]]:
    """Wait until an agent is ready and has reached its hub; return the status of its components. Raises TimeoutError.

    An agent is ready without a hub, because single containers need none.
    """
    url = f"http://{agent.metrics_address}/readyz"
    ready: Mapping[str, Any] = {}
    async with asyncio.timeout(_SECONDS):
        while not ready.get("ready") or ready["parts"]["hub"]["state"] != "ready":
            await asyncio.sleep(_LOOK_SECONDS)
            ready = await asyncio.to_thread(_readyz, url)
    parts: Mapping[str, Mapping[str, str]] = ready["parts"]
    return parts


def _readyz(url: str) -> Mapping[str, Any]:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:
            return dict(json.load(answer))
    except OSError:
        return {}  # not listening yet, or 503: not ready
