"""A pod of several containers for the tests of whole-pod restarts: builders, and a model of kubelet beside an agent."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from agent.model.workloads import ContainerId, ContainerRef, ContainerRole, ContainerState, ContainerView
from agent.restart import intents, reset, steps
from agent.restart.intents import Planned, Strategy
from tests.unit.restart import builders

INIT, SIDECAR, MAIN = ContainerRole.INIT, ContainerRole.SIDECAR, ContainerRole.MAIN
RUNNING, CREATED, EXITED = ContainerState.RUNNING, ContainerState.CREATED, ContainerState.EXITED
OURS = "r1"

Rule = Callable[[intents.PodIntent, Sequence[ContainerView], reset.Known], Sequence[steps.Step]]


def view(name: str, container: str, **changes: Any) -> ContainerView:
    """A container of the pod."""
    return replace(builders.view(container, **changes), ref=ContainerRef(builders.POD, name))


def old(name: str, state: ContainerState = RUNNING) -> ContainerView:
    """What ran before."""
    return view(name, f"old-{name}", state=state)


def new(name: str, state: ContainerState, *, ours: bool = True, attempt: int = 1) -> ContainerView:
    """A successor, ours or kubelet's."""
    who = "ours" if ours else "kubelets"
    return view(name, f"{who}-{name}", state=state, attempt=attempt, restart_id=OURS if ours else None)


def planned(name: str, role: ContainerRole, **changes: Any) -> Planned:
    """One container of the plan; its old one is attempt 0."""
    return Planned(name=name, role=role, old=(ContainerId(f"old-{name}"),), old_attempt=0, **changes)


PLAN = (planned("prepare", INIT), planned("shipper", SIDECAR), planned("trainer", MAIN), planned("logger", MAIN))


def intent(**changes: Any) -> intents.PodIntent:
    """A rerun of that pod."""
    defaults: dict[str, Any] = {
        "id": OURS,
        "target": builders.TARGET,
        "sandbox_id": builders.SANDBOX,
        "strategy": Strategy.RERUN,
        "plan": PLAN,
        "reason": "Xid31",
        "created_at": 0.0,  # the model's clock begins there
    }
    return intents.PodIntent(**defaults | changes)


@dataclass
class Kubelet:
    """One pod worker of kubelet (``computeInitContainerActions``, ``computePodActions``, 1.36), and what it saw."""

    saw: list[ContainerView] | None = None
    to_start: list[str] = field(default_factory=list)
    created: ContainerId | None = None

    def wants(self, plan: Sequence[Planned], exits: dict[ContainerId, reset.Exit]) -> list[str]:
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
            done = seen.state is RUNNING if item.role is SIDECAR else seen.id in exits
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
        """One more than the newest one's; where none was seen, one more than the newest log file's."""
        seen = self._newest(name)
        return seen.attempt + 1 if seen is not None else started.get(name, -1) + 1

    def _newest(self, name: str) -> ContainerView | None:
        found = [view for view in self.saw or () if view.ref.name == name]
        return max(found, key=lambda view: view.created_at, default=None)


@dataclass
class World:
    """A runtime, kubelet and one agent, moved one call at a time. Init containers end with 0 when the world says so."""

    rule: Rule
    intent: intents.PodIntent
    containers: list[ContainerView] = field(
        default_factory=lambda: [old("prepare", EXITED), old("shipper"), old("trainer"), old("logger")]
    )
    exits: dict[ContainerId, reset.Exit] = field(
        default_factory=lambda: {ContainerId("old-prepare"): reset.Exit(code=0, at=5)}
    )
    started: dict[str, int] = field(default_factory=lambda: {item.name: 0 for item in PLAN})
    clock: int = 10
    kubelet: Kubelet = field(default_factory=Kubelet)
    sees: list[ContainerView] | None = None
    todo: list[steps.Step] = field(default_factory=list)
    we_started: list[str] = field(default_factory=list)
    starts: list[str] = field(default_factory=list)
    done: steps.Why | None = None

    def kubelet_relists(self) -> None:
        """Its worker looks when it is free."""
        if not self.kubelet.to_start and self.kubelet.created is None:
            self.kubelet.saw = list(self.containers)

    def kubelet_syncs(self) -> None:
        """Decide by the last look, once."""
        if self.kubelet.saw is not None and not self.kubelet.to_start and self.kubelet.created is None:
            self.kubelet.to_start = self.kubelet.wants(self.intent.plan, self.exits)

    def kubelet_creates(self) -> None:
        """Create the next container that the sync has decided on; a name that is taken ends the sync."""
        if self.kubelet.created is not None or not self.kubelet.to_start:
            return
        name = self.kubelet.to_start.pop(0)
        attempt = self.kubelet.attempt(name, self.started)
        self.kubelet.created = self._add(name, attempt=attempt, restart_id=None)
        if self.kubelet.created is None:
            self.kubelet.to_start = []
        if not self.kubelet.to_start and self.kubelet.created is None:
            self.kubelet.saw = None

    def kubelet_starts(self) -> None:
        """Start what it has created."""
        created, self.kubelet.created = self.kubelet.created, None
        if created is not None:
            self._start(created)
        if not self.kubelet.to_start:
            self.kubelet.saw = None  # the next sync waits for a look that is newer than this one

    def init_ends(self) -> None:
        """Init containers that run end with 0."""
        for view in self.containers:
            if view.ref.name == "prepare" and view.state is RUNNING:
                self.clock += 1
                self.exits[view.id] = reset.Exit(code=0, at=self.clock)
                self._set(view.id, EXITED)

    def agent_looks(self) -> None:
        """List; what was still to be done is decided anew."""
        self.sees, self.todo = list(self.containers), []

    def agent_acts(self) -> None:
        """Do one of the steps that go side by side, decided on what was last seen."""
        if not self.todo:
            if self.sees is None:
                self.agent_looks()
            assert self.sees is not None
            self.todo = list(self.rule(self.intent, self.sees, reset.Known(exits=self.exits)))
            self.sees = None
        self._do(self.todo.pop(0))

    def settle(self, rounds: int = 60) -> None:
        """Let everything come to its end: kubelet looks, does all that follows from it, and then the agent does."""
        for _ in range(rounds):
            self.kubelet_relists()
            self.kubelet_syncs()
            while self.kubelet.to_start or self.kubelet.created is not None:
                self.kubelet_creates()
                self.kubelet_starts()
            self.init_ends()
            self.agent_turn()

    def agent_turn(self) -> None:
        """Look, and do all that goes side by side before kubelet acts again."""
        self.agent_looks()
        self.agent_acts()
        while self.todo:
            self.agent_acts()

    def running(self, name: str) -> list[ContainerView]:
        """Return the containers of that name that run."""
        return [view for view in self.containers if view.ref.name == name and view.state is RUNNING]

    def _do(self, step: steps.Step) -> None:
        match step.kind:
            case steps.StepKind.STOP:
                self._set(step.container, EXITED)
            case steps.StepKind.REMOVE:
                self.containers = [view for view in self.containers if view.id != step.container]
            case steps.StepKind.CREATE:
                assert step.name is not None
                self._add(step.name, attempt=1, restart_id=self.intent.id)
            case steps.StepKind.START:
                self._check_start(step)
                assert step.container is not None
                self._start(step.container)
            case steps.StepKind.DONE:
                self.done = step.why

    def _check_start(self, step: steps.Step) -> None:
        started = next((view for view in self.containers if view.id == step.container), None)
        if started is None:
            return  # gone meanwhile: the call fails
        assert started.restart_id == self.intent.id, "only what is ours is started"
        assert not [view for view in self.containers if view.id in self.intent.old], "something old is left"
        self.we_started.append(started.ref.name)

    def _add(self, name: str, *, attempt: int, restart_id: str | None) -> ContainerId | None:
        if any(view.ref.name == name and view.attempt == attempt for view in self.containers):
            return None
        self.clock += 1
        identity = f"{restart_id or 'kubelet'}-{name}-{self.clock}"
        self.containers.append(
            view(name, identity, attempt=attempt, state=CREATED, created_at=self.clock, restart_id=restart_id)
        )
        return ContainerId(identity)

    def _start(self, container: ContainerId) -> None:
        for item in self.containers:
            if item.id == container and item.state is CREATED:
                self.started[item.ref.name] = max(self.started[item.ref.name], item.attempt)
                self.starts.append(item.ref.name)
                self._set(container, RUNNING)

    def _set(self, which: str | None, state: ContainerState) -> None:
        self.containers = [replace(view, state=state) if view.id == which else view for view in self.containers]


MOVES: dict[str, Callable[[World], object]] = {
    "relist": World.kubelet_relists,
    "sync": World.kubelet_syncs,
    "create": World.kubelet_creates,
    "start": World.kubelet_starts,
    "end": World.init_ends,
    "look": World.agent_looks,
    "act": World.agent_acts,
}
