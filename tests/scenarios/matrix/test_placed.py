"""The matrix with kubelet's relist placed exactly, and kubelet acting on it at once or late."""

import pytest

from tests.scenarios.matrix import batches, checks
from tests.scenarios.matrix.cells import Cell
from tests.scenarios.matrix.env import MatrixEnv

pytestmark = [pytest.mark.devnode, pytest.mark.asyncio(loop_scope="package")]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    metafunc.parametrize("batch", batches.placed(metafunc.config))


async def test_each_cell_has_its_expected_result(env: MatrixEnv, batch: list[Cell]) -> None:
    played = await env.play(batch)
    found = [line for scene in played for line in checks.violations(scene, can_hold=env.engine.can_hold)]
    await env.clear(played)
    assert not found, "\n".join(found)
