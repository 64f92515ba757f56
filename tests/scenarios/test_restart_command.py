"""``kubemend restart`` as people run it, on real containers."""

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from hack.devnode import node, processes, readyz, trainer
from hack.devnode.observer import Observer, Seen
from tests.scenarios import training
from tests.scenarios.test_missing_parts import started
from tests.scenarios.test_strategies import container, whole_pod_restarted

pytestmark = pytest.mark.devnode

SECONDS = 60.0
GRACE = f"--grace={SECONDS:g}s"
NOT_OPTED_IN: dict[str, str] = {}
ON_TERM = "trap 'echo term >> /checkpoints/end; exit 0' TERM\n"
ON_TERM_WAIT = "trap 'until [ -e /checkpoints/go ]; do sleep 0.1; done; exit 0' TERM\n"


@dataclass(frozen=True, slots=True)
class Commands:
    """Run the command against the agent whose state is in that directory."""

    state: Path
    directory: Path

    async def restart(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        """Run it to its end."""
        return await asyncio.to_thread(
            subprocess.run, self._line(arguments), capture_output=True, text=True, timeout=SECONDS, check=False
        )

    @contextlib.asynccontextmanager
    async def following(self, name: str, *arguments: str, until: str) -> AsyncIterator[processes.Child]:
        """Run it in the background; yields it when it has printed ``until``."""
        child = processes.Child.start(
            self._line(arguments), name=name, log=self.log(name), pid_file=self.directory / f"{name}.pid"
        )
        try:
            async with asyncio.timeout(SECONDS):
                while until not in self.log(name).read_text():  # noqa: ASYNC110 - another process's output
                    await asyncio.sleep(0.01)
            yield child
        finally:
            await child.stop(grace=0)

    def log(self, name: str) -> Path:
        return self.directory / f"{name}.log"

    def _line(self, arguments: tuple[str, ...]) -> list[str]:
        return [sys.executable, "-m", "kubemend.agent.cli", "restart", *arguments, f"--state-dir={self.state}"]


@pytest.fixture
def commands(tmp_path: Path) -> Commands:
    return Commands(state=tmp_path / "state", directory=tmp_path)


@contextlib.asynccontextmanager
async def agent_of(dev: node.DevNode, commands: Commands) -> AsyncIterator[node.Agent]:
    """A ready agent that the commands reach."""
    async with dev.agent(f"--state-dir={commands.state}") as agent:
        await readyz.until_ready(agent)
        yield agent


def on_term(manifest: dict[str, Any], script: str) -> dict[str, Any]:
    """Set the trainer's action at SIGTERM."""
    made = container(manifest, "trainer")
    made["command"] = [*made["command"][:2], script + made["command"][2]]
    return manifest


def lingering(dev: node.DevNode, name: str) -> dict[str, Any]:
    """Return a pod whose trainer ends at SIGTERM only when permitted."""
    return on_term(trainer.manifest(name, node=dev.name, restart_policy="Always"), ON_TERM_WAIT)


def released(observer: Observer, seen: Seen) -> None:
    (observer.volume(seen.uid) / "go").touch()


def ends(observer: Observer, seen: Seen) -> list[str]:
    return (observer.volume(seen.uid) / "end").read_text().split()


async def test_a_pod_is_restarted_by_name_and_its_progress_shown(
    dev: node.DevNode, observer: Observer, commands: Commands
) -> None:
    async with (
        agent_of(dev, commands),
        training.pod(dev, observer, "by-name", annotations=NOT_OPTED_IN) as before,
    ):
        done = await commands.restart("pod/by-name", "--reason", "new data")
        assert done.returncode == 0, done
        words = [line.split()[2] for line in done.stdout.splitlines()]
        assert words[:4] == ["accepted", "decided", "begun", "create"], done
        assert "acted" in words, done  # the steps before and after it depend on kubelet, too
        assert words[-2:] == ["verified", "done"], done
        assert done.stderr == ""
        after = await training.restarted(observer, "by-name", before)
        assert "request of uid 0 (new data)" in after.condition("InPlaceRestart")["message"]
        first_line = (await training.log_of(observer, "by-name", after)).splitlines()[0]
        assert "Requested" in first_line or not training.is_ours(after)


async def test_in_json_the_events_come_as_objects(dev: node.DevNode, observer: Observer, commands: Commands) -> None:
    async with agent_of(dev, commands), training.pod(dev, observer, "in-json"):
        done = await commands.restart("default/in-json", "--container", "shipper", "--json")
    assert done.returncode == 0, done
    reported = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["event"] for event in reported[:3]] == ["accepted", "decided", "begun"]
    assert [event["ms"] for event in reported] == sorted(event["ms"] for event in reported)
    settled, end = reported[-2:]
    assert (settled["event"], settled["verified"]) == ("settled", True)
    assert settled["phases_ms"]["stop"] > 0
    assert (end["event"], end["ok"], end["reason"]) == ("done", True, settled["result"])


async def test_refusal_prints_the_reason_and_exits_with_1(
    dev: node.DevNode, observer: Observer, commands: Commands
) -> None:
    async with agent_of(dev, commands), training.pod(dev, observer, "stays", restart_policy="Never") as before:
        done = await commands.restart("stays", "--strategy", "rerun")
        assert done.returncode == 1, done
        assert "RestartPolicyNever" in done.stdout.splitlines()[-1]
        later = await training.trains_on(observer, "stays", before)
        assert later.running == before.running


async def test_missing_agent_is_reported_and_exits_with_3(commands: Commands) -> None:
    done = await commands.restart("missing")
    assert done.returncode == 3, done
    (line,) = done.stderr.splitlines()
    assert str(commands.state / "control.sock") in line
    assert "--state-dir" in line


async def test_strategy_option_overrides_the_annotation(
    dev: node.DevNode, observer: Observer, commands: Commands
) -> None:
    fields: dict[str, Any] = {"restart_policy": "Always", "annotations": {"kubemend.io/strategy": "swap"}}
    async with agent_of(dev, commands), training.pod(dev, observer, "afresh", **fields) as before:
        done = await commands.restart("afresh", "--strategy", "reset")
        assert done.returncode == 0, done
        await whole_pod_restarted(observer, "afresh", before, by="reset")


async def test_a_grace_period_gives_the_trainer_its_sigterm(
    dev: node.DevNode, observer: Observer, commands: Commands
) -> None:
    manifest = on_term(trainer.manifest("checkpoints", node=dev.name, restart_policy="Always"), ON_TERM)
    async with agent_of(dev, commands), training.made(observer, manifest) as before:
        done = await commands.restart("checkpoints", "--grace", "10s")
        assert done.returncode == 0, done
        assert "10 s grace" in done.stdout
        after = await training.restarted(observer, "checkpoints", before)
        assert ends(observer, after) == ["term"]


async def test_killed_command_does_not_stop_the_restart(
    dev: node.DevNode, observer: Observer, commands: Commands
) -> None:
    async with agent_of(dev, commands), training.made(observer, lingering(dev, "left-alone")) as before:
        async with commands.following("killed", "left-alone", GRACE, until="begun") as child:
            child.signal(signal.SIGKILL)
            assert await child.wait(timeout=SECONDS) == -signal.SIGKILL
        assert (await observer.see("left-alone")).running == before.running
        released(observer, before)
        await training.restarted(observer, "left-alone", before)


async def test_interrupted_command_reports_that_the_restart_continues(
    dev: node.DevNode, observer: Observer, commands: Commands
) -> None:
    async with agent_of(dev, commands), training.made(observer, lingering(dev, "ctrl-c")) as before:
        async with commands.following("interrupted", "ctrl-c", GRACE, until="begun") as child:
            child.signal(signal.SIGINT)
            assert await child.wait(timeout=SECONDS) == 130
        released(observer, before)
        assert "the agent completes the restarts that it has accepted" in commands.log("interrupted").read_text()
        await training.restarted(observer, "ctrl-c", before)


async def test_second_command_follows_the_first(dev: node.DevNode, observer: Observer, commands: Commands) -> None:
    async with agent_of(dev, commands), training.made(observer, lingering(dev, "wanted")) as before:
        async with (
            commands.following("first", "wanted", GRACE, "--reason=mine", until="begun") as first,
            commands.following("second", "wanted", until="joined") as second,
        ):
            third = await commands.restart("wanted", "--no-wait")
            assert third.returncode == 0, third
            assert "joined    a restart is already in progress because request of uid 0 (mine)" in third.stdout
            assert "acted" not in third.stdout
            released(observer, before)
            assert [await child.wait(timeout=SECONDS) for child in (first, second)] == [0, 0]
        assert "verified" in commands.log("second").read_text()
        await training.restarted(observer, "wanted", before)


async def test_request_without_a_runtime_is_held_with_a_reason(
    dev: node.DevNode, observer: Observer, commands: Commands, tmp_path: Path
) -> None:
    link = tmp_path / "cri.sock"
    async with (
        training.pod(dev, observer, "held") as before,
        started(dev, tmp_path, **{"cri-endpoint": str(link)}) as agent,
    ):
        wanted = {"kubernetes-api": "ready", "container-runtime": "degraded"}
        await readyz.until(
            agent, lambda ready: wanted == {each: ready["parts"][each]["state"] for each in wanted}, what=str(wanted)
        )
        at_once = await commands.restart("held", "--no-wait")
        assert at_once.returncode == 0, at_once
        assert "postpone: RuntimeUnavailable: " in at_once.stdout
        assert str(link) in at_once.stdout
        async with commands.following("waiting", "held", until="postpone: RuntimeUnavailable: ") as child:
            link.symlink_to(dev.layout.containerd_socket)
            assert await child.wait(timeout=SECONDS) == 0
        await training.restarted(observer, "held", before)
