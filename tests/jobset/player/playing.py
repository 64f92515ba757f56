"""Play scenarios: each step, until its expectations hold or the timeout."""

import asyncio
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from hack.devnode import apiserver, controlplane
from kubemend.common.kube import errors
from kubemend.controller.jobset.spec import model as jobsets
from tests.jobset.player import env, places, seeing
from tests.jobset.player.acting import Actor, NotRefusedError
from tests.jobset.player.checked import ScenarioError
from tests.jobset.player.env import PATIENCE, Controller, ScenarioEnv
from tests.jobset.player.model import Expect, RestartController, Scenario, Step
from tests.jobset.player.seeing import Seen

_LOOK_AGAIN: Final = 0.2  # seconds
_SIDE_BY_SIDE: Final = 16


@dataclass(frozen=True, slots=True)
class Outcome:
    """Hold the result of a scenario. No ``faults``: as expected; else they are those of the step ``step``, in lines.

    ``seconds`` is the elapsed time, including other load on the machine.
    """

    scenario: str
    step: str = ""
    faults: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def is_well(self) -> bool:
        """Return whether everything was as expected."""
        return not self.faults

    def __str__(self) -> str:
        if self.is_well:
            return f"{self.scenario}: ok, {self.seconds:.2f} s"
        return "\n  ".join((f"{self.scenario}: {self.step}", *self.faults))


async def play_all(scenarios: Sequence[Scenario]) -> list[Outcome]:
    """Play them concurrently on a real API server of their own, with the real Job controller and garbage collector.

    Those that replace our controller play last, one after another: its pending Events are lost with it. Raises the
    errors of ``apiserver`` and ``controlplane`` when the real parts are missing.
    """
    with tempfile.TemporaryDirectory(prefix="jobset-scenarios-") as name:
        directory = Path(name)
        async with apiserver.KubeApiServer(directory) as server:
            await env.define(kubeconfig=server.kubeconfig)
            async with (
                controlplane.on(server.kubeconfig, directory / "control-plane", scheduler=False),
                Controller(kubeconfig=server.kubeconfig) as controller,
            ):
                return await _concurrently(controller, scenarios)


async def _concurrently(controller: Controller, scenarios: Sequence[Scenario]) -> list[Outcome]:
    side_by_side, alone = asyncio.Semaphore(_SIDE_BY_SIDE), asyncio.Semaphore(1)

    async def one(scenario: Scenario, room: asyncio.Semaphore) -> Outcome:
        async with room:
            return await play(scenario, ScenarioEnv(controller, namespace=scenario.name), namespace=scenario.name)

    outcomes: dict[str, Outcome] = {}
    for replaces, room in ((False, side_by_side), (True, alone)):
        chosen = [each for each in scenarios if _replaces_controller(each) is replaces]
        for outcome in await asyncio.gather(*(one(each, room) for each in chosen)):
            outcomes[outcome.scenario] = outcome
    return [outcomes[each.name] for each in scenarios]


def _replaces_controller(scenario: Scenario) -> bool:
    return any(isinstance(step.action, RestartController) for step in scenario.steps)


async def play(scenario: Scenario, where: ScenarioEnv, *, namespace: str) -> Outcome:
    """Play it in a namespace of its own, which is created."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await where.api.create(places.NAMESPACES, {"metadata": {"name": namespace}})
    player = _Player(scenario, where, namespace=namespace)
    for step in scenario.steps:
        try:
            faults = await player.play(step)
        except (ScenarioError, errors.KubeError, NotRefusedError) as error:
            faults = [str(error)]
        if faults:
            return Outcome(scenario.name, step.label, tuple(faults), seconds=loop.time() - began)
    return Outcome(scenario.name, seconds=loop.time() - began)


class _Player:
    def __init__(self, scenario: Scenario, where: ScenarioEnv, *, namespace: str) -> None:
        self._env = where
        self._namespace = namespace
        self._actor = Actor(scenario, where, namespace=namespace)

    async def play(self, step: Step) -> list[str]:
        """Return the differences between a step's result and its expectations."""
        await self._actor.do(step.action)
        if step.expect is None:
            await self._env.settle(await self._jobset())
            return []
        return await self._until(step.expect)

    async def _until(self, expect: Expect) -> list[str]:
        loop = asyncio.get_running_loop()
        end = loop.time() + PATIENCE
        while True:
            await self._env.settle(await self._jobset())
            faults = seeing.differences(expect, await self._see(), prefix=f"{self._actor.name}-")
            if not faults or loop.time() >= end:
                return faults
            await asyncio.sleep(_LOOK_AGAIN)

    async def _see(self) -> Seen:
        jobset = await self._jobset()
        events = await self._list("events")
        created = self._actor.jobset
        restarts = await self._list("restarts")
        return Seen(
            uid="" if created is None else created["metadata"]["uid"],
            name=self._actor.name,
            jobset=jobset,
            jobs=_by_name(await self._list("jobs")),
            services=_by_name(await self._list("services")),
            claims=_by_name(await self._list("persistentvolumeclaims")),
            events=tuple(
                f"{each['type']} {each['reason']}: {each['note']}"
                for each in events
                if each["regarding"]["kind"] == jobsets.KIND
            ),
            restart_requests=tuple(each for each in restarts if not each["metadata"].get("labels")),
            gang={} if jobset is None else await self._env.gang(jobset),
        )

    async def _jobset(self) -> dict[str, Any] | None:
        try:
            return await self._env.api.get(places.one("jobsets", self._namespace, self._actor.name))
        except errors.NotFoundError:
            return None

    async def _list(self, resource: str) -> list[dict[str, Any]]:
        return (await self._env.api.list(places.collection(resource, self._namespace))).items


def _by_name(items: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in items}
