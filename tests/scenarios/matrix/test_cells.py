"""The table of the matrix is complete, and the selection covers every pair that occurs."""

import itertools

import pytest

from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restart.reasons import Reason
from tests.scenarios.matrix import batches, cells
from tests.scenarios.matrix.cells import End, Look, Policy, Shape

EVERY = list(cells.every(can_hold=True))
ON_CRIO = list(cells.every(can_hold=True, on_crio=True))


def test_every_value_of_every_kind_occurs_in_a_restart() -> None:
    restarts = [cell for cell in EVERY if cells.refusal(cell, can_hold=True) is None]
    assert {cell.policy for cell in restarts} == set(Policy)
    assert {cell.end for cell in restarts} == set(End)
    assert {cell.shape for cell in restarts} == set(Shape)
    assert {cell.look for cell in restarts} == set(cells.PLACED)
    assert {cell.strategy for cell in restarts} == set(Strategy) - {
        Strategy.AUTO,
        Strategy.PROCESS,
    }  # which makes no container


@pytest.mark.parametrize("every", [EVERY, ON_CRIO], ids=["containerd", "cri-o"])
def test_each_combination_is_refused_or_restarted(every: list[cells.Cell]) -> None:
    kinds = (cell.strategy for cell in every), Policy, End, Shape
    combinations = set(itertools.product(*(set(kind) for kind in kinds)))
    assert {(cell.strategy, cell.policy, cell.end, cell.shape) for cell in every} == combinations


def test_every_reason_of_a_refusal_occurs() -> None:
    reasons = {cells.refusal(cell, can_hold=True) for cell in EVERY} - {None}
    assert reasons == {
        Reason.ALREADY_TERMINATED,
        Reason.COMPLETED,
        Reason.NO_RESTART_RULE,
        Reason.RESTART_POLICY_NEVER,
        Reason.GRACE_COULD_COMPLETE,
        Reason.NOTHING_ELSE_RUNS,
    }


def test_crio_refuses_reruns_and_swaps_with_a_grace_period() -> None:
    """The successor must be compared before anything is stopped, and may not wait CREATED for so long."""

    def refused(every: list[cells.Cell]) -> set[tuple[object, ...]]:
        return {
            (cell.strategy, cell.policy, cell.end, cell.shape)
            for cell in every
            if cells.refusal(cell, can_hold=True) is not None
        }

    more = refused(ON_CRIO) - refused(EVERY)
    assert refused(EVERY) < refused(ON_CRIO)
    assert {strategy for strategy, *_ in more} == {Strategy.RERUN, Strategy.SWAP}
    assert {(policy, end) for strategy, policy, end, _ in more if strategy is Strategy.SWAP} == {
        (Policy.ALWAYS, end) for end in End if end.name.startswith("TERM")
    }


def test_selection_covers_each_pair_of_restarted_values() -> None:
    def pairs(found: list[cells.Cell]) -> set[tuple[object, object]]:
        return {
            pair
            for cell in found
            if cells.refusal(cell, can_hold=True) is None
            for pair in itertools.combinations((cell.policy, cell.strategy, cell.end, cell.shape, cell.look), 2)
        }

    selection = batches.selection(EVERY)
    assert pairs(selection) == pairs(EVERY)
    assert len(selection) < 0.1 * len(EVERY)


def test_each_restarted_cell_has_a_relist_moment() -> None:
    for cell in (*EVERY, *ON_CRIO):
        if cells.refusal(cell, can_hold=True) is None:
            assert cells.place(cell) is not None, cell
    assert Look.ANY not in {cell.look for cell in EVERY}
