"""How the demo tells what it has seen, and waits for an agent."""

import asyncio
import json
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import click

from hack.devnode.node import Agent

_SECONDS = 60.0
_LOOK_SECONDS = 0.1


@dataclass
class Report:
    """Prints each observation as it is made and remembers whether all were as they should be."""

    failures: list[str] = field(default_factory=list)

    def section(self, title: str) -> None:
        """Begin a part of the story."""
        click.secho(f"\n{title}", bold=True)

    def say(self, what: str) -> None:
        """Tell something that is no check."""
        click.echo(f"    {what}")

    def check(self, what: str, holds: bool, found: object) -> None:  # noqa: FBT001 - the verdict is the point
        """Note one observation."""
        mark = click.style("ok", fg="green") if holds else click.style("NO", fg="red", bold=True)
        click.echo(f"  {mark} {what}: {found}")
        if not holds:
            self.failures.append(what)


async def until_ready(agent: Agent) -> Mapping[str, Mapping[str, str]]:
    """Wait until an agent says that it is ready; return what it says of its parts. Raises TimeoutError."""
    url = f"http://{agent.metrics_address}/readyz"
    ready: Mapping[str, Any] = {}
    async with asyncio.timeout(_SECONDS):
        while not ready.get("ready"):
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
