"""Plays a scenario on a stage: each step, until what it expects is so or the patience is over."""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

from common.kube import errors
from hack.jobset_scenarios import places, seeing
from hack.jobset_scenarios.acting import Actor, NotRefusedError
from hack.jobset_scenarios.checked import ScenarioError
from hack.jobset_scenarios.model import Expect, Pass, Scenario, Step
from hack.jobset_scenarios.seeing import Seen
from hack.jobset_scenarios.stage import Stage

_LOOK_AGAIN: Final = 0.1  # seconds
_STEP_SECONDS: Final = 1.0
"""Between two steps, where time is told to pass: objects tell of whole seconds."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a scenario went. No ``faults``: as expected; they are those of the step ``step``, in lines.

    ``seconds`` is how long it took, and what the machine did besides.
    """

    scenario: str
    step: str = ""
    faults: tuple[str, ...] = ()
    seconds: float = 0.0

    @property
    def is_well(self) -> bool:
        """Whether all was as expected."""
        return not self.faults

    def __str__(self) -> str:
        if self.is_well:
            return f"{self.scenario}: ok, {self.seconds:.2f} s"
        return "\n  ".join((f"{self.scenario}: {self.step}", *self.faults))


async def play(scenario: Scenario, stage: Stage, *, namespace: str) -> Outcome:
    """Play it in a namespace of its own, which is created."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    await stage.api.create(places.NAMESPACES, {"metadata": {"name": namespace}})
    player = _Player(scenario, stage, namespace=namespace)
    for step in scenario.steps:
        try:
            faults = await player.play(step)
        except (ScenarioError, errors.KubeError, NotRefusedError) as error:
            faults = [str(error)]
        if faults:
            return Outcome(scenario.name, step.label, tuple(faults), seconds=loop.time() - began)
    return Outcome(scenario.name, seconds=loop.time() - began)


class _Player:
    def __init__(self, scenario: Scenario, stage: Stage, *, namespace: str) -> None:
        self._stage = stage
        self._namespace = namespace
        self._actor = Actor(scenario, stage, namespace=namespace)

    async def play(self, step: Step) -> list[str]:
        """Return in what the end of a step differs from what it expects."""
        if not isinstance(step.action, Pass):
            await self._stage.pass_time(_STEP_SECONDS)
        await self._actor.do(step.action)
        if step.expect is None:
            await self._stage.settle(await self._jobset())
            return []
        return await self._until(step.expect)

    async def _until(self, expect: Expect) -> list[str]:
        loop = asyncio.get_running_loop()
        end = loop.time() + self._stage.patience
        while True:
            await self._stage.settle(await self._jobset())
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
            events=tuple(f"{each['type']} {each['reason']}: {each['note']}" for each in events),
            restart_requests=tuple(each for each in restarts if not each["metadata"].get("labels")),
            gang={} if jobset is None else await self._stage.gang(jobset),
        )

    async def _jobset(self) -> dict[str, Any] | None:
        try:
            return await self._stage.api.get(places.one("jobsets", self._namespace, self._actor.name))
        except errors.NotFoundError:
            return None

    async def _list(self, resource: str) -> list[dict[str, Any]]:
        return (await self._stage.api.list(places.collection(resource, self._namespace))).items


def _by_name(items: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    return {each["metadata"]["name"]: each for each in items}
