"""Probes with short periods: a pod is Ready again after every restart, and no probe ends a restarted container."""

import asyncio
from pathlib import Path
from typing import Any, Final

import pytest

from kubemend.agent.restart.intents import Strategy
from tests import eventually
from tests.scenarios.columns.board import DATA, STRATEGIES, Board, Seen

pytestmark = pytest.mark.devnode

MORE: Final = 3
ENOUGH: Final = 4  # failures: 3 s, which the startup probe's period and kubelet's delay do not reach
SLOW_START: Final = f"sleep 1.5; echo up >> {DATA}/up; touch /tmp/started; while :; do sleep 0.05; done"
KINDS: Final = ("startupProbe", "livenessProbe", "readinessProbe")


def probes(*kinds: str, liveness_failures: int = 1) -> dict[str, Any]:
    """Return probes that record each try on the volume; they succeed once the program has begun."""
    thresholds = {"startupProbe": 30, "livenessProbe": liveness_failures}
    return {
        kind: {
            "exec": {"command": ["sh", "-c", f"echo tried >> {DATA}/{kind}; test -e /tmp/started"]},
            "periodSeconds": 1,
            "timeoutSeconds": 30,  # a busy machine is no failure of the program
            "failureThreshold": thresholds.get(kind, 1),
            "initialDelaySeconds": 0 if "startupProbe" in kinds or kind == "readinessProbe" else 5,
        }
        for kind in kinds
    }


def tried(volume: Path, kind: str) -> int:
    """Return how often a probe was tried."""
    file = volume / kind
    return len(file.read_text().splitlines()) if file.exists() else 0


async def tried_again(board: Board, seen: Seen, kind: str, *, more: int = MORE) -> None:
    """Wait until a probe has been tried some more times."""
    volume = board.volume(seen)
    wanted = tried(volume, kind) + more
    await eventually.true(lambda: tried(volume, kind) >= wanted)


async def test_a_probed_pod_is_ready_again_after_every_restart_and_stays(board: Board) -> None:
    async with asyncio.TaskGroup() as pods:
        for kinds in (KINDS, ("livenessProbe",), ("readinessProbe",)):
            pods.create_task(is_ready_again(board, kinds))


async def is_ready_again(board: Board, kinds: tuple[str, ...]) -> None:
    """Restart a pod with these probes by every strategy."""
    name = "-".join(kind.removesuffix("Probe") for kind in kinds)
    # A successor inherits "started" from its predecessor until its first startup probe, so kubelet probes its liveness.
    failures = ENOUGH if "startupProbe" in kinds else 1
    async with board.pod(name, SLOW_START, **probes(*kinds, liveness_failures=failures)) as first:
        seen = first
        for strategy in STRATEGIES:
            after = await board.restarted(name, strategy, seen)
            await tried_again(board, after, kinds[-1])
            if after.shown in board.early:
                await tried_again(board, after, kinds[-1], more=3 * MORE)
                seen = await board.until(name, lambda now: now.is_ready, what="Ready again")
                continue
            seen = await board.see(name)
            assert (seen.running, seen.restarts) == (after.running, after.restarts), strategy
            assert seen.is_ready


async def test_a_pod_that_kubelet_could_kill_before_its_startup_probe_is_left_to_kubelet_to_start(board: Board) -> None:
    async with board.pod("early", SLOW_START, **probes("startupProbe", "livenessProbe")) as seen:
        for strategy in (Strategy.SWAP, Strategy.RERUN):
            refused = (await board.asked("early", strategy))[-1]
            assert (refused["ok"], refused["reason"]) == (False, "LivenessBeforeStartup")
        after = await board.restarted("early", Strategy.RESET, seen)
        await tried_again(board, after, "livenessProbe")
        again = await board.see("early")
        assert (again.running, again.restarts) == (after.running, after.restarts)


async def test_a_swapped_pod_is_not_ready_before_its_successor_is(board: Board) -> None:
    async with board.pod("unready", SLOW_START, **probes("startupProbe", "readinessProbe")) as seen:
        volume = board.volume(seen)
        ups = len((volume / "up").read_text().splitlines())
        after = await board.restarted("unready", Strategy.SWAP, seen)
        more = len((volume / "up").read_text().splitlines()) - ups
        assert 1 <= more <= after.restarts - seen.restarts, "kubelet's containers included"
        assert after.main["started"]
