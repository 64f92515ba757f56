"""Trainers that stop touching their heartbeat file, on real containers: those restarted, and those left alone."""

import asyncio
import contextlib
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from hack.devnode import node, readyz, trainer
from hack.devnode.observer import Observer, Seen
from kubemend.agent.actuator.hold.cgroups import Cgroup
from tests import eventually
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
    """Run a pod whose trainer beats with every step; five seconds without are too long, even on a busy machine."""
    annotations = {
        "kubemend.io/restart": "InPlace",
        "kubemend.io/heartbeat-file": file,
        "kubemend.io/heartbeat-timeout": "5s",
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


async def test_a_trainer_that_stops_beating_is_restarted_and_watched_again(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    async def hangs_twice(agent: node.Agent, name: str, file: str) -> None:
        async with beating(dev, observer, name, file=file) as seen:
            for _ in range(2):
                await watched(agent, name)
                seen = await hung(observer, name, seen)  # noqa: PLW2901 - from one restart to the next
                condition = seen.condition("InPlaceRestart")
                assert f"no heartbeat in {file} for " in condition["message"]
                assert "threads: " in condition["message"]
                restart = seen.restart_counts["trainer"]
                log = await training.log_of(observer, name, seen)
                assert (f"restart {restart} Hung" in log) is (condition["reason"] == "Swapped"), "not kubelet's"

    async with dev.agent(own_state) as agent:
        await readyz.until_ready(agent)
        async with asyncio.TaskGroup() as pods:
            pods.create_task(hangs_twice(agent, "hangs", "/beat"))
            pods.create_task(hangs_twice(agent, "hangs-on-volume", f"{trainer.CHECKPOINTS}/beat"))
        counted = await training.metric(
            agent, "kubemend_findings_total", source="heartbeat", kind="Heartbeat", code="Hung"
        )
        assert counted == 4.0


async def test_next_step_of_a_restarted_trainer_is_measured(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    metric = "kubemend_restart_next_step_seconds"

    async def steps_again(agent: node.Agent, strategy: str, file: str) -> None:
        name = f"steps-again-{strategy}-{Path(file).parent.name or 'root'}"
        earlier = {
            (suffix, since): await training.metric(agent, f"{metric}_{suffix}", strategy=strategy, since=since) or 0.0
            for suffix, since in itertools.product(("count", "sum"), ("start", "fault"))
        }

        async def grown(suffix: str, since: str) -> float:
            now = await training.metric(agent, f"{metric}_{suffix}", strategy=strategy, since=since) or 0.0
            return now - earlier[suffix, since]

        async def is_measured() -> bool:
            assert not (unknown := not_timed(agent, name)), unknown
            return await grown("count", "start") > 0.0

        async with beating(dev, observer, name, file=file, strategy=strategy) as before:
            await watched(agent, name)
            begun = time.monotonic()
            await hung(observer, name, before)
            await eventually.true(is_measured)
            most = time.monotonic() - begun
            assert await grown("count", "fault") == 1.0
            assert 0.0 < await grown("sum", "start") < await grown("sum", "fault") < most

    async with dev.agent(own_state) as agent:
        await readyz.until_ready(agent)
        async with asyncio.TaskGroup() as pods:
            pods.create_task(steps_again(agent, "swap", "/beat"))
            pods.create_task(steps_again(agent, "reset", "/beat"))
        await steps_again(agent, "swap", f"{trainer.CHECKPOINTS}/beat")


async def test_a_trainer_that_has_never_beaten_is_left_alone(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    async with (
        dev.agent(own_state) as agent,
        beating(dev, observer, "hangs-beside") as other,
        beating(dev, observer, "never-beats", file="/none/beat") as before,
    ):
        await readyz.until_ready(agent)
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


async def test_a_trainer_that_is_frozen_or_stopped_does_not_hang(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    other = "hangs-beside-paused"
    async with (
        dev.agent(own_state) as agent,
        beating(dev, observer, "frozen") as frozen,
        beating(dev, observer, "stopped") as stopped,
        beating(dev, observer, other) as beside,
    ):
        await readyz.until_ready(agent)
        with contextlib.ExitStack() as paused:
            for name, before, pause in (("frozen", frozen, freeze), ("stopped", stopped, stop)):
                await watched(agent, name)
                paused.callback(pause(await observer.pid(before.running["trainer"][0])))
            await watched(agent, other)
            again = await hung(observer, other, beside)
            await watched(agent, other)
            await hung(observer, other, again)  # so far the paused ones have been silent for twice the timeout and more
        for name, before in (("frozen", frozen), ("stopped", stopped)):
            later = await training.trains_on(observer, name, await observer.see(name))
            assert later.running["trainer"] == before.running["trainer"]
            assert later.condition("InPlaceRestart") == {}


async def test_returning_agent_finds_a_trainer_that_hung_in_its_absence(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    async with beating(dev, observer, "hung-before") as before:
        async with dev.agent(own_state) as agent:
            await readyz.until_ready(agent)
            await watched(agent, "hung-before")
        switch = observer.volume(before.uid) / HANG
        switch.touch()
        async with dev.agent(own_state) as agent:
            await readyz.until_ready(agent)
            await training.fixed(observer, "hung-before", before, because="no heartbeat in /beat")


async def test_invalid_heartbeat_is_reported_on_the_pod(dev: node.DevNode, observer: Observer, own_state: str) -> None:
    annotations = {"kubemend.io/restart": "InPlace", "kubemend.io/heartbeat-file": "/beat"}
    async with dev.agent(own_state) as agent, training.pod(dev, observer, "half-asked", annotations=annotations):
        await readyz.until_ready(agent)
        reported = await observer.until(
            "half-asked",
            lambda s: s.condition("InPlaceRestart").get("reason") == "BadAnnotation",
            timeout=training.DEADLINE,
            what="the refusal",
        )
        assert "kubemend.io/heartbeat-timeout is missing" in reported.condition("InPlaceRestart")["message"]
