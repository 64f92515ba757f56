"""The matrix with kubelet's look placed exactly, and kubelet acting on it at once or late."""

import pytest

from tests.scenarios.matrix import batches, checks
from tests.scenarios.matrix.cells import Cell
from tests.scenarios.matrix.stage import Stage

pytestmark = [pytest.mark.devnode, pytest.mark.asyncio(loop_scope="module")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("batch", batches.placed(metafunc.config))


async def test_each_cell_is_restarted_or_refused_as_it_must_be(placed: Stage, batch: list[Cell]) -> None:
    played = await placed.play(batch)
    found = [line for scene in played for line in checks.violations(scene, can_hold=placed.engine.can_hold)]
    await placed.clear(played)
    assert not found, "\n".join(found)
