"""Observe the product's processes from outside: /readyz, /metrics, their logs; and wait for conditions."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, Final, TypeVar

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from hack.devnode import readyz

SECONDS: Final = 90.0
"""The timeout of all waits. Not a promise: a busy machine needs it."""

_LOOK_AGAIN: Final = 0.03
_TIMEOUT: Final = aiohttp.ClientTimeout(total=10.0)

_T = TypeVar("_T")


async def until(look: Callable[[], Awaitable[_T | None]], *, what: str, timeout: float = SECONDS) -> _T:
    """Poll until there is a result, and return it. Raises TimeoutError, which names what did not come."""
    try:
        async with asyncio.timeout(timeout):
            while (found := await look()) is None:  # noqa: ASYNC110 - processes are polled from outside
                await asyncio.sleep(_LOOK_AGAIN)
            return found
    except TimeoutError as error:
        raise TimeoutError(f"{what} did not come within {timeout:g} s") from error


async def works(address: str, *, hub: bool = True) -> bool | None:
    """Return True when an agent is ready, with ``hub`` also connected to its hub; else None."""
    return readyz.is_ready(await readyz.report(address), hub=hub) or None


async def watches(address: str, *, count: int) -> bool | None:
    """Return True when an agent has recorded ``count`` beating containers; else None."""
    found = await metrics(address)
    return sum(name.startswith("kubemend_heartbeat_age_seconds{") for name in found) >= count or None


async def metrics(address: str) -> dict[str, float]:
    """Return the sums of all series of a process, by metric, and each series by ``metric{value,value}``."""
    async with (
        aiohttp.ClientSession(trust_env=False, timeout=_TIMEOUT) as session,
        session.get(f"http://{address}/metrics") as answer,
    ):
        text = await answer.text()
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found[sample.name] = found.get(sample.name, 0.0) + sample.value
            if sample.labels:
                found[f"{sample.name}{{{','.join(sample.labels.values())}}}"] = sample.value
    return found


class Log:
    """Read a process's log from now on."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._from = path.stat().st_size if path.exists() else 0

    def events(self, name: str, **matching: str) -> list[dict[str, Any]]:
        """Return the events of that name with matching fields, oldest first."""
        return [
            line
            for line in self._lines()
            if line.get("event") == name and all(line.get(key) == value for key, value in matching.items())
        ]

    def _lines(self) -> Iterator[dict[str, Any]]:
        if not self._path.exists():
            return
        with self._path.open("rb") as file:
            file.seek(self._from)
            for line in file:
                if line.startswith(b"{") and line.endswith(b"}\n"):
                    yield json.loads(line)
