"""Trainers whose container's command is kubemend's launcher, on the real kubelet."""

import asyncio
import contextlib
import functools
import os
import re
import signal
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest

from hack.devnode import images, manifests, node, readyz, trainer
from hack.devnode import launched as launching
from hack.devnode.observer import Observer, Seen
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths
from tests import eventually
from tests.scenarios import components, training
from tests.scenarios.test_heartbeats import watched

pytestmark = pytest.mark.devnode


@pytest.fixture
def own_state(tmp_path: Path) -> str:
    return f"--state-dir={tmp_path / 'state'}"


def launched(dev: node.DevNode, name: str, *, gpus: int = 2, **annotations: str) -> dict[str, Any]:
    """Return a pod whose trainer is a Python program that the launcher runs."""
    wishes = {"kubemend.io/restart": "InPlace"} | {
        f"kubemend.io/{key.replace('_', '-')}": text for key, text in annotations.items()
    }
    return launching.manifest(name, node=dev.name, gpus=gpus, annotations=wishes)


async def restarted(observer: Observer, name: str, before: Seen, *, by: str, because: str) -> Seen:
    """Wait for a verified restart by a strategy."""

    def is_done(seen: Seen) -> bool:
        message = seen.condition("InPlaceRestart").get("message", "")
        return f" by {by} in " in message and f" because {because}" in message and message.endswith("; verified")

    after = await observer.until(name, is_done, timeout=training.DEADLINE, what=f"a restart of {name} by {by}")
    assert (after.uid, after.ip, after.sandbox, after.phase) == (before.uid, before.ip, before.sandbox, "Running")
    return after


def is_unchanged(before: Seen, after: Seen) -> bool:
    """Return whether kubelet has seen nothing: the same container, and no restart counted."""
    return (before.running, before.restart_counts) == (after.running, after.restart_counts)


def log(observer: Observer, name: str, seen: Seen) -> Callable[[], str]:
    """Return what reads the log of the trainer's container."""
    restart = seen.restart_counts["trainer"]
    return functools.partial(observer.log, name, seen.uid, container="trainer", restart=restart)


async def test_a_fault_of_the_program_makes_no_container_and_the_next_one_does(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    name = "launched"
    async with dev.agent(own_state) as agent, training.made(observer, launched(dev, name)) as before:
        await readyz.until_ready(agent)
        await spare_is_ready(observer, name)
        await training.xid(dev, observer, name, 31)
        after = await restarted(observer, name, before, by="process", because="Xid 31")
        assert is_unchanged(before, after)
        assert after.condition("InPlaceRestart")["reason"] == "Restarted"
        await training.healthy(observer, name)
        read = log(observer, name, after)
        await eventually.true(lambda: read().count("resumed from step") == 2)
        *_, resumed = [line for line in read().splitlines() if "resumed from step" in line]
        assert resumed.endswith(" 1")
        await training.trains_on(observer, name, after)
        await training.xid(dev, observer, name, 31)
        again = await restarted(observer, name, after, by="swap", because="Xid 31")
        assert again.running["trainer"] != after.running["trainer"]


async def spare_is_ready(observer: Observer, name: str) -> None:
    """Wait until the pod's condition has the memory of a spare that is ready."""

    def is_ready(seen: Seen) -> bool:
        spare = seen.condition("WarmSpare")
        return spare.get("status") == "True" and re.fullmatch(SPARE, spare["message"]) is not None

    await observer.until(name, is_ready, timeout=training.DEADLINE, what=f"a warm spare of {name}")


SPARE: Final = r"trainer: ready, [0-9]+\.[0-9] MiB"


AGENT: Final[dict[str, Any]] = {
    "metadata": {"name": "kubemend-agent"},
    "spec": {
        "selector": {"matchLabels": {"app": "agent"}},
        "template": {
            "metadata": {"labels": {"app": "agent"}},
            "spec": {"nodeName": "absent", "containers": [{"name": "agent", "image": images.BUSYBOX}]},
        },
    },
}
"""The DaemonSet that names the launcher's image, without its pods."""


@contextlib.asynccontextmanager
async def agents_image(api: kube.KubeClient) -> AsyncIterator[None]:
    """Have the DaemonSet for the length of the block."""
    await manifests.apply(api)
    daemon_sets = paths.collection("daemonsets", group="apps", namespace="kubemend")
    await api.create(daemon_sets, AGENT)
    try:
        yield
    finally:
        await api.delete(f"{daemon_sets}/kubemend-agent", options={})


async def test_component_runs_a_named_program_by_the_launcher_in_the_agents_image(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    name = "launched-by-policy"
    pod = launched(dev, name, launcher="trainer", launcher_options="--spare-after 1")
    (container,) = pod["spec"]["containers"]
    container["command"] = [sys.executable, "-u", "-c", launching.TRAIN]
    container.pop("args", None)
    component = components.in_force(observer.api, "launcher", asked=pod, volume="kubemend-launcher")
    async with (
        agents_image(observer.api),
        component,
        dev.agent(own_state) as agent,
        training.made(observer, pod) as before,
    ):
        await readyz.until_ready(agent)
        await spare_is_ready(observer, name)
        read = log(observer, name, before)
        await training.xid(dev, observer, name, 31)
        after = await restarted(observer, name, before, by="process", because="Xid 31")
        assert is_unchanged(before, after)
        await eventually.true(lambda: read().count("resumed from step") == 2)


_BREAKS_ITS_CACHE: Final = f"""
import os, sys
folder = os.environ["TRITON_CACHE_DIR"]
if "KUBEMEND_RESTART_COUNT" not in os.environ:
    os.makedirs(folder)
    open(folder + "/broken", "w").close()
if os.path.exists(folder + "/broken"):
    sys.exit(3)
{launching.TRAIN}"""


async def test_cache_that_breaks_the_program_is_emptied_in_the_volume_as_kubelet_mounts_it(
    dev: node.DevNode, observer: Observer
) -> None:
    """No agent runs. The launcher recognises the volume by its path on the node."""
    name = "launched-broken"
    pod = launching.manifest(name, node=dev.name, gpus=0, program=_BREAKS_ITS_CACHE)
    (container,) = pod["spec"]["containers"]
    container.setdefault("env", []).append({"name": "TRITON_CACHE_DIR", "value": f"{launching.CACHE}/trainer/triton"})
    async with training.made(observer, pod) as running:
        read = log(observer, name, running)
        await eventually.true(lambda: "resumed from step" in read())
        assert f"the cache {launching.CACHE}/trainer is emptied after 2 early failures" in read()
        assert running.restart_counts["trainer"] == 0


@pytest.mark.long
async def test_a_hang_is_one_of_the_program_and_its_heartbeat_is_watched_again(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    name = "launched-hangs"
    pod = launched(
        dev,
        name,
        gpus=0,
        strategy="process",
        heartbeat_file=f"{trainer.CHECKPOINTS}/beat",
        heartbeat_timeout="5s",
    )
    async with dev.agent(own_state) as agent, training.made(observer, pod) as before:
        await readyz.until_ready(agent)
        for number in (1, 2):
            await watched(agent, name)
            hang = observer.volume(before.uid) / "hang"
            hang.touch()
            after = await again(observer, name, number)
            hang.unlink()
            assert is_unchanged(before, after)
            await training.trains_on(observer, name, after)
        assert log(observer, name, before)().count("resumed from step") == 3


_FAILS_AND_STARTS_SLOWLY: Final = f"""
import os, time
while "KUBEMEND_RESTART_COUNT" in os.environ and not os.path.exists("{trainer.CHECKPOINTS}/go"):
    time.sleep(0.05)
{launching.TRAIN}
    if "KUBEMEND_RESTART_COUNT" not in os.environ and os.path.exists("fail"):
        os._exit(3)
"""


@pytest.mark.long
async def test_program_that_its_launcher_has_restarted_may_start_as_slowly_as_in_a_new_container(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    """Its next heartbeat is its first: it does not count as hung before."""
    name = "launched-slowly"
    annotations = {
        "kubemend.io/restart": "InPlace",
        "kubemend.io/heartbeat-file": f"{trainer.CHECKPOINTS}/beat",
        "kubemend.io/heartbeat-timeout": "5s",
    }
    pod = launching.manifest(name, node=dev.name, gpus=0, program=_FAILS_AND_STARTS_SLOWLY, annotations=annotations)
    labels = {"namespace": "default", "pod": name, "container": "trainer"}

    async with dev.agent(own_state) as agent, training.made(observer, pod) as before:

        async def is_unwatched() -> bool:
            return await training.series(agent, "kubemend_heartbeat_age_seconds", **labels) is None

        await readyz.until_ready(agent)
        await watched(agent, name)
        (observer.volume(before.uid) / "fail").touch()
        await eventually.true(is_unwatched)
        (observer.volume(before.uid) / "go").touch()
        await watched(agent, name)
        after = await training.trains_on(observer, name, before)
        *_, resumed = [line for line in log(observer, name, after)().splitlines() if "resumed from step" in line]
        assert (is_unchanged(before, after), resumed.split()[-1]) == (True, "1")


async def again(observer: Observer, name: str, number: int) -> Seen:
    """Wait for the trainer's restart with this number, by its launcher."""
    begin = f"trainer restart {number} by process"

    def is_done(seen: Seen) -> bool:
        return seen.condition("InPlaceRestart").get("message", "").startswith(begin)

    return await observer.until(name, is_done, timeout=training.DEADLINE, what=begin)


@pytest.mark.long
@pytest.mark.parametrize("strategy", ["auto", "process"])
async def test_a_launcher_that_does_not_answer_is_swapped_or_refused(
    dev: node.DevNode, observer: Observer, own_state: str, strategy: str
) -> None:
    name = f"launched-silent-{strategy}"
    async with dev.agent(own_state) as agent, training.made(observer, launched(dev, name, strategy=strategy)) as before:
        await readyz.until_ready(agent)
        main = await observer.pid(before.running["trainer"][0])
        os.kill(main, signal.SIGSTOP)
        await training.xid(dev, observer, name, 31)
        if strategy == "auto":
            after = await restarted(observer, name, before, by="swap", because="Xid 31")
            assert after.running["trainer"] != before.running["trainer"]
            return
        await observer.until(
            name,
            lambda seen: "the launcher did not answer" in seen.condition("InPlaceRestart").get("message", ""),
            timeout=training.DEADLINE,
            what="refused",
        )
        os.kill(main, signal.SIGCONT)


@pytest.mark.long
async def test_agents_killed_at_any_moment_leave_one_program(
    dev: node.DevNode, observer: Observer, tmp_path: Path
) -> None:
    name, state = "launched-crashes", f"--state-dir={tmp_path / 'state'}"
    async with training.made(observer, launched(dev, name, strategy="process", max_restarts="100")) as before:
        for number in range(12):
            async with dev.agent(state) as agent:
                await readyz.until_ready(agent)
                await training.xid(dev, observer, name, 31)
                await eventually.true(lambda: "restart.decided" in agent.log.read_text())
                await asyncio.sleep(0.004 * number)
                agent.child.signal(signal.SIGKILL)
                await agent.child.wait(timeout=training.DEADLINE)
            assert len(await programs(observer, before)) <= 1
        async with dev.agent(state) as agent:
            await readyz.until_ready(agent)
            after = await observer.see(name)
            await training.trains_on(observer, name, after)
            assert is_unchanged(before, after)
            assert len(await programs(observer, before)) == 1


async def programs(observer: Observer, seen: Seen) -> list[int]:
    """Return the trainer's processes."""
    return launching.programs(await observer.pid(seen.running["trainer"][0]))


@pytest.mark.long
async def test_launchers_killed_at_any_moment_of_a_restart_leave_one_program(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    """Kubelet, or the agent, then replaces the container."""
    name = "launched-dies"
    async with dev.agent(own_state) as agent:
        await readyz.until_ready(agent)
        for number in range(8):
            pod = launched(dev, name, strategy="process")
            async with training.made(observer, pod) as before:
                main = await observer.pid(before.running["trainer"][0])
                decided = agent.log.read_text().count("restart.decided")
                await training.xid(dev, observer, name, 31)
                await eventually.true(lambda: agent.log.read_text().count("restart.decided") > decided)  # noqa: B023
                await asyncio.sleep(0.003 * number)
                os.kill(main, signal.SIGKILL)
                after = await observer.until(
                    name,
                    lambda seen: seen.restart_counts["trainer"] > 0 and training.is_training(seen),
                    timeout=training.DEADLINE,
                    what=f"{name} training again",
                )
                await training.trains_on(observer, name, after, steps=5)
                assert len(await programs(observer, after)) == 1
