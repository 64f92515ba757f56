"""The matrix on a real kubelet, whose look falls where it likes."""

import pytest

from tests.scenarios.matrix import batches, checks
from tests.scenarios.matrix.cells import Cell
from tests.scenarios.matrix.stage import Stage

pytestmark = [pytest.mark.devnode, pytest.mark.asyncio(loop_scope="module")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("batch", batches.unplaced(metafunc.config))


async def test_each_cell_is_restarted_or_refused_as_it_must_be(real: Stage, batch: list[Cell]) -> None:
    played = await real.play(batch)
    found = [line for scene in played for line in checks.violations(scene, can_hold=real.engine.can_hold)]
    await real.clear(played)
    assert not found, "\n".join(found)
