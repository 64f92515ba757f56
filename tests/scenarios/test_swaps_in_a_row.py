"""One healthy pod is swapped repeatedly under a real kubelet: each swap counts once, without backoff."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hack.devnode import node, readyz
from hack.devnode.observer import Observer
from kubemend.agent.control import client, messages
from kubemend.agent.restart import intents, overrides
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths
from tests.scenarios import training, watching

pytestmark = pytest.mark.devnode

SWAPS = 25
MOST_COPIES = 5
"""Kubelet adds a copy if something wakes it in mid-swap ("What remains possible" in docs/architecture.md). That begins
its back-off, so in the seconds after a copy it shows CrashLoopBackOff instead of a second one."""
_BACK_OFF = "BackOff"
_CRASH_LOOP = "CrashLoopBackOff"


async def events_about(api: kube.KubeClient, name: str) -> list[str]:
    """Return the reasons of all events about a pod."""
    found = await api.list(paths.collection("events", namespace="default"))
    return [each["reason"] for each in found.items if each["involvedObject"]["name"] == name]


async def swapped(name: str, *, state: Path) -> None:
    """Have the trainer swapped, as ``kubemend restart`` would, and wait until that is verified."""
    reported: list[Mapping[str, Any]] = []
    asked = overrides.RestartOverrides(strategy=intents.Strategy.SWAP, containers=frozenset({"trainer"}))
    request = messages.RestartRequest(namespace="default", pod=name, asked=asked, reason="in a row")
    code = await client.follow(request, socket=state / messages.SOCKET, wait=True, show=reported.append)
    assert code == 0, reported


@pytest.mark.parametrize("policy", ["Always", pytest.param("OnFailure", marks=pytest.mark.long)])
async def test_swaps_in_a_row_count_once_each_without_backoff(
    dev: node.DevNode, observer: Observer, tmp_path: Path, policy: str
) -> None:
    name, state = f"row-{policy.lower()}", tmp_path / "state"
    async with (
        dev.agent(f"--state-dir={state}") as agent,
        training.pod(dev, observer, name, restart_policy=policy, gpus=1, sidecar=False) as before,
        watching.watched(observer.api, name) as seen,
    ):
        await readyz.until_ready(agent)
        for _ in range(SWAPS):
            await swapped(name, state=state)
        after = await observer.until(
            name,
            lambda s: s.running["trainer"] == (s.container_ids["trainer"],),
            timeout=training.DEADLINE,
            what="the last successor in kubelet's status",
        )
        copies = after.restart_counts["trainer"] - before.restart_counts["trainer"] - SWAPS
        assert 0 <= copies <= MOST_COPIES
        assert seen.counts == sorted(seen.counts)
        if not copies:
            assert _CRASH_LOOP not in seen.waits
            assert seen.not_running == [], "kubelet has seen a moment in which the trainer did not run"
            assert _BACK_OFF not in await events_about(observer.api, name)
        assert (after.uid, after.ip, after.sandbox, after.phase) == (before.uid, before.ip, before.sandbox, "Running")
