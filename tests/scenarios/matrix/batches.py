"""Select the cells that are played, and those that run side by side."""

import itertools
from collections import defaultdict
from collections.abc import Iterator, Sequence

import pytest

from hack.devnode.runtime_config import CRIO, RuntimeOptions
from tests.scenarios.matrix import cells
from tests.scenarios.matrix.cells import PLACED, Acts, Cell, Look

SIDE_BY_SIDE = 8
REPEATS = 5
"""How often the whole matrix plays each cell where kubelet's relist falls at random."""


def placed(config: pytest.Config) -> list[object]:
    """Return the batches in which kubelet's relist is placed."""
    return _parameters(_wanted(config, looks=PLACED))


def unplaced(config: pytest.Config) -> list[object]:
    """Return the batches in which kubelet relists freely.

    A pod whose container has ended by itself, and is not to be restarted, is ended by kubelet: there is nothing to see.
    """
    found = [
        cell
        for cell in _wanted(config, looks=(Look.ANY,))
        if not (cell.end.by_itself and cells.refusal(cell, can_hold=True) is not None)
    ]
    restarted = [cell for cell in found if cells.refusal(cell, can_hold=True) is None]
    return _parameters(found + restarted * (REPEATS - 1 if _is_full(config) else 0))


def selection(every: Sequence[Cell]) -> list[Cell]:
    """Return some restarts that have all pairs of values, and one refusal for each reason and strategy."""
    refused: dict[object, Cell] = {}
    for cell in every:
        if (reason := cells.refusal(cell, can_hold=True)) is not None:
            refused.setdefault((reason, cell.strategy), cell)
    restarted = [cell for cell in every if cells.refusal(cell, can_hold=True) is None]
    return [*cells.covering(restarted), *refused.values()]


def _wanted(config: pytest.Config, *, looks: tuple[Look, ...]) -> list[Cell]:
    # Cells that need a hold are refused, with the table's reason for that, where the node cannot hold.
    on_crio = RuntimeOptions().program == CRIO
    every = list(cells.every(can_hold=True, looks=looks, on_crio=on_crio))
    return every if _is_full(config) else selection(every)


def _is_full(config: pytest.Config) -> bool:
    return bool(config.getoption("--matrix", "selection") == "full")


def _parameters(wanted: Sequence[Cell]) -> list[object]:
    """Return the batches. All but the first are long: the whole matrix is not for every run of the tests."""
    by_kind: defaultdict[Acts, list[Cell]] = defaultdict(list)
    for cell in wanted:
        by_kind[cell.acts].append(cell)
    every = [
        (f"kubelet {acts.value}, {number}", batch)
        for acts, found in by_kind.items()
        for number, batch in enumerate(_batched(found), start=1)
    ]
    return [
        pytest.param(batch, id=name, marks=[pytest.mark.long] if place else [])
        for place, (name, batch) in enumerate(every)
    ]


def _batched(found: Sequence[Cell]) -> Iterator[list[Cell]]:
    rest = iter(found)
    while batch := list(itertools.islice(rest, SIDE_BY_SIDE)):
        yield batch
