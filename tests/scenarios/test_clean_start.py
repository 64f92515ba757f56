"""A pod's /dev/shm on real containers: the old trainer's files are removed for the new one, those in use are kept."""

import os
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hack.devnode import node, readyz, trainer
from hack.devnode.observer import Observer, Seen
from tests.scenarios import training

pytestmark = pytest.mark.devnode

_TRIES = 3
CLEAN = {"kubemend.io/restart": "InPlace", "kubemend.io/clean": "shm"}

# Logs what it finds, and then leaves files.
MESSY = f"""
echo "found in shm: $(ls -A /dev/shm | tr '\\n' ' ')."
mkdir -p /dev/shm/nccl && touch /dev/shm/nccl/lock && echo x > /dev/shm/polluted
ln -s {trainer.CHECKPOINTS} /dev/shm/link
{trainer.TRAIN}
"""
# Keeps one file open and one not.
SIDECAR = f"""
exec 3> /dev/shm/open-elsewhere
echo queue >&3
touch /dev/shm/closed-elsewhere
{trainer.SIDECAR}
"""


@pytest.fixture
def own_state(tmp_path: Path) -> str:
    return f"--state-dir={tmp_path / 'state'}"


def shipper(manifest: dict[str, Any], script: str) -> dict[str, Any]:
    """Give the pod's sidecar another script."""
    (sidecar,) = [each for each in manifest["spec"]["initContainers"] if each["name"] == "shipper"]
    sidecar["command"][-1] = script
    return manifest


def exists(file: Path) -> bool:
    return file.exists()


async def found(observer: Observer, name: str, seen: Seen) -> set[str]:
    """Return what the trainer's latest run has found in its /dev/shm, once it has logged that: its first line."""
    line = (await training.log_of(observer, name, seen)).splitlines()[0]
    return set(line.partition("found in shm: ")[2].rstrip(".").split())


async def restarted(dev: node.DevNode, observer: Observer, name: str, before: Seen) -> tuple[set[str], str]:
    """Restart the trainer; return what its successor found in its /dev/shm, and the condition's message.

    Once more where kubelet was faster: it does not clean.
    """
    for _ in range(_TRIES):
        await training.xid(dev, observer, name, 31)
        before = await training.fixed(observer, name, before, because="Xid 31")
        condition = before.condition("InPlaceRestart")
        if condition["reason"] != "Adopted":
            return await found(observer, name, before), condition["message"]
    pytest.fail(f"kubelet was faster {_TRIES} times")


async def test_old_trainers_files_go_and_a_sidecars_open_file_stays(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    manifest = shipper(trainer.manifest("messy", node=dev.name, annotations=CLEAN, script=MESSY), SIDECAR)
    async with dev.agent(own_state) as agent, training.made(observer, manifest) as before:
        await readyz.until_ready(agent)
        there, message = await restarted(dev, observer, "messy", before)
        assert there == {"open-elsewhere"}
        assert " files removed (0.0 MiB), 1 left ('open-elsewhere' is in use)" in message
        assert "clean " in message, "how long it took"
        assert (observer.volume(before.uid) / "step").exists(), "the link was not followed"


async def test_without_the_annotation_nothing_is_touched(dev: node.DevNode, observer: Observer, own_state: str) -> None:
    async with dev.agent(own_state) as agent, training.pod(dev, observer, "kept", script=MESSY) as before:
        await readyz.until_ready(agent)
        there, message = await restarted(dev, observer, "kept", before)
        assert there == {"nccl", "polluted", "link"}
        assert "/dev/shm" not in message


async def test_lone_never_trainer_finds_it_clean(dev: node.DevNode, observer: Observer, own_state: str) -> None:
    fields: dict[str, Any] = {"restart_policy": "Never", "sidecar": False, "annotations": CLEAN, "script": MESSY}
    async with dev.agent(own_state) as agent, training.pod(dev, observer, "messy-never", **fields) as before:
        await readyz.until_ready(agent)
        there, message = await restarted(dev, observer, "messy-never", before)
        assert there == set()
        assert "/dev/shm: 3 files removed" in message


async def rerun(dev: node.DevNode, observer: Observer, name: str) -> Seen:
    """Rerun a pod; return it after that. Once more where kubelet was faster."""

    def is_verified(seen: Seen, *, number: int) -> bool:
        message = seen.condition("InPlaceRestart").get("message", "")
        return f"trainer restart {number} by rerun" in message and message.endswith("; verified")

    for number in range(1, _TRIES + 1):
        await training.xid(dev, observer, name, 31)
        after = await observer.until(
            name, partial(is_verified, number=number), timeout=training.DEADLINE, what="the verified rerun"
        )
        if "kubelet's container has run already" not in after.condition("InPlaceRestart")["message"]:
            return after
    pytest.fail(f"kubelet was faster {_TRIES} times")


async def test_a_rerun_cleans_before_the_init_containers_run(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    annotations = CLEAN | {"kubemend.io/strategy": "rerun"}
    after_sidecar = f"until [ -e /dev/shm/closed-elsewhere ]; do sleep 0.05; done\n{MESSY}"
    messy = trainer.manifest("messy-rerun", node=dev.name, annotations=annotations, script=after_sidecar)
    manifest = shipper(messy, SIDECAR)
    prepare = manifest["spec"]["initContainers"][0]
    prepare["command"][-1] = "ls -A /dev/shm; touch /dev/shm/made-by-init\n" + prepare["command"][-1]
    async with dev.agent(own_state) as agent, training.made(observer, manifest):
        await readyz.until_ready(agent)
        after = await rerun(dev, observer, "messy-rerun")
        assert "/dev/shm: 6 files removed" in after.condition("InPlaceRestart")["message"]
        there = await found(observer, "messy-rerun", after)
        assert there == {"made-by-init", "open-elsewhere", "closed-elsewhere"}


async def test_a_volume_of_its_own_is_emptied(dev: node.DevNode, observer: Observer, own_state: str) -> None:
    manifest = trainer.manifest("messy-volume", node=dev.name, annotations=CLEAN, script=MESSY)
    manifest["spec"]["volumes"].append({"name": "dshm", "emptyDir": {"medium": "Memory"}})
    manifest["spec"]["containers"][0]["volumeMounts"].append({"name": "dshm", "mountPath": "/dev/shm"})
    async with dev.agent(own_state) as agent, training.made(observer, manifest) as before:
        await readyz.until_ready(agent)
        there, message = await restarted(dev, observer, "messy-volume", before)
        assert there == set()
        assert "/dev/shm: 3 files removed" in message


@pytest.fixture
def on_the_node() -> Iterator[Path]:
    """A file in the node's own /dev/shm."""
    file = Path(f"/dev/shm/kubemend-test-{os.getpid()}")
    file.touch()
    yield file
    file.unlink()


async def test_nodes_own_is_left_alone_and_reported(
    dev: node.DevNode, observer: Observer, own_state: str, on_the_node: Path
) -> None:
    manifest = trainer.manifest("host-ipc", node=dev.name, annotations=CLEAN)
    manifest["spec"]["hostIPC"] = True
    async with dev.agent(own_state) as agent, training.made(observer, manifest) as before:
        await readyz.until_ready(agent)
        _, message = await restarted(dev, observer, "host-ipc", before)
        assert "/dev/shm: not emptied: it is the node's (hostIPC)" in message
    assert exists(on_the_node)
