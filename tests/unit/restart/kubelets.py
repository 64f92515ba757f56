"""A model of kubelet's eyes and of its worker for one pod."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from agent.model.workloads import ContainerId, ContainerState, ContainerView
from agent.restart.intents import Planned
from tests.unit.restart.pods import CREATED, EXITED, INIT, MAIN, RUNNING, SIDECAR


@dataclass
class Kubelet:
    """One pod worker of kubelet (``computeInitContainerActions``, ``computePodActions``, 1.36), and what it saw.

    A look is a listing, and then one question about each container listed. It shows in its status what it saw when it
    began its last sync. ``woken``: a listing has differed from the one before (``recorded``) in a way that calls for a
    sync (``generateEvents``): what has begun or ended does, and so does what is gone that was never seen to end. Of
    ``found_news`` it hears when the look is complete.
    """

    recorded: dict[ContainerId, ContainerState] = field(default_factory=dict)
    found_news: bool = False
    woken: bool = False
    listed: list[ContainerId] = field(default_factory=list)
    asked: list[ContainerView] | None = None
    saw: list[ContainerView] | None = None
    shows: list[ContainerView] = field(default_factory=list)
    to_start: list[str] = field(default_factory=list)
    created: ContainerId | None = None

    @property
    def idle(self) -> bool:
        """Whether no sync is under way."""
        return not self.to_start and self.created is None

    def records(self, listed: Sequence[ContainerView]) -> None:
        """Compare a listing with the one before; what comes and goes unseen, or is CREATED, wakes nobody."""
        now = {view.id: view.state for view in listed}
        for container in {*self.recorded, *now}:
            before, after = self.recorded.get(container), now.get(container)
            gone = after is None and before is not EXITED
            self.found_news |= before is not after and (gone or after in (RUNNING, EXITED))
        self.recorded = now

    def wants(self, plan: Sequence[Planned]) -> list[str]:
        """Return which containers one sync starts, from what was seen last."""
        newest = {item.name: self._newest(item.name) for item in plan}
        inits = [item for item in plan if item.role is not MAIN]
        mains = [item for item in plan if item.role is MAIN]
        initialized = any(
            seen is not None and seen.state in (CREATED, RUNNING) for seen in (newest[m.name] for m in mains)
        )
        passed, starts = initialized, []
        for index in reversed(range(len(inits))):
            item, seen = inits[index], newest[inits[index].name]
            if seen is None:
                starts += [index] if passed and item.role is SIDECAR else []
                continue
            if passed and item.role is INIT:
                continue
            done = seen.state is (RUNNING if item.role is SIDECAR else EXITED)
            if done and index == len(inits) - 1:
                initialized = True
            elif done and not passed:
                starts.append(index + 1)
            elif not done and seen.state is not RUNNING:
                starts.append(index)
            passed = True
        if inits and not passed:
            starts.append(0)
        names = [inits[index].name for index in reversed(starts)]
        if initialized or not inits:
            names += [m.name for m in mains if (seen := newest[m.name]) is None or seen.state is not RUNNING]
        return names

    def attempt(self, name: str, started: dict[str, int]) -> int:
        """One more than the newest one's; where none was seen, one more than the newest log's (0.log: the old one)."""
        seen = self._newest(name)
        return seen.attempt + 1 if seen is not None else started.get(name, 0) + 1

    def _newest(self, name: str) -> ContainerView | None:
        found = [view for view in self.saw or () if view.ref.name == name]
        return max(found, key=lambda view: view.created_at, default=None)
