"""Restarts under kubelet on a node with CRI-O, which does not return configs: a swap, or a reset with the reason."""

from collections.abc import Iterator

import pytest

from hack.devnode import crio, images, node
from hack.devnode.runtime_config import CRIO, RuntimeOptions
from kubemend.agent.restart.intents import Strategy
from tests.scenarios import dev_nodes
from tests.scenarios.columns.board import ALONE, DATA, LOOP, SECONDS, Board

pytestmark = [pytest.mark.devnode, pytest.mark.crio, pytest.mark.long]

HANDLES_SIGTERM = f"trap 'exit 0' TERM; {LOOP}"
LAST_WORDS = f"echo step 4711 > /dev/termination-log; echo up >> {DATA}/up; while :; do sleep 0.05; done"


@pytest.fixture(scope="module")
def dev() -> Iterator[node.DevNode]:
    """A node with CRI-O."""
    if reason := crio.missing():
        pytest.skip(reason)
    with dev_nodes.running("crio", options=node.Options(runtime=RuntimeOptions(program=CRIO))) as made:
        yield made


async def test_a_pod_is_swapped_and_reset_and_nothing_overlaps(board: Board) -> None:
    async with board.pod("both", ALONE) as first:
        seen = first
        for strategy in (Strategy.SWAP, Strategy.RESET, Strategy.SWAP):
            seen = await board.restarted("both", strategy, seen)
            assert not board.overlapped(seen), strategy
        mapped = await board.shown_by_runtime(seen.running[0])
        assert mapped.log_path.endswith(f"/main/{seen.restarts}.log")


@pytest.mark.parametrize("kind", ["RuntimeDefault", "Unconfined"])
async def test_what_confines_a_container_is_kept(board: Board, kind: str) -> None:
    context = {
        "seccompProfile": {"type": kind},
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "runAsUser": 4711,
        "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]},
    }
    async with board.pod(f"confined-{kind.lower()}", securityContext=context) as before:
        old = await board.specification(before.running[0])
        after = await board.restarted(f"confined-{kind.lower()}", Strategy.SWAP, before)
        new = await board.specification(after.running[0])
        assert new["linux"].get("seccomp") == old["linux"].get("seccomp")
        assert (old["linux"].get("seccomp") is None) == (kind == "Unconfined")
        assert new["process"]["user"] == old["process"]["user"]


async def test_named_paths_of_the_writable_layer_survive_swaps(board: Board) -> None:
    """``/root/cache`` is not in the image; ``/bin`` is, so what the container wrote there is not copied."""
    script = f"mkdir -p /root/cache && echo x >> /root/cache/kernel; echo x >> /bin/lost; touch /tmp/done; {LOOP}"
    async with board.pod("kept", script, annotations={"kubemend.io/keep": "/root/cache,/bin"}) as first:
        seen, runs = first, 1
        for _ in range(2):
            await board.run(seen.running[0], "sh", "-c", "until [ -e /tmp/done ]; do sleep 0.05; done")
            seen = await board.restarted("kept", Strategy.SWAP, seen)
            runs = 1 if board.was_copied(seen) else runs + 1  # kubelet's container does not have them
            await board.run(seen.running[0], "sh", "-c", "until [ -e /tmp/done ]; do sleep 0.05; done")
            counted = await board.run(seen.running[0], "sh", "-c", "wc -l < /root/cache/kernel; wc -l < /bin/lost")
            assert counted.split() == [str(runs), "1"]


async def test_kubelet_shows_the_old_containers_termination_message(board: Board) -> None:
    async with board.pod("words", LAST_WORDS) as before:
        await board.restarted("words", Strategy.SWAP, before)
        await board.until("words", lambda seen: seen.last_words == "step 4711\n", what="its termination message")


async def test_a_lone_container_under_never_is_swapped(board: Board) -> None:
    async with board.pod("never", spec={"restartPolicy": "Never"}) as before:
        await board.restarted("never", Strategy.SWAP, before)


async def test_a_successor_that_would_differ_is_reported_and_the_pod_is_reset(board: Board) -> None:
    """CRI-O checks the signature of a volume's image by the image's name in the pod, which it does not report."""
    volumes = [{"name": "model", "image": {"reference": images.BUSYBOX, "pullPolicy": "Never"}}]
    mounts = [{"name": "model", "mountPath": "/model", "subPath": "bin"}]
    async with board.pod("model", spec={"volumes": volumes}, volumeMounts=mounts) as before:
        after = await board.restarted("model", Strategy.AUTO, before)
        condition = next(each for each in after.status["conditions"] if each["type"] == "kubemend.io/InPlaceRestart")
        assert condition["reason"] == "Reset"
        assert "not swap: CreateContainer: UNKNOWN: ImageVolumeMountFailed" in condition["message"]
        assert (await board.cri.exec_sync(after.running[0], ("ls", "/model/sh"), timeout=SECONDS)).exit_code == 0


async def test_a_program_that_handles_sigterm_is_killed_by_rules_and_reset(board: Board) -> None:
    """CRI-O sends SIGTERM before SIGKILL: its exit code 0 would complete the pod, and match no rule."""
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [137]}}
    by_rule = {"restartPolicy": "Never", "restartPolicyRules": [rule]}
    async with board.pod("rules", HANDLES_SIGTERM, spec={"restartPolicy": "Never"}, **by_rule) as before:
        await board.restarted("rules", Strategy.RULES, before)
    async with board.pod("reset", HANDLES_SIGTERM, spec={"restartPolicy": "OnFailure"}) as before:
        await board.restarted("reset", Strategy.RESET, before)


async def test_a_rerun_is_refused(board: Board) -> None:
    async with board.pod("rerun") as before:
        refused = (await board.asked("rerun", Strategy.RERUN))[-1]
        assert (refused["ok"], refused["reason"]) == (False, "RuntimeHidesConfig")
        assert (await board.see("rerun")).running == before.running
