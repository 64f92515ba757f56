"""A container that opted in and exits with an error is restarted by its agent, before kubelet's backoff."""

import asyncio
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from hack.devnode import node, readyz, trainer
from hack.devnode.observer import Observer, Seen
from tests.scenarios import training

pytestmark = pytest.mark.devnode

DIES = f"""
trap 'exit 5' TERM
step=$(cat {trainer.CHECKPOINTS}/step 2>/dev/null || echo 0)
while true; do
  step=$((step + 1))
  echo $step > {trainer.CHECKPOINTS}/step.new && mv {trainer.CHECKPOINTS}/step.new {trainer.CHECKPOINTS}/step
  if [ -e {trainer.CHECKPOINTS}/die ]; then
    code=$(cat {trainer.CHECKPOINTS}/die); rm {trainer.CHECKPOINTS}/die; exit $code
  fi
  sleep 0.02
done
"""
"""A trainer that exits with the code in the file, and answers SIGTERM at once with a code of its own."""


@pytest.fixture
def own_state(tmp_path: Path) -> str:
    return f"--state-dir={tmp_path / 'state'}"


def end(observer: Observer, seen: Seen, *, code: int) -> None:
    """Have the trainer exit with that code."""
    (observer.volume(seen.uid) / "die.new").write_text(str(code))
    (observer.volume(seen.uid) / "die.new").rename(observer.volume(seen.uid) / "die")


def logged(agent: node.Agent, event: str, *, pod: str) -> list[dict[str, Any]]:
    """Return the agent's log events of that kind about a pod's trainer, without one that is being written."""
    whole = agent.log.read_text().rpartition("\n")[0]
    lines = (json.loads(line) for line in whole.splitlines() if line.startswith("{"))
    return [line for line in lines if line.get("event") == event and line.get("container") == f"default/{pod}/trainer"]


async def until_logged(
    observer: Observer, agent: node.Agent, event: str, *, pod: str, holds: Callable[[dict[str, Any]], bool]
) -> dict[str, Any]:
    """Wait until the agent has logged it, and return it."""

    def found(_: Seen) -> bool:
        return any(map(holds, logged(agent, event, pod=pod)))

    await observer.until(pod, found, timeout=training.DEADLINE, what=f"{event} of {pod}")
    return next(filter(holds, logged(agent, event, pod=pod)))


def kubelets(agent: node.Agent, name: str) -> int:
    """Return how often kubelet was faster with a pod's trainer than the agent."""
    return sum(each["reason"] == "AlreadyReplaced" for each in logged(agent, "restart.decided", pod=name))


async def exited(observer: Observer, agent: node.Agent, name: str, before: Seen) -> Seen:
    """Let the trainer exit with an error until it has been restarted for that, by kubelet if that was faster.

    Kubelet restarts a container at once the first time, without a delay.
    """
    earlier = kubelets(agent, name)
    end(observer, before, code=3)

    def is_over(seen: Seen) -> bool:
        message = seen.condition("InPlaceRestart").get("message", "")
        return kubelets(agent, name) > earlier or (
            message.startswith(f"trainer restart {before.restart_counts['trainer'] + 1} ")
            and "ended with exit code 3" in message
        )

    await observer.until(name, is_over, timeout=training.DEADLINE, what=f"a restart of {name}")
    if kubelets(agent, name) == earlier:
        return await training.restarted(observer, name, before)
    return await observer.until(
        name,
        lambda s: (
            s.restart_counts["trainer"] > before.restart_counts["trainer"]
            and training.is_training(s)
            and s.running["trainer"] == (s.container_ids["trainer"],)
        ),
        timeout=training.DEADLINE,
        what=f"kubelet's restart of {name}",
    )


async def test_exit_with_an_error_causes_a_restart_in_place(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    async def exits_twice(agent: node.Agent, policy: str, *, sidecar: bool) -> None:
        name = f"exits-{policy.lower()}-{'with' if sidecar else 'alone'}"
        async with training.pod(dev, observer, name, restart_policy=policy, sidecar=sidecar, script=DIES) as seen:
            for _ in range(2):
                seen = await exited(observer, agent, name, seen)  # noqa: PLW2901 - from one restart to the next
            assert kubelets(agent, name) <= 1, "a second restart it would have delayed"

    async with dev.agent(own_state) as agent:
        await readyz.until_ready(agent)
        async with asyncio.TaskGroup() as pods:
            for policy, sidecar in itertools.product(("Always", "OnFailure"), (True, False)):
                pods.create_task(exits_twice(agent, policy, sidecar=sidecar))


@pytest.mark.parametrize(("policy", "code", "left"), [("Always", 0, "Completed"), ("Always", 42, "FatalExitCode")])
async def test_exit_without_an_error_is_left_to_kubelet(
    dev: node.DevNode, observer: Observer, own_state: str, policy: str, code: int, left: str
) -> None:
    name = f"left-{code}"
    annotations = {"kubemend.io/restart": "InPlace", "kubemend.io/fatal-exit-codes": "42"}
    async with dev.agent(own_state) as agent:
        await readyz.until_ready(agent)
        async with training.pod(
            dev, observer, name, restart_policy=policy, script=DIES, annotations=annotations
        ) as seen:
            end(observer, seen, code=code)
            said = await until_logged(observer, agent, "exit.left_to_kubelet", pod=name, holds=lambda _: True)
            assert said["reason"] == left
            await observer.until(
                name,
                lambda s: s.restart_counts["trainer"] == 1 and training.is_training(s),
                timeout=training.DEADLINE,
                what="kubelet's own restart",
            )
            assert logged(agent, "restart.decided", pod=name) == []
