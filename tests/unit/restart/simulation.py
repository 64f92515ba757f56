"""A model of kubelet and an agent that work on one pod, moved one call at a time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Self

from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary
from kubemend.agent.restart import intents, reset, steps
from tests.unit.restart import pods
from tests.unit.restart.kubelets import Kubelet
from tests.unit.restart.pods import CREATED, EXITED, INIT, MAIN, RESERVED, RUNNING, name_of

Rule = Callable[[intents.PodIntent, Sequence[ContainerSummary], reset.Known], Sequence[steps.Step]]


@dataclass
class Simulation:
    """A runtime, kubelet and one agent, moved one call at a time. Init containers end with 0 at a move of their own."""

    rule: Rule
    intent: intents.PodIntent
    containers: list[ContainerSummary]
    exits: dict[ContainerId, reset.Exit] = field(
        default_factory=lambda: {ContainerId("old-prepare"): reset.Exit(code=0, at=5)}
    )
    started: dict[str, int] = field(default_factory=dict)
    clock: int = 10
    kubelet: Kubelet = field(default_factory=Kubelet)
    taken: set[tuple[str, int]] = field(default_factory=set)
    sees: list[ContainerSummary] | None = None
    todo: list[steps.Step] = field(default_factory=list)
    we_started: list[str] = field(default_factory=list)
    starts: list[str] = field(default_factory=list)
    done: steps.StepReason | None = None

    @classmethod
    def of(cls, rule: Rule, intent: intents.PodIntent) -> Self:
        """Create the pod of that intent as it was before its restart."""
        before = pods.as_it_was(intent.plan)
        kubelet = Kubelet(recorded={view.id: view.state for view in before}, shows=before)
        return cls(rule=rule, intent=intent, containers=list(before), kubelet=kubelet)

    def copied(self) -> Self:
        """Return a simulation that can be moved on separately."""
        made = object.__new__(type(self))  # four times as fast as copy.copy()
        vars(made).update(vars(self))
        made.kubelet = self.kubelet.copied()
        made.containers, made.exits, made.started = self.containers.copy(), self.exits.copy(), self.started.copy()
        made.taken, made.todo = self.taken.copy(), self.todo.copy()
        made.we_started, made.starts = self.we_started.copy(), self.starts.copy()
        return made

    def kubelet_lists(self) -> None:
        """Begin a relist. One that begins during a sync is too old for the next sync."""
        if self.kubelet.idle and self.kubelet.asked is None:
            of_the_pod = [view for view in self.containers if RESERVED not in view.ref.name]
            self.kubelet.records(of_the_pod)
            self.kubelet.listed, self.kubelet.asked = [view.id for view in of_the_pod], []

    def kubelet_asks(self) -> None:
        """Read the next listed container; skip deleted ones. Then the relist is complete."""
        if self.kubelet.asked is None:
            return
        if self.kubelet.listed:
            wanted = self.kubelet.listed.pop(0)
            self.kubelet.asked += [view for view in self.containers if view.id == wanted]
        if not self.kubelet.listed:
            self.kubelet.saw, self.kubelet.asked = self.kubelet.asked, None
            self.kubelet.woken, self.kubelet.found_news = self.kubelet.woken or self.kubelet.found_news, False

    def kubelet_syncs(self) -> None:
        """Publish the last listing, and decide by it, once."""
        if self.kubelet.saw is not None and self.kubelet.idle:
            self.kubelet.woken, self.kubelet.shows = False, self.kubelet.saw
            self.kubelet.to_start = self.kubelet.wants(self.intent.plan)

    def kubelet_creates(self) -> None:
        """Create the next container that the sync has decided on; an init container whose name is taken ends it.

        A failed sync is repeated.
        """
        if self.kubelet.created is not None or not self.kubelet.to_start:
            return
        name = self.kubelet.to_start.pop(0)
        attempt = self.kubelet.attempt(name, self.started)
        self.kubelet.created = self._add(name, attempt=attempt, restart_id=None)
        role = next(item.role for item in self.intent.plan if item.name == name)
        if self.kubelet.created is None:
            self.kubelet.woken = True
            self.kubelet.to_start = [] if role is INIT else self.kubelet.to_start
        self._sync_may_have_ended()

    def kubelet_starts(self) -> None:
        """Start the created container. That fails if it is gone, and a failed sync is repeated."""
        created, self.kubelet.created = self.kubelet.created, None
        if created is not None:
            self.kubelet.woken |= created not in {view.id for view in self.containers}
            self._start(created)
            self._sync_may_have_ended()

    def kubelet_collects(self) -> None:
        """Collect garbage: stopped containers except the newest of each name; all stopped ones of unknown pods."""
        idle = sorted((view for view in self.containers if view.state is not RUNNING), key=lambda v: v.created_at)
        newest = {view.ref.name: view.id for view in idle if RESERVED not in view.ref.name}
        gone = {view.id for view in idle} - set(newest.values())
        self.containers = [view for view in self.containers if view.id not in gone]

    def init_ends(self) -> None:
        """End running init containers with 0."""
        inits = {item.name for item in self.intent.plan if item.role is INIT}
        for view in self.containers:
            if view.ref.name in inits and view.state is RUNNING:
                self.clock += 1
                self.exits[view.id] = reset.Exit(code=0, at=self.clock)
                self._set(view.id, EXITED)

    def mains_crash(self) -> None:
        """End running successors of mains with 1."""
        mains = {item.name for item in self.intent.plan if item.role is MAIN}
        for view in self.containers:
            if view.ref.name in mains and view.state is RUNNING and view.id not in self.intent.old_ids:
                self._set(view.id, EXITED)

    def agent_looks(self) -> None:
        """List; pending steps are decided again."""
        self.sees, self.todo = list(self.containers), []

    def agent_acts(self) -> None:
        """Do one of the concurrent steps, decided on the last listing."""
        if not self.todo:
            if self.sees is None:
                self.agent_looks()
            assert self.sees is not None
            self.todo = list(self.rule(self.intent, self.sees, self._known()))
            self.sees = None
        self._do(self.todo.pop(0))

    def settle(self, rounds: int = 60, *, agent: bool = True) -> None:
        """Run everything to its end: kubelet relists and does all that follows, and then the agent does.

        Kubelet's timer is not needed for that: it syncs only if it has been woken.
        """
        for _ in range(rounds):
            before = self.copied()
            self.kubelet_answers()
            self.kubelet_relists()
            self.kubelet_answers()
            self.init_ends()
            if agent:
                self.agent_turn()
            if self == before:  # and so after any further round
                return

    def kubelet_relists(self) -> None:
        """Relist, with nothing in between."""
        self.kubelet_lists()
        while self.kubelet.asked is not None:
            self.kubelet_asks()

    def kubelet_answers(self) -> None:
        """Sync if kubelet has been woken, and do all that the sync has decided on, or the one in progress."""
        if self.kubelet.woken:
            self.kubelet_syncs()
        self.kubelet_finishes()

    def kubelet_finishes(self) -> None:
        """Do all that the sync has decided on."""
        while not self.kubelet.idle:
            self.kubelet_creates()
            self.kubelet_starts()

    def agent_turn(self) -> None:
        """List, and do all concurrent steps before kubelet acts again."""
        self.agent_looks()
        self.agent_acts()
        while self.todo:
            self.agent_acts()

    def running(self, name: str) -> list[ContainerSummary]:
        """Return the running containers of that name."""
        return [view for view in self.containers if view.ref.name == name and view.state is RUNNING]

    def _known(self) -> reset.Known:
        return reset.Known(
            exits=self.exits,
            running=frozenset(view.id for view in self.kubelet.shows if view.state is RUNNING),
            noticed=frozenset({view.ref.name: view.id for view in self.kubelet.shows}.values()),
            taken=frozenset(self.taken),
            afterwards=self.done is not None,
        )

    def _do(self, step: steps.Step) -> None:
        match step.kind:
            case steps.StepKind.STOP:
                self._set(step.container, EXITED)
            case steps.StepKind.REMOVE:
                self.containers = [view for view in self.containers if view.id != step.container]
            case steps.StepKind.RESERVE:
                assert step.name is not None
                assert step.attempt is not None
                if (
                    self._add(f"{step.name}{RESERVED}{step.attempt}", attempt=step.attempt, restart_id=self.intent.id)
                    is None
                ):
                    self.taken.add((step.name, step.attempt))
            case steps.StepKind.CREATE:
                assert step.name is not None
                self._add(step.name, attempt=1, restart_id=self.intent.id)
            case steps.StepKind.START:
                self._check_start(step)
                assert step.container is not None
                self._start(step.container)
            case steps.StepKind.DONE:
                self.done = step.reason

    def _check_start(self, step: steps.Step) -> None:
        started = next((view for view in self.containers if view.id == step.container), None)
        if started is None:
            return  # gone in the meantime: the call fails
        assert started.restart_id == self.intent.id, "only containers of this restart are started"
        assert RESERVED not in started.ref.name, "a reservation is never started"
        assert not [view for view in self.containers if view.id in self.intent.old_ids], "something old is left"
        self.we_started.append(started.ref.name)

    def _add(self, label: str, *, attempt: int, restart_id: str | None) -> ContainerId | None:
        """Create a container, unless its name is taken in the runtime, which is not the one that kubelet sees."""
        if any((name_of(v.ref.name), v.attempt) == (name_of(label), attempt) for v in self.containers):
            return None
        self.clock += 1
        identity = f"{restart_id or 'kubelet'}-{label}-{self.clock}"
        self.containers.append(
            pods.view(label, identity, attempt=attempt, state=CREATED, created_at=self.clock, restart_id=restart_id)
        )
        return ContainerId(identity)

    def _start(self, container: ContainerId) -> None:
        for item in self.containers:
            if item.id == container and item.state is CREATED:
                self.started[item.ref.name] = max(self.started.get(item.ref.name, 0), item.attempt)
                self.starts.append(item.ref.name)
                self._set(container, RUNNING)

    def _set(self, which: str | None, state: ContainerState) -> None:
        self.containers = [replace(view, state=state) if view.id == which else view for view in self.containers]

    def _sync_may_have_ended(self) -> None:
        """Make the next sync wait for a relist that began after the end of this one (``podCache.GetNewerThan``)."""
        if self.kubelet.idle:
            self.kubelet.saw, self.kubelet.asked, self.kubelet.listed = None, None, []
            self.kubelet.woken, self.kubelet.found_news = self.kubelet.woken or self.kubelet.found_news, False


MOVES: dict[str, Callable[[Simulation], object]] = {
    "relist": Simulation.kubelet_relists,
    "list": Simulation.kubelet_lists,
    "ask": Simulation.kubelet_asks,
    "sync": Simulation.kubelet_syncs,
    "create": Simulation.kubelet_creates,
    "start": Simulation.kubelet_starts,
    "end": Simulation.init_ends,
    "look": Simulation.agent_looks,
    "act": Simulation.agent_acts,
}

WITH_GARBAGE: dict[str, Callable[[Simulation], object]] = {**MOVES, "collect": Simulation.kubelet_collects}
WITH_CRASHES: dict[str, Callable[[Simulation], object]] = {**MOVES, "crash": Simulation.mains_crash}
