"""Trainers that stop touching their heartbeat file, on real containers: those restarted, and those left alone."""

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from hack.devnode import node, trainer
from hack.devnode.observer import Observer, Seen
from kubemend.agent.actuator.hold.cgroups import Cgroup
from tests.scenarios import training

pytestmark = pytest.mark.devnode

HANG = "hang"
"""The file on its volume that keeps a trainer from beating."""

BEATING = trainer.TRAIN.replace(
    "  sleep 0.05", f"  [ -e {trainer.CHECKPOINTS}/{HANG} ] || touch $BEAT\n  sleep 0.05", 1
)


@pytest.fixture
def own_state(tmp_path: Path) -> str:
    return f"--state-dir={tmp_path / 'state'}"


@contextlib.asynccontextmanager
async def beating(
    dev: node.DevNode, observer: Observer, name: str, *, file: str = "/beat", strategy: str = "auto"
) -> AsyncIterator[Seen]:
    """Run a pod whose trainer beats with every step; two seconds without are too long."""
    annotations = {
        "kubemend.io/restart": "InPlace",
        "kubemend.io/heartbeat-file": file,
        "kubemend.io/heartbeat-timeout": "2s",
        "kubemend.io/strategy": strategy,
    }
    script = f"BEAT={file}\n{BEATING}"
    async with training.pod(dev, observer, name, annotations=annotations, gpus=0, script=script) as seen:
        yield seen


async def hung(observer: Observer, name: str, before: Seen) -> Seen:
    """Let the trainer stop beating until it has been restarted for that."""
    switch = observer.volume(before.uid) / HANG
    switch.touch()
    after = await training.fixed(observer, name, before, because="no heartbeat in /")
    switch.unlink()
    return after


def not_timed(agent: node.Agent, name: str) -> list[str]:
    """Return the lines of the agent's log that say why the time to a pod's next step is unknown."""
    lines = agent.log.read_text().splitlines()
    return [line for line in lines if "restart.next_step_unknown" in line and name in line]


async def watched(agent: node.Agent, name: str) -> None:
    """Wait until the trainer's heartbeat has been seen."""
    labels = {"namespace": "default", "pod": name, "container": "trainer"}
    async with asyncio.timeout(training.DEADLINE):
        while await training.series(agent, "kubemend_heartbeat_age_seconds", **labels) is None:  # noqa: ASYNC110
            await asyncio.sleep(0.05)


@pytest.mark.parametrize("file", ["/beat", f"{trainer.CHECKPOINTS}/beat"], ids=["in-its-root", "on-a-volume"])
async def test_a_trainer_that_stops_beating_is_restarted_and_watched_again(
    dev: node.DevNode, observer: Observer, own_state: str, file: str
) -> None:
    name = "hangs" if file == "/beat" else "hangs-on-volume"
    async with dev.agent(own_state) as agent, beating(dev, observer, name, file=file) as before:
        await training.until_ready(agent)
        seen = before
        for _ in range(2):
            await watched(agent, name)
            seen = await hung(observer, name, seen)
            condition = seen.condition("InPlaceRestart")
            assert f"no heartbeat in {file} for " in condition["message"]
            assert "threads: " in condition["message"]
            restart = seen.restart_counts["trainer"]
            log = await training.log_of(observer, name, seen)
            assert (f"restart {restart} Hung" in log) is (condition["reason"] == "Swapped"), "kubelet's has no reason"
        counted = await training.metric(
            agent, "kubemend_findings_total", source="heartbeat", kind="Heartbeat", code="Hung"
        )
        assert counted == 2.0


@pytest.mark.parametrize(
    ("strategy", "file"),
    [("swap", "/beat"), ("swap", f"{trainer.CHECKPOINTS}/beat"), ("reset", "/beat")],
    ids=["in-its-root", "on-a-volume", "started-by-kubelet"],
)
async def test_next_step_of_a_restarted_trainer_is_measured(
    dev: node.DevNode, observer: Observer, own_state: str, strategy: str, file: str
) -> None:
    name = f"steps-again-{strategy}-{Path(file).parent.name or 'root'}"
    metric = "kubemend_restart_next_step_seconds"
    async with (
        dev.agent(own_state) as agent,
        beating(dev, observer, name, file=file, strategy=strategy) as before,
    ):
        await training.until_ready(agent)
        await watched(agent, name)
        begun = time.monotonic()
        await hung(observer, name, before)
        async with asyncio.timeout(training.DEADLINE):
            while not await training.metric(agent, f"{metric}_count", strategy=strategy, since="start"):
                assert not (unknown := not_timed(agent, name)), unknown
                await asyncio.sleep(0.05)
        most = time.monotonic() - begun
        assert await training.metric(agent, f"{metric}_count", strategy=strategy, since="fault") == 1.0
        since_start = await training.metric(agent, f"{metric}_sum", strategy=strategy, since="start")
        since_fault = await training.metric(agent, f"{metric}_sum", strategy=strategy, since="fault")
        assert 0.0 < since_start < since_fault < most


async def test_a_trainer_that_has_never_beaten_is_left_alone(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    async with (
        dev.agent(own_state) as agent,
        beating(dev, observer, "hangs-beside") as other,
        beating(dev, observer, "never-beats", file="/none/beat") as before,
    ):
        await training.until_ready(agent)
        await watched(agent, "hangs-beside")
        after = await hung(observer, "hangs-beside", other)  # the beating one has hung for longer than the timeout
        assert after.restart_counts["trainer"] >= 1
        later = await training.trains_on(observer, "never-beats", before)
        assert later.condition("InPlaceRestart") == {}


def freeze(pid: int) -> Callable[[], None]:
    cgroup = Cgroup.of_process(pid, proc=Path("/proc"), mounted_at=Path("/sys/fs/cgroup"))
    assert cgroup is not None
    cgroup.freeze()
    return cgroup.thaw


def stop(pid: int) -> Callable[[], None]:
    os.kill(pid, signal.SIGSTOP)
    return lambda: os.kill(pid, signal.SIGCONT)


@pytest.mark.parametrize("pause", [freeze, stop])
async def test_a_trainer_that_is_frozen_or_stopped_does_not_hang(
    dev: node.DevNode, observer: Observer, own_state: str, pause: Callable[[int], Callable[[], None]]
) -> None:
    name, other = f"paused-by-{pause.__name__}", f"hangs-beside-{pause.__name__}"
    async with (
        dev.agent(own_state) as agent,
        beating(dev, observer, name) as before,
        beating(dev, observer, other) as beside,
    ):
        await training.until_ready(agent)
        await watched(agent, name)
        resume = pause(await observer.pid(before.running["trainer"][0]))
        try:
            await watched(agent, other)
            again = await hung(observer, other, beside)
            await watched(agent, other)
            await hung(observer, other, again)  # so far the paused one has been silent for twice the timeout and more
        finally:
            resume()
        seen = await observer.see(name)
        later = await training.trains_on(observer, name, seen)
        assert later.running["trainer"] == before.running["trainer"]
        assert later.condition("InPlaceRestart") == {}


async def test_returning_agent_finds_a_trainer_that_hung_in_its_absence(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    async with beating(dev, observer, "hung-meanwhile") as before:
        async with dev.agent(own_state) as agent:
            await training.until_ready(agent)
            await watched(agent, "hung-meanwhile")
        switch = observer.volume(before.uid) / HANG
        switch.touch()
        async with dev.agent(own_state) as agent:
            await training.until_ready(agent)
            await training.fixed(observer, "hung-meanwhile", before, because="no heartbeat in /beat")


async def test_invalid_heartbeat_is_reported_on_the_pod(dev: node.DevNode, observer: Observer, own_state: str) -> None:
    annotations = {"kubemend.io/restart": "InPlace", "kubemend.io/heartbeat-file": "/beat"}
    async with dev.agent(own_state) as agent, training.pod(dev, observer, "half-asked", annotations=annotations):
        await training.until_ready(agent)
        reported = await observer.until(
            "half-asked",
            lambda s: s.condition("InPlaceRestart").get("reason") == "BadAnnotation",
            timeout=training.DEADLINE,
            what="the refusal",
        )
        assert "kubemend.io/heartbeat-timeout is missing" in reported.condition("InPlaceRestart")["message"]
