"""Kubelet's consent is told by the API server: one that hangs has told nothing, whatever it said last."""

import pytest
import structlog

from tests.unit.actuator.conftest import rig
from tests.unit.engine.test_recovery import killed_after_the_stop, recovery
from tests.unit.engine.test_restarts import World, world

__all__ = ["rig", "world"]


@pytest.mark.parametrize(
    ("answers", "state"), [(True, "failed"), (False, "unknown")], ids=["kubelet shows another one", "nobody can tell"]
)
async def test_a_restart_fails_by_what_is_told_and_not_by_what_was_told_once(
    world: World, answers: bool, state: str
) -> None:
    await killed_after_the_stop(world)
    world.pod.pods.answers = answers
    with structlog.testing.capture_logs() as logs:
        await recovery(world, patience=0.0).run()
    (verified,) = [each for each in logs if each["event"] == "restart.verified"]
    assert verified["checks"] == {"kubelet-agrees": state, "one-running": "passed"}
