"""A ``Never`` pod with nothing but its trainer: kubelet must never find nothing running in it."""

from pathlib import Path

import pytest

from hack.devnode import node, readyz
from hack.devnode.observer import Observer
from tests.scenarios import training

pytestmark = pytest.mark.devnode

BUDGET = {"kubemend.io/restart": "InPlace", "kubemend.io/max-restarts": "100"}


async def test_a_lone_never_trainer_is_restarted_and_its_pod_is_never_failed(
    dev: node.DevNode, observer: Observer, tmp_path: Path
) -> None:
    name = "lone"
    async with (
        dev.agent(f"--state-dir={tmp_path / 'state'}") as agent,
        training.pod(dev, observer, name, restart_policy="Never", sidecar=False, annotations=BUDGET) as before,
    ):
        await readyz.until_ready(agent)
        seen = before
        for _ in range(3):
            await training.xid(dev, observer, name, 31)
            seen = await training.restarted(observer, name, seen)
            assert " Xid31" in await training.log_of(observer, name, seen) or not training.is_ours(seen)


async def test_a_lone_never_trainer_with_a_grace_period_is_refused_beforehand(
    dev: node.DevNode, observer: Observer, tmp_path: Path
) -> None:
    name = "lone-grace"
    asking = {**BUDGET, "kubemend.io/grace-period": "2s"}
    async with (
        dev.agent(f"--state-dir={tmp_path / 'state'}") as agent,
        training.pod(dev, observer, name, restart_policy="Never", sidecar=False, annotations=asking) as before,
    ):
        await readyz.until_ready(agent)
        await training.xid(dev, observer, name, 31)
        reported = await observer.until(
            name,
            lambda s: s.condition("InPlaceRestart").get("reason") == "NothingElseRuns",
            timeout=training.DEADLINE,
            what="the refusal",
        )
        assert "grace" in reported.condition("InPlaceRestart")["message"]
        await training.trains_on(observer, name, before)
