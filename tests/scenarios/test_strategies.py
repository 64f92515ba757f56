"""Every strategy on real containers, under kubelet."""

import asyncio
import itertools
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hack.devnode import node, readyz, trainer
from hack.devnode.observer import Observer, Seen
from kubemend.agent.model.outcomes import Result
from kubemend.agent.restart.intents import Strategy
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths
from tests.scenarios import parts, training

pytestmark = pytest.mark.devnode

ROUNDS = 20
OPT_IN = {"kubemend.io/restart": "InPlace"}


@pytest.fixture
def own_state(tmp_path: Path) -> str:
    return f"--state-dir={tmp_path / 'state'}"


def asking_for(strategy: str, **more: str) -> dict[str, str]:
    return OPT_IN | {"kubemend.io/strategy": strategy} | {f"kubemend.io/{key}": value for key, value in more.items()}


def container(manifest: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return one container of a manifest."""
    spec = manifest["spec"]
    found: dict[str, Any] = next(c for c in (*spec["initContainers"], *spec["containers"]) if c["name"] == name)
    return found


async def whole_pod_restarted(observer: Observer, name: str, before: Seen, *, by: str) -> Seen:
    """Wait until the whole pod has been restarted and verified, init containers once more included."""
    after = await observer.until(
        name,
        lambda s: (
            s.condition("InPlaceRestart").get("message", "").endswith("; verified")
            and f" by {by} " in s.condition("InPlaceRestart")["message"]
            and all(count > before.restart_counts[each] for each, count in s.restart_counts.items())
        ),
        timeout=training.DEADLINE,
        what=f"verified {by} of {name}",
    )
    check_whole(before, after)
    return after


def check_whole(before: Seen, after: Seen) -> None:
    assert {each: len(ids) for each, ids in after.running.items()} == {"trainer": 1, "shipper": 1}
    assert all(after.running[each] != before.running[each] for each in after.running)
    assert all(after.container_ids[each] != before.container_ids[each] for each in after.container_ids)
    assert (after.uid, after.ip, after.sandbox, after.phase) == (before.uid, before.ip, before.sandbox, "Running")
    assert after.init_runs > before.init_runs


async def test_the_whole_pod_is_restarted_init_containers_first(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    async def restarts(strategy: str, policy: str) -> None:
        name = f"{strategy}-{policy.lower()}"
        fields: dict[str, Any] = {"restart_policy": policy, "annotations": asking_for(strategy)}
        async with training.pod(dev, observer, name, **fields) as before:
            await training.xid(dev, observer, name, 31)
            after = await whole_pod_restarted(observer, name, before, by=strategy)
            # Kubelet runs an init container of its own if it relists between the creation and the start of kubemend's.
            assert after.init_runs - before.init_runs in ((1,) if strategy == "reset" else (1, 2))
            await in_order(observer, after)
            await observer.until(name, lambda s: s.step > after.step, timeout=training.DEADLINE, what="further steps")

    async with dev.agent(own_state) as agent:
        await readyz.until_ready(agent)
        async with asyncio.TaskGroup() as pods:
            for strategy, policy in itertools.product(("rerun", "reset"), ("Always", "OnFailure")):
                pods.create_task(restarts(strategy, policy))


async def in_order(observer: Observer, seen: Seen) -> None:
    """The init container's preparation was complete before any lasting container was started."""
    _, prepared = await observer.times(seen.container_ids["prepare"])  # type: ignore[arg-type]
    started = [(await observer.times(seen.running[name][0]))[0] for name in ("shipper", "trainer")]
    assert 0 < prepared <= min(started)


@pytest.mark.long
async def test_many_reruns_with_free_kubelet_relists(dev: node.DevNode, observer: Observer) -> None:
    async with training.pod(dev, observer, "rounds", gpus=0) as first, parts.on(dev) as made:
        seen = first
        for number in range(1, ROUNDS + 1):
            restart = await made.prepared(seen.uid, Strategy.RERUN)
            outcome = await restart.carry_out()
            assert outcome.result is Result.RERUN, outcome
            outcome, checks = await made.settled(restart, outcome)
            assert {check.state.value for check in checks} == {"passed"}, (number, checks)
            before, seen = seen, await observer.see("rounds")
            check_whole(before, seen)
            await in_order(observer, seen)
            ours = {name for name, each in outcome.current.items() if await made.is_ours(each, restart.plan)}
            if {"shipper", "trainer"} <= ours:  # kubelet may have replaced the sidecar by one of its own
                shipping, training_since = [await observer.times(outcome.current[n]) for n in ("shipper", "trainer")]
                assert shipping[0] <= training_since[0]
            # Kubelet runs an init container of its own if it relists between the creation and the start of kubemend's.
            assert seen.init_runs - before.init_runs in ((1,) if "prepare" in ours else (1, 2))


async def test_a_reset_brings_fresh_values_where_a_swap_keeps_the_old_ones(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    async with (
        dev.agent(own_state) as agent,
        training.made(observer, rated(dev, "rated-swap", strategy="swap")) as before,
        training.made(observer, rated(dev, "rated-reset", strategy="reset")) as other,
    ):
        await readyz.until_ready(agent)
        for name in ("rated-swap", "rated-reset"):
            body = {"metadata": {"annotations": {"learning-rate": "new"}}}
            await observer.api.patch(paths.pod("default", name), body, content_type=kube.Patch.MERGE)
            await training.xid(dev, observer, name, 31)
        swapped = await training.restarted(observer, "rated-swap", before)
        # Where kubelet was faster its own container is adopted, and that one has fresh values, too.
        assert await said(observer, "rated-swap", swapped) == ("rate old" if training.is_ours(swapped) else "rate new")
        after = await whole_pod_restarted(observer, "rated-reset", other, by="reset")
        assert await said(observer, "rated-reset", after) == "rate new"


def rated(dev: node.DevNode, name: str, *, strategy: str) -> dict[str, Any]:
    """Return a pod whose trainer has the value of an annotation, which is "old", in its environment."""
    manifest = trainer.manifest(name, node=dev.name, annotations=asking_for(strategy) | {"learning-rate": "old"})
    rate = {"name": "RATE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['learning-rate']"}}}
    with_environment(manifest, rate)
    return manifest


async def test_a_reset_picks_up_a_changed_config_map(dev: node.DevNode, observer: Observer, own_state: str) -> None:
    manifest = trainer.manifest("configured", node=dev.name, annotations=asking_for("reset"))
    rate = {"name": "RATE", "valueFrom": {"configMapKeyRef": {"name": "rates", "key": "rate"}}}
    with_environment(manifest, rate)
    api, maps = observer.api, paths.collection("configmaps", namespace="default")
    await api.create(maps, {"metadata": {"name": "rates"}, "data": {"rate": "old"}})
    async with dev.agent(own_state) as agent, training.made(observer, manifest) as before:
        await readyz.until_ready(agent)
        assert await said(observer, "configured", before) == "rate old"
        await api.patch(f"{maps}/rates", {"data": {"rate": "new"}}, content_type=kube.Patch.MERGE)
        await training.xid(dev, observer, "configured", 31)
        after = await whole_pod_restarted(observer, "configured", before, by="reset")
        assert await said(observer, "configured", after) == "rate new"
    await api.delete(f"{maps}/rates")


def with_environment(manifest: Mapping[str, Any], variable: Mapping[str, Any]) -> None:
    """Give the trainer a variable, and let it log its value first."""
    made = container(manifest, "trainer")
    made["env"] = [dict(variable)]
    made["command"] = [*made["command"][:2], 'echo "rate $RATE"\n' + made["command"][2]]


async def said(observer: Observer, name: str, seen: Seen) -> str:
    """Return the first line of the running trainer's log."""
    log = await training.log_of(observer, name, seen)
    return log.splitlines()[0].split(" ", 3)[3]


async def test_the_pods_own_rule_restarts_all_of_it(dev: node.DevNode, observer: Observer, own_state: str) -> None:
    manifest = trainer.manifest("ruled", node=dev.name, restart_policy="Never", annotations=asking_for("rules"))
    container(manifest, "trainer").update(
        restartPolicy="Never",
        restartPolicyRules=[{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [137]}}],
    )
    async with dev.agent(own_state) as agent, training.made(observer, manifest) as before:
        await readyz.until_ready(agent)
        await training.xid(dev, observer, "ruled", 31)
        await whole_pod_restarted(observer, "ruled", before, by="rules")


async def test_selected_containers_are_swapped_together_and_no_other(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    manifest = trainer.manifest(
        "several", node=dev.name, annotations=OPT_IN | {"kubemend.io/containers": "trainer,worker"}
    )
    idle = {**container(manifest, "shipper"), "restartPolicy": None}
    manifest["spec"]["containers"] += [
        {key: value for key, value in (idle | {"name": name}).items() if value is not None}
        for name in ("worker", "bystander")
    ]
    async with dev.agent(own_state) as agent, training.made(observer, manifest) as before:
        await readyz.until_ready(agent)
        await training.xid(dev, observer, "several", 31)
        after = await training.restarted(observer, "several", before)
        assert {name for name in after.running if after.running[name] != before.running[name]} == {"trainer", "worker"}
        assert all(len(ids) == 1 for ids in after.running.values())


async def test_grace_runs_pre_stop_then_sigterm_before_the_kill(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    manifest = trainer.manifest(
        "graceful", node=dev.name, restart_policy="Always", annotations=asking_for("swap", **{"grace-period": "10s"})
    )
    made = container(manifest, "trainer")
    made["lifecycle"] = {"preStop": {"exec": {"command": ["sh", "-c", "echo hook >> /checkpoints/end"]}}}
    on_term = "trap 'echo term >> /checkpoints/end; exit 0' TERM\n"
    made["command"] = [*made["command"][:2], on_term + made["command"][2]]
    async with dev.agent(own_state) as agent, training.made(observer, manifest) as before:
        await readyz.until_ready(agent)
        await training.xid(dev, observer, "graceful", 31)
        after = await training.restarted(observer, "graceful", before)
        assert (observer.volume(after.uid) / "end").read_text().split() == ["hook", "term"]


async def test_restart_that_would_fail_a_never_pod_is_refused(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    fields: dict[str, Any] = {"restart_policy": "Never", "annotations": asking_for("rerun")}
    async with dev.agent(own_state) as agent, training.pod(dev, observer, "refused", **fields) as before:
        await readyz.until_ready(agent)
        await training.xid(dev, observer, "refused", 31)
        reported = await observer.until(
            "refused",
            lambda s: s.condition("InPlaceRestart").get("reason") == "RestartPolicyNever",
            timeout=training.DEADLINE,
            what="the refusal",
        )
        later = await training.trains_on(observer, "refused", reported)
        assert later.running == before.running


async def test_pod_recovers_after_an_agent_is_killed_in_mid_rerun(
    dev: node.DevNode, observer: Observer, own_state: str
) -> None:
    fields: dict[str, Any] = {"annotations": asking_for("rerun")}
    async with training.pod(dev, observer, "cut-short", **fields) as before:
        async with dev.agent(own_state) as agent:
            await readyz.until_ready(agent)
            await training.xid(dev, observer, "cut-short", 31)
            await observer.until(
                "cut-short",
                lambda s: s.running != before.running,
                timeout=training.DEADLINE,
                what="the beginning of the rerun",
            )
            agent.child.signal(signal.SIGKILL)
        async with dev.agent(own_state) as agent:
            await readyz.until_ready(agent)
            after = await observer.until(
                "cut-short",
                lambda s: (
                    s.phase == "Running"
                    and {name: len(ids) for name, ids in s.running.items()} == {"trainer": 1, "shipper": 1}
                    and all(s.running[name] == (s.container_ids[name],) for name in s.running)
                    and not set(s.running.values()) & set(before.running.values())
                ),
                timeout=training.DEADLINE,
                what="a whole pod",
            )
            assert after.init_runs > before.init_runs
