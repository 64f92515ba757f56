"""JobSets in memory for the property tests: whatever happens to them, in any order, one action at a time."""

from collections.abc import Sequence
from typing import Any, Final

from common.kube import errors
from hack.jobset_scenarios import places, reading, steps
from hack.jobset_scenarios.acting import Actor
from hack.jobset_scenarios.checked import ScenarioError
from hack.jobset_scenarios.memory import MemoryStage

Json = dict[str, Any]

NAMESPACE: Final = "world"


class World:
    """One JobSet with everybody around it. ``spec`` is as in a scenario's file."""

    def __init__(self, spec: Json) -> None:
        self.stage = MemoryStage()
        self._scenario = reading.build({"about": "a world", "jobset": spec, "steps": ["create", LOOK]}, "world")
        self._actor = Actor(self._scenario, self.stage, namespace=NAMESPACE)

    async def begin(self) -> None:
        """Create the JobSet, and let the controller do what it does at first."""
        await self.stage.prepare()
        await self.stage.api.create(places.NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await self.happen("create")
        await self.settle()

    async def happen(self, word: str, value: Any = None) -> bool:
        """Have something happen, in the words of a scenario; return whether it could: there may be no such Job."""
        await self.stage.pass_time(1)
        try:
            await self._actor.do(steps.parse(word, value, word))
        except (ScenarioError, errors.NotFoundError, errors.ConflictError):
            return False
        return True

    async def look(self) -> bool:
        """Have the controller look once; return whether it did anything."""
        return await self.stage.look(await self.jobset())

    async def settle(self) -> None:
        """Have the controller look until it rests."""
        await self.stage.settle(await self.jobset())

    async def collect(self) -> None:
        """Let all deletions come to their end, and the controller answer, until nothing changes any more."""
        await self.settle()
        while any("deletionTimestamp" in job["metadata"] for job in await self.jobs()):
            await self.happen("finish-deletions", "all")
            await self.settle()

    async def jobset(self) -> Json:
        """Return the JobSet."""
        return await self.stage.api.get(places.one("jobsets", NAMESPACE, "js"))

    async def status(self) -> Json:
        """Return its status."""
        found: Json = (await self.jobset()).get("status") or {}
        return found

    async def jobs(self) -> Sequence[Json]:
        """Return its Jobs."""
        return (await self.stage.api.list(places.collection("jobs", NAMESPACE))).items

    async def events(self) -> list[str]:
        """Return what was told, in no order."""
        listing = await self.stage.api.list(places.collection("events", NAMESPACE))
        return sorted(f"{each['reason']}: {each['note']}" for each in listing.items)


LOOK: Final = {"look": None, "expect": {"jobset": "there"}}
