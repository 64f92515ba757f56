"""The names that a rerun reserves: what can take them, and when they are free again."""

import asyncio
import itertools
import time
from collections.abc import AsyncIterator

import pytest
from structlog.testing import capture_logs

from kubemend.agent.actuator import rerun
from kubemend.agent.clients.cri import errors
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import reservations
from tests.environments import pod_env
from tests.environments.pod_env import LASTING, PodEnv
from tests.environments.runtime import POD, CriEnv

COPIES = {(name, 2) for name in pod_env.ROLES}


@pytest.fixture
async def pod(cri_env: CriEnv) -> AsyncIterator[PodEnv]:
    async with pod_env.made(cri_env) as made:
        yield made


async def hold(pod: PodEnv, name: str, *, attempt: int, restart: str) -> ContainerId:
    """Reserve a name as the restart of that id would."""
    intent = pod.intent(id=restart)
    successor_spec = (await pod.successor_specs(intent))[name]
    return await pod.cri_env.cri.create_container(
        sandbox_id=intent.sandbox_id,
        config=reservations.config(successor_spec.successor.config, attempt=attempt),
        sandbox_config=successor_spec.sandbox_config,
    )


async def test_reservation_takes_the_name_and_is_unknown_to_kubelet(pod: PodEnv) -> None:
    await hold(pod, "trainer", attempt=2, restart="r1")
    with pytest.raises(errors.NameReserved):
        await pod.kubelet_starts("trainer", attempt=2)
    (held,) = [item for item in pod.cri_env.server.runtime.containers.values() if item.id not in pod.old.values()]
    assert held.config.metadata.name == "trainer"
    assert held.config.labels["io.kubernetes.container.name"] == "trainer.reserved-2"
    assert held.config.labels["io.kubernetes.pod.uid"] == "uid-1.reserved"
    assert not held.config.mounts
    assert not held.config.envs


async def test_kubelets_cleanup_of_a_reservation_removes_no_other_log(pod: PodEnv) -> None:
    """Kubelet removes all files that begin with the log path; an empty one would match its working directory."""
    await hold(pod, "trainer", attempt=2, restart="r1")
    (held,) = [item for item in pod.cri_env.server.runtime.containers.values() if item.id not in pod.old.values()]
    assert held.config.log_path == "trainer/2.reserved"
    assert not [name for name in ("2.log", "2.log.20260101-000000.gz", "22.log") if name.startswith("2.reserved")]


async def test_kubelet_starts_nothing_early_or_twice_during_init(cri_env: CriEnv) -> None:
    may_end = asyncio.Event()
    async with pod_env.made(cri_env, may_end=may_end) as pod:
        intent = pod.intent()
        successor_specs = await pod.successor_specs(intent)
        async with pod.cri_env.watch.subscribe(POD.uid) as events:
            work = asyncio.create_task(pod.actuator().carry_out(intent, successor_specs=successor_specs))
            await pod.until_started("prepare", events)
        for name, attempt in itertools.product(pod_env.ROLES, (1, 2)):
            with pytest.raises(errors.NameReserved):
                await pod.kubelet_starts(name, attempt=attempt)
        may_end.set()
        assert (await work).result is Result.RERUN
        assert {name: len(ids) for name, ids in (await pod.running()).items()} == dict.fromkeys(LASTING, 1)


async def test_copy_names_are_reserved_until_kubelet_shows_containers_running(pod: PodEnv) -> None:
    """However long the rerun has taken, and although the clock may have been set in the meantime."""
    intent = pod.intent(created_at=time.time() - 3600.0)
    successor_specs = await pod.successor_specs(intent)
    await pod.actuator().carry_out(intent, successor_specs=successor_specs)
    assert await pod.reserved() == COPIES
    work = asyncio.create_task(pod.actuator().carry_out(intent, successor_specs=successor_specs))
    await pod.kubelet_says_running("shipper", "trainer")
    await until_free(pod, "shipper", "trainer")
    assert await pod.reserved() == {("prepare", 2), ("logger", 2)}
    await pod.kubelet_says_running("logger")
    assert (await work).result is Result.RERUN
    assert await pod.reserved() == set()


async def until_free(pod: PodEnv, *names: str) -> None:
    async with pod.cri_env.watch.subscribe() as events, asyncio.timeout(30):
        while {name for name, _ in await pod.reserved()} & set(names):
            await events.get()


async def test_container_that_ends_soon_can_be_restarted_at_once(pod: PodEnv) -> None:
    intent = pod.intent(created_at=time.time())
    successor_specs = await pod.successor_specs(intent)
    outcome = await pod.actuator().carry_out(intent, successor_specs=successor_specs)
    work = asyncio.create_task(pod.actuator().carry_out(intent, successor_specs=successor_specs))
    pod.cri_env.server.runtime.exit(outcome.current["trainer"], exit_code=1)
    await until_free(pod, "trainer")
    await pod.kubelet_starts("trainer", attempt=2)
    await pod.kubelet_says_running(*LASTING)
    assert (await work).result is Result.RERUN
    assert await pod.reserved() == set()


async def test_silent_kubelet_does_not_keep_names_reserved(pod: PodEnv, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rerun, "RESERVED_AT_MOST", 0.0)
    intent = pod.intent()
    successor_specs = await pod.successor_specs(intent)
    await pod.actuator().carry_out(intent, successor_specs=successor_specs)
    assert (await pod.actuator().carry_out(intent, successor_specs=successor_specs)).result is Result.RERUN
    assert await pod.reserved() == set()


async def test_earlier_reservation_is_removed(pod: PodEnv) -> None:
    await hold(pod, "trainer", attempt=1, restart="r0")
    intent = pod.intent()
    outcome = await pod.actuator().carry_out(intent, successor_specs=await pod.successor_specs(intent))
    assert outcome.result is Result.RERUN
    assert await pod.reserved() == COPIES


async def test_name_held_by_another_container_does_not_stop_rerun(pod: PodEnv) -> None:
    theirs = await pod.kubelet_starts("trainer", attempt=1, start=False)
    intent = pod.intent()
    with capture_logs() as said:
        outcome = await pod.actuator().carry_out(intent, successor_specs=await pod.successor_specs(intent))
    assert outcome.result is Result.RERUN
    assert "restart.not_reserved" in [entry["event"] for entry in said]
    assert theirs not in outcome.current.values(), "it was out of turn"


async def test_second_run_of_an_init_container_is_reported(pod: PodEnv) -> None:
    """Kubelet's garbage collector has removed the reservation at the moment it was needed."""
    intent = pod.intent()
    successor_specs = await pod.successor_specs(intent)
    await pod.actuator().carry_out(intent, successor_specs=successor_specs)
    await pod.kubelet_collects()
    await pod.kubelet_starts("prepare", attempt=2)
    outcome = await pod.actuator().carry_out(intent, successor_specs=successor_specs)
    assert outcome.result is Result.RERUN
    assert outcome.notes == ("init container prepare has run 2 times, because kubelet ran it, too",)


async def test_init_container_repeated_after_failure_is_not_reported(cri_env: CriEnv) -> None:
    async with pod_env.made(cri_env, exit_code=1) as pod:
        intent = pod.intent()
        outcome = await pod.actuator().carry_out(intent, successor_specs=await pod.successor_specs(intent))
        assert (outcome.result, outcome.notes) == (Result.LEFT_TO_KUBELET, ())
        await pod.kubelet_starts("prepare", attempt=2)
        again = await pod.actuator().carry_out(intent, successor_specs=None)
        assert again.notes == ()
