"""A launcher in a container, for actuators and schedulers: it obeys, or not, and may end at any call."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace

from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.restart import intents
from kubemend.agent.restart.process import Launcher, LauncherUnavailable, State

_RUNS = Launcher(State.RUNNING, program=1)


@dataclass
class Launchers:
    """The launchers of a node, which are all the same one. ``calls`` are those that it got.

    ``before`` is called with the name of each call before it takes effect; it may change everything, or raise.
    """

    state: Launcher | LauncherUnavailable = _RUNS
    left: tuple[int, ...] | LauncherUnavailable = ()
    before: Callable[[str], None] = lambda _: None
    obeys: bool = True
    calls: list[str] = field(default_factory=list)

    async def status(self, container: ContainerStatus) -> Launcher | LauncherUnavailable:
        return await self._called("status")

    async def stop(self, container: ContainerStatus, intent: intents.ProcessIntent) -> Launcher | LauncherUnavailable:
        await self._called("stop")
        if self.obeys and isinstance(self.state, Launcher) and self.state.program == intent.program:
            self.state = replace(self.state, state=State.HELD, order=intent.id)
        return self.state

    async def release(
        self, container: ContainerStatus, intent: intents.ProcessIntent
    ) -> Launcher | LauncherUnavailable:
        await self._called("release")
        mine = isinstance(self.state, Launcher) and self.state.order == intent.id
        if self.obeys and mine and isinstance(self.state, Launcher) and self.state.state is State.HELD:
            program, restarts = self.state.program + 1, self.state.restarts + 1
            self.state = replace(self.state, state=State.RUNNING, program=program, restarts=restarts)
        return self.state

    async def discard(
        self, container: ContainerStatus, intent: intents.ProcessIntent
    ) -> Launcher | LauncherUnavailable:
        return await self._called("discard")

    async def remains(self, container: ContainerStatus, launcher: Launcher) -> tuple[int, ...] | LauncherUnavailable:
        await self._called("remains")
        return self.left

    async def _called(self, name: str) -> Launcher | LauncherUnavailable:
        self.calls.append(name)
        self.before(name)
        await asyncio.sleep(0)
        return self.state
