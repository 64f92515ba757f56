"""A verified restart stays as it is: nothing that kubelet has seen before can start another container.

The agent stops watching once kubelet's status shows the current container (``agent.restarts.verifier``). A container
that kubelet starts after that would stay next to the successor, because kubelet never kills the older one of two.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubemend.agent.model.workloads import ContainerId, ContainerRole, ContainerSpec, ContainerSummary, PodView
from kubemend.agent.restart import intents, steps, swap, verification
from kubemend.agent.restart.verification import CheckState
from tests.unit.restart import builders
from tests.unit.restart.test_swap_rule import CREATED, RUNNING, Simulation

MAIN = ContainerRole.MAIN
AGREED = CheckState.PASSED


@dataclass
class Watched(Simulation):
    """Kubelet reports its listing to the API and only then acts on it; the agent watches until kubelet agrees."""

    reported: ContainerSummary | None = field(default_factory=lambda: builders.view("old"))
    about_to: ContainerSummary | None = None
    looked_away: bool = False

    def kubelet_tells(self) -> None:
        """Begin a sync: report the last listing. One worker per pod: not while it starts something."""
        if self.kubelet_saw is not None and self.about_to is None and self.kubelet_starts is None:
            self.reported, self.about_to = self.kubelet_saw, self.kubelet_saw
            self.kubelet_saw = None

    def kubelet_acts(self) -> None:
        """End the sync: create the containers that it found missing."""
        if self.about_to is not None and self.kubelet_starts is None:
            later, self.kubelet_saw, self.about_to = self.kubelet_saw, self.about_to, None
            self.kubelet_syncs()
            self.kubelet_saw = self.kubelet_saw or later

    def agent_verifies(self) -> None:
        """Stop watching if the runtime has one current container, kubelet agrees, and one more listing is the same."""
        step = swap.next_step(self.intent, self.containers)
        if step.kind is steps.StepKind.DONE and step.container is not None:
            check = verification.kubelet_agrees(self._pod(), expected={"trainer": step.container})
            self.looked_away = check.state is AGREED

    def _pod(self) -> PodView:
        spec = ContainerSpec(name="trainer", role=MAIN)
        if self.reported is not None:
            spec = replace(spec, container_id=self.reported.id, running=self.reported.state is RUNNING)
        return builders.pod(containers=(spec,))


MOVES: dict[str, Callable[[Watched], object]] = {
    "relist": Watched.kubelet_relists,
    "tell": Watched.kubelet_tells,
    "act": Watched.kubelet_acts,
    "start": Watched.kubelet_starts_what_it_created,
    "agent": Watched.agent_acts,
}
MORE = ("agent", "relist", "tell", "agent", "act", "start") * 20
"""The final moves after any others: in the end the agent is satisfied."""


def alone(simulation: Watched) -> None:
    """Let kubelet complete all its pending work, without the agent."""
    for _ in range(10):
        simulation.kubelet_acts()
        simulation.kubelet_starts_what_it_created()
        simulation.kubelet_relists()
        simulation.kubelet_tells()


@settings(max_examples=1500, deadline=None)
@given(
    order=st.sampled_from(intents.SwapOrder),
    moves=st.lists(st.sampled_from(sorted(MOVES)), max_size=30),
)
def test_settled_rerun_gets_no_later_copy(order: intents.SwapOrder, moves: list[str]) -> None:
    simulation = Watched(builders.intent(order=order))
    for move in (*moves, *MORE):
        MOVES[move](simulation)
        simulation.agent_verifies()
        if simulation.looked_away:
            break
    assert simulation.looked_away
    alone(simulation)
    assert [view.state for view in simulation.containers if view.state in (RUNNING, CREATED)] == [RUNNING]


NEW = {"trainer": ContainerId("new")}


@pytest.mark.parametrize(
    ("spec", "agrees"),
    [
        pytest.param(ContainerSpec("trainer", MAIN, container_id=ContainerId("new"), running=True), True, id="runs"),
        pytest.param(ContainerSpec("trainer", MAIN, container_id=ContainerId("new")), False, id="found-created"),
        pytest.param(ContainerSpec("trainer", MAIN, container_id=ContainerId("old"), running=True), False, id="old"),
        pytest.param(ContainerSpec("trainer", MAIN), False, id="none"),
        pytest.param(
            ContainerSpec("trainer", ContainerRole.SIDECAR, container_id=ContainerId("new")), False, id="sidecar"
        ),
        pytest.param(ContainerSpec("trainer", ContainerRole.INIT, container_id=ContainerId("new")), True, id="init"),
    ],
)
def test_kubelet_agrees_once_it_has_seen_the_survivor_run(spec: ContainerSpec, agrees: bool) -> None:
    check = verification.kubelet_agrees(builders.pod(containers=(spec,)), expected=NEW)
    assert check.state is (CheckState.PASSED if agrees else CheckState.FAILED)
