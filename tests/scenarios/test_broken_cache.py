"""A file in its compile cache crashes a trainer: the restart after the second early failure in a row removes it."""

import re
from pathlib import Path
from typing import Any

import pytest

from hack.devnode import node, readyz, trainer
from hack.devnode.observer import Observer, Seen
from kubemend.common import cache_volume
from tests import eventually
from tests.scenarios import training

pytestmark = pytest.mark.devnode

_KERNEL = "triton/kernel"
EMPTIED = re.compile(r"cache of trainer emptied after [2-9] early failures \(3 files removed\)")
COMPILES = f"""
kernel={cache_volume.PATH}/trainer/{_KERNEL}
if grep -qs broken $kernel; then exit 7; fi
mkdir -p $(dirname $kernel) && echo compiled >> $kernel
step=$(cat {trainer.CHECKPOINTS}/step 2>/dev/null || echo 0)
while ! grep -qs broken $kernel; do
  step=$((step + 1))
  echo $step > {trainer.CHECKPOINTS}/step.new && mv {trainer.CHECKPOINTS}/step.new {trainer.CHECKPOINTS}/step
  sleep 0.02
done
exit 7
"""
"""A trainer that compiles a kernel into its cache, and exits with an error once the kernel is broken."""


@pytest.fixture
def own_state(tmp_path: Path) -> str:
    return f"--state-dir={tmp_path / 'state'}"


def with_cache(dev: node.DevNode, name: str, **annotations: str) -> dict[str, Any]:
    """Return the pod as the component caches would create it."""
    wishes = {"kubemend.io/restart": "InPlace"} | {f"kubemend.io/{key}": text for key, text in annotations.items()}
    made = trainer.manifest(name, node=dev.name, annotations=wishes, script=COMPILES)
    made["spec"]["volumes"].append({"name": cache_volume.NAME, "emptyDir": {}})
    made["spec"]["containers"][0]["volumeMounts"].append({"name": cache_volume.NAME, "mountPath": cache_volume.PATH})
    return made


def volume(observer: Observer, seen: Seen) -> Path:
    """Return the pod's cache volume on the host."""
    return observer.volume(seen.uid).with_name(cache_volume.NAME)


def is_emptied(seen: Seen) -> bool:
    return EMPTIED.search(seen.condition("InPlaceRestart").get("message", "")) is not None


def restarts(seen: Seen) -> int:
    return seen.restart_counts["trainer"]


@pytest.mark.parametrize("strategy", ["swap", pytest.param("rerun", marks=pytest.mark.long)])
async def test_trainer_with_a_broken_cache_recovers_after_two_early_failures(
    dev: node.DevNode, observer: Observer, own_state: str, strategy: str
) -> None:
    """Or at the next one, where kubelet was faster: it keeps the cache."""
    name = f"broken-cache-{strategy}"
    async with (
        dev.agent(own_state) as agent,
        training.made(observer, with_cache(dev, name, strategy=strategy)) as before,
    ):
        await readyz.until_ready(agent)
        there = volume(observer, before)
        (there / "shipper").mkdir()
        (there / "shipper" / "log").touch()
        (there / "trainer" / _KERNEL).write_text("broken")
        after = await observer.until(
            name,
            lambda seen: restarts(seen) >= 3 and is_emptied(seen),
            timeout=training.DEADLINE,
            what="restarted with an empty cache",
        )
        assert "cache of shipper" not in after.condition("InPlaceRestart")["message"]
        await observer.until(name, training.is_training, timeout=training.DEADLINE, what="training again")
        compiled = there / "trainer" / _KERNEL
        await eventually.true(lambda: compiled.exists() and compiled.read_text() == "compiled\n")
        assert sorted(path.name for path in there.iterdir()) == ["shipper", "trainer"]
        assert (there / "shipper" / "log").exists()
