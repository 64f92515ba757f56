"""On a node that shuts down nothing is restarted, and every pod ends as kubelet ends it."""

from collections.abc import Iterator, Sequence
from typing import Final

import pytest

from bench.journal import Journal
from hack.devnode.runtime_config import CRIO, RuntimeOptions
from kubemend.agent.restart.intents import Strategy
from tests import eventually
from tests.scenarios.matrix.shutdown import cells
from tests.scenarios.matrix.shutdown.cells import Cell, End, Moment
from tests.scenarios.matrix.shutdown.env import Scene, ShutdownEnv

pytestmark = pytest.mark.devnode

SIDE_BY_SIDE: Final = 8


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "batch" in metafunc.fixturenames:
        full = metafunc.config.getoption("--matrix", "selection") == "full"
        on_crio = RuntimeOptions().program == CRIO
        every = list(cells.every(on_crio=on_crio)) if full else cells.selection(on_crio=on_crio)
        batches = [every[first : first + SIDE_BY_SIDE] for first in range(0, len(every), SIDE_BY_SIDE)]
        metafunc.parametrize("batch", batches, ids=[str(number) for number in range(1, len(batches) + 1)])


async def test_node_that_shuts_down_restarts_nothing(env: ShutdownEnv, batch: list[Cell]) -> None:
    played = await env.play(batch)
    found = [f"{scene.cell}: {line}" for scene in played for line in violations(scene)]
    await env.clear(batch)
    assert not found, "\n".join(found)
    await eventually.true(lambda: Journal.of(env.board.state).open_entries() == ())
    async with env.board.pod("next") as seen:
        await env.board.restarted("next", Strategy.SWAP, seen)


def violations(scene: Scene) -> Iterator[str]:
    """Yield what must not be."""
    status, cell = scene.after["status"], scene.cell
    if (phase := (status["phase"], status.get("reason"))) not in phases_of(cell):
        yield f"its phase is {phase}, not one of {phases_of(cell)}"
    if ("DisruptionTarget", "True", "TerminationByKubelet") not in conditions(scene):
        yield f"kubelet has not marked it: {conditions(scene)}"
    if scene.started:
        yield f"kubemend has started {scene.started}"
    if scene.alive:
        yield f"it has failed, and has {scene.alive}"
    if (cell.moment.under_way or cell.moment is Moment.ASKED) and scene.reported[-1]["ok"]:
        yield f"its restart has succeeded: {scene.reported}"
    if cell.moment is Moment.ASKED and scene.reported[-1]["reason"] != "PodDeleting":
        yield f"its restart was not refused for the shutdown: {scene.reported}"


def phases_of(cell: Cell) -> Sequence[tuple[str, str | None]]:
    """Return the phases and reasons that kubelet may give the pod.

    One that completes keeps its success if kubelet has computed its phase before it marks the pod (``killPods`` in
    pkg/kubelet/nodeshutdown/nodeshutdown_manager.go).
    """
    terminated = ("Failed", "Terminated")
    return (terminated, ("Succeeded", None)) if cell.end is End.COMPLETES else (terminated,)


def conditions(scene: Scene) -> Sequence[tuple[str, str, str]]:
    """Return the pod's conditions: type, status, reason."""
    return [(each["type"], each["status"], each.get("reason", "")) for each in scene.after["status"]["conditions"]]
