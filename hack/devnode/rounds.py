"""Await, create and age the Restart objects of a gang, as a person would."""

import asyncio
import contextlib
import datetime as dt
import json
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from hack.devnode import watching
from kubemend.common.gangs import GangKey
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths

API_VERSION: Final = "restarts.kubemend.io/v1alpha1"
_TIMES = ("startTime", "completionTime")
_NEVER: Final = dt.datetime.max.replace(tzinfo=dt.UTC).isoformat()
_MILLISECOND = 1_000_000

Json = dict[str, Any]


class Rounds:
    """Manage one gang's rounds."""

    def __init__(self, api: kube.KubeClient, gang: GangKey) -> None:
        self._api = api
        self._gang = gang
        group, _, version = API_VERSION.partition("/")
        self._path = paths.collection("restarts", namespace=gang.namespace, group=group, version=version)

    async def all(self) -> list[Json]:
        """Return the gang's Restart objects that are rounds, the oldest first."""
        return self._ours((await self._api.list(self._path)).items)

    async def until(self, holds: Callable[[Sequence[Json]], bool], *, what: str, timeout: float = 120.0) -> list[Json]:
        """Watch until it holds for the rounds so far. Raises TimeoutError."""
        found: list[Json] = []
        try:
            async with (
                asyncio.timeout(timeout),
                contextlib.aclosing(watching.collection(self._api, self._path)) as seen,
            ):
                async for restarts in seen:
                    if holds(found := self._ours(restarts)):
                        break
        except TimeoutError as error:
            raise TimeoutError(f"{what} did not come within {timeout:g} s; rounds: {json.dumps(found)}") from error
        return found

    async def finished(self, count: int, *, timeout: float = 120.0) -> Json:
        """Wait until the gang has had ``count`` rounds and the last one has ended; return that one."""
        found = await self.until(
            lambda rounds: len(rounds) >= count and is_finished(rounds[-1]),
            what=f"the end of round {count} of {self._gang}",
            timeout=timeout,
        )
        return found[-1]

    async def ask(self, name: str, **spec: Any) -> None:
        """Create a Restart object for the gang, as a person would; ``spec`` is added to ``gang``."""
        body = {
            "apiVersion": API_VERSION,
            "kind": "Restart",
            "metadata": {"name": name, "namespace": self._gang.namespace},
            "spec": {"gang": {"kind": self._gang.kind, "name": self._gang.name}, **spec},
        }
        await self._api.create(self._path, body)

    async def age(self, by: dt.timedelta) -> None:
        """Move the rounds of that time back by it, once: those older than a day would be removed.

        The current leading controller has its own memory of them.
        """
        recent = dt.datetime.now(dt.UTC) - by
        for each in await self.all():
            status = each.get("status", {})
            if dt.datetime.fromisoformat(status.get("completionTime", _NEVER)) <= recent:
                continue
            moved: Json = {key: _earlier(status[key], by) for key in _TIMES if key in status}
            if "time" in status.get("trigger", {}):
                moved["trigger"] = {"time": _earlier(status["trigger"]["time"], by)}
            path = f"{self._path}/{each['metadata']['name']}"
            await self._api.patch_status(path, {"status": moved}, content_type=kube.Patch.MERGE)

    def _ours(self, restarts: Iterable[Json]) -> list[Json]:
        """Return the gang's own, the oldest first."""
        return sorted((each for each in restarts if self._is_ours(each)), key=attempt)

    def _is_ours(self, restart: Json) -> bool:
        labels = restart["metadata"].get("labels", {})
        return (labels.get("kubemend.io/gang-kind"), labels.get("kubemend.io/gang-name")) == (
            self._gang.kind,
            self._gang.name,
        )


def attempt(restart: Json) -> int:
    """Return a round's number."""
    return int(restart["metadata"].get("annotations", {}).get("kubemend.io/attempt", 0))


def is_finished(restart: Json) -> bool:
    """Return whether a round has ended."""
    return "completionTime" in restart.get("status", {})


def slipped(restart: Json) -> int:
    """Return the longest time in nanoseconds that a new container ran before it was held, by the round's own report.

    Kubelet may start a container of its own, which the agent holds as soon as it sees it. Fails when the round reports
    that the members were not held together.
    """
    (reported,) = [each for each in restart["status"]["conditions"] if each["type"] == "HeldTogether"]
    assert reported["reason"] in ("AllHeld", "HeldAfterMilliseconds"), reported
    longest = re.search(r"ran for (\d+) ms at most", reported["message"])
    assert (longest is None) == (reported["reason"] == "AllHeld"), reported
    return (int(longest[1]) + 1) * _MILLISECOND if longest is not None else 0


def name_of(restart: Json) -> str:
    """Return the name of a Restart object."""
    return str(restart["metadata"]["name"])


def _earlier(time: str, by: dt.timedelta) -> str:
    return (dt.datetime.fromisoformat(time) - by).strftime("%Y-%m-%dT%H:%M:%SZ")
