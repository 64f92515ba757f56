"""The pod's own rules against a kubelet that restarts the pod in its own time: any interleaving restarts it once.

Kubelet 1.36 (``computePodActions``, KEP-5532) finds the trigger exited with a code that the rule is about, kills the
running containers and removes every container, the trigger last, and then starts the pod from its beginning.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kubemend.agent.model.workloads import ContainerId, ContainerRole, ContainerSummary
from kubemend.agent.restart import rules, steps
from kubemend.agent.restart.intents import Strategy
from tests.unit.restart import pods
from tests.unit.restart.pods import EXITED, RUNNING, old

TRIGGER = ContainerId("old-trainer")
INTENT = pods.intent(strategy=Strategy.RULES, trigger=TRIGGER)
ORDER = [item.name for item in pods.PLAN]
LASTING = [item.name for item in pods.PLAN if item.role is not ContainerRole.INIT]


@dataclass
class Simulation:
    """A runtime, kubelet and one agent, moved one call at a time."""

    containers: list[ContainerSummary] = field(
        default_factory=lambda: [old("prepare", EXITED), *(old(name) for name in LASTING)]
    )
    exits: dict[ContainerId, int] = field(default_factory=lambda: {ContainerId("old-prepare"): 0})
    restarting: bool = False
    sees: list[ContainerSummary] | None = None
    resolution: steps.Resolution = steps.Resolution.FINISH
    killed: list[ContainerId | None] = field(default_factory=list)
    made: int = 0

    def kubelet_looks(self) -> None:
        """Relist; an exited trigger begins the restart of all."""
        trainer = self._newest("trainer")
        if trainer is not None and trainer.state is EXITED and self.exits.get(trainer.id) == rules.KILLED:
            self.restarting = True

    def kubelet_removes(self) -> None:
        """Remove the next container, killing it first; the trigger comes last."""
        left = sorted(self.containers, key=lambda view: view.ref.name == "trainer")
        if self.restarting and left:
            self.containers.remove(left[0])

    def kubelet_starts(self) -> None:
        """Start the next one in order once nothing is left; an init container ends at once."""
        if self.restarting and self._old_left():
            return
        missing = [name for name in ORDER if self._newest(name) is None]
        if not missing:
            return
        self.restarting = False
        self.made += 1
        name = missing[0]
        state = EXITED if name == "prepare" else RUNNING
        made = pods.view(name, f"new-{name}-{self.made}", attempt=1, state=state, created_at=10 + self.made)
        self.containers.append(made)
        self.exits[made.id] = 0

    def agent_looks(self) -> None:
        """List, as a restarted agent does first, too."""
        self.sees = list(self.containers)

    def agent_acts(self) -> None:
        """Take the next step by the last listing, which may be stale by now."""
        if self.sees is None:
            return
        (step,) = rules.next_steps(INTENT, self.sees, resolution=self.resolution)
        if step.kind is steps.StepKind.STOP:
            self.killed.append(step.container)
            self._kill(step.container)

    def agent_grows_stale(self) -> None:
        """Make the intent too old to be carried out."""
        self.resolution = steps.Resolution.UNDO

    def settle(self) -> None:
        """Run kubelet and agent to their ends."""
        for _ in range(20):
            self.agent_looks()
            self.agent_acts()
            self.kubelet_looks()
            self.kubelet_removes()
            self.kubelet_starts()

    def running(self, name: str) -> list[ContainerSummary]:
        """Return the running containers of that name."""
        return [view for view in self.containers if view.ref.name == name and view.state is RUNNING]

    def _kill(self, container: ContainerId | None) -> None:
        for number, view in enumerate(self.containers):
            if view.id == container and view.state is RUNNING:
                self.containers[number] = replace(view, state=EXITED)
                self.exits[view.id] = rules.KILLED

    def _newest(self, name: str) -> ContainerSummary | None:
        found = [view for view in self.containers if view.ref.name == name]
        return max(found, key=lambda view: view.created_at, default=None)

    def _old_left(self) -> bool:
        return any(view.id in INTENT.old_ids for view in self.containers)


MOVES: dict[str, Callable[[Simulation], object]] = {
    "kubelet looks": Simulation.kubelet_looks,
    "kubelet removes": Simulation.kubelet_removes,
    "kubelet starts": Simulation.kubelet_starts,
    "agent looks": Simulation.agent_looks,
    "agent acts": Simulation.agent_acts,
    "agent grows stale": Simulation.agent_grows_stale,
}


@settings(max_examples=600, deadline=None)
@given(moves=st.lists(st.sampled_from(sorted(MOVES)), max_size=40))
def test_rules_and_kubelet_interleaved_restart_the_pod_once_or_never(moves: list[str]) -> None:
    simulation = Simulation()
    for move in moves:
        MOVES[move](simulation)
        assert set(simulation.killed) <= {TRIGGER}, "what kubelet has started is none of its business"
    simulation.settle()
    assert {name: len(simulation.running(name)) for name in LASTING} == dict.fromkeys(LASTING, 1)
    old_ones = [name for name in LASTING if simulation.running(name)[0].id in INTENT.old_ids]
    assert old_ones == ([] if simulation.killed else LASTING), "half a restart"
    assert simulation.made == (len(ORDER) if simulation.killed else 0), "each container is started once"
