"""Faults of the fake NVML, through the real pynvml and the worker process, to findings."""

import asyncio
from collections.abc import Mapping

import pytest

from hack.fakenvml import control
from hack.fakenvml.control import FakeNvml, MigSpec, RecoveryAction, gpu_uuid, mig_uuid
from hack.fakenvml.layout import Fault, Group, Kind
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, DeviceLocator, PciAddress
from kubemend.agent.model.findings import FindingKind, Source
from kubemend.agent.restart.device_release import DeviceUse
from kubemend.agent.restart.device_release import ProcessUse as GateUse
from kubemend.agent.sources.nvml import source
from kubemend.agent.sources.nvml.child import Child
from kubemend.agent.sources.nvml.driver import Driver
from kubemend.agent.sources.nvml.protocol import Condition, DevicesAnswer, ProcessUse
from kubemend.agent.sources.nvml.queries import Unknown
from kubemend.agent.sources.nvml.source import Periods
from kubemend.common.components import ComponentState
from tests.unit.sources.nvml.conftest import NEVER, PATIENCE, QUICK, SourceEnv, Start


async def ask(env: SourceEnv, *uuids: str) -> DevicesAnswer:
    answer = await env.source.query(uuids, timeout=PATIENCE)  # type: ignore[arg-type]
    assert isinstance(answer, DevicesAnswer)
    return answer


async def test_all_gpus_are_in_the_inventory(start: Start) -> None:
    env = start()
    await env.status(ComponentState.READY)

    inventory = env.source.inventory

    assert inventory.complete
    assert [gpu.uuid for gpu in inventory.gpus] == [gpu_uuid(number) for number in range(8)]
    assert inventory.gpus[2].pci == PciAddress.parse("0000:2a:00.0")
    assert inventory.gpus[2].minor == 2
    assert env.findings.empty()


async def test_xid_event_becomes_a_finding_with_its_device(fake: FakeNvml, start: Start) -> None:
    env = start()
    await env.status(ComponentState.READY)

    fake.xid(gpu=0, code=94)
    finding = await env.finding(FindingKind.XID)

    assert (finding.source, finding.code, finding.action) == (Source.NVML, "94", ActionClass.RESTART_APP)
    assert finding.device == DeviceLocator(uuid=gpu_uuid(0), pci=PciAddress.parse("0000:10:00.0"))  # type: ignore[arg-type]
    assert finding.pid is None
    assert finding.observed_at > 0


async def test_same_xid_twice_is_two_findings_with_different_keys(fake: FakeNvml, start: Start) -> None:
    env = start()
    await env.status(ComponentState.READY)

    fake.xid(gpu=0, code=31)
    fake.xid(gpu=0, code=31)

    assert (await env.finding(FindingKind.XID)).key != (await env.finding(FindingKind.XID)).key


async def test_xid_of_mig_instance_names_the_instance(fake: FakeNvml, start: Start) -> None:
    fake.mig(MigSpec(gpu_instance=1), MigSpec(gpu_instance=2, compute_instance=1), gpu=4)
    env = start()
    await env.status(ComponentState.READY)

    fake.xid(gpu=4, code=43, gpu_instance=2, compute_instance=1)
    finding = await env.finding(FindingKind.XID)

    assert (finding.device.gpu_instance, finding.device.compute_instance) == (2, 1)
    assert env.source.inventory.allocatable_ids(finding.device) == frozenset({DeviceId(mig_uuid(4, 1))})


async def test_losing_one_gpu_of_eight_keeps_the_other_seven(fake: FakeNvml, start: Start) -> None:
    env = start()
    await env.status(ComponentState.READY)

    fake.lost(gpu=3)
    lost = await env.finding(FindingKind.DEVICE_LOST)
    fake.xid(gpu=5, code=94)
    xid = await env.finding(FindingKind.XID)

    assert lost.device.uuid == gpu_uuid(3)
    assert lost.action is ActionClass.REBOOT_NODE
    assert xid.device.uuid == gpu_uuid(5)
    assert len(env.source.inventory.gpus) == 8
    answer = await ask(env, *(gpu_uuid(number) for number in range(8)))
    assert [device.uuid for device in answer.devices if device.condition is Condition.LOST] == [gpu_uuid(3)]


async def test_removed_gpu_is_lost_and_back_once_listed_again(fake: FakeNvml, start: Start) -> None:
    env = start(periods=Periods(poll_period=0.2, reinit_period=0.2, hang_deadline=NEVER))
    await env.status(ComponentState.READY)

    fake.remove(gpu=6)
    lost = await env.finding(FindingKind.DEVICE_LOST)
    fake.add(gpu=6)
    back = await env.finding(FindingKind.DEVICE_BACK)

    assert lost.device == back.device
    assert back.device.uuid == gpu_uuid(6)


async def test_other_gpus_stay_known_while_nvml_is_initialised_again(
    fake: FakeNvml, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the conditions of all pods of the node would become Unknown for seconds, again and again."""
    answers, renewed = list[tuple[bool | None, ...]](), asyncio.Event()

    def child(argv: list[str], *, env: Mapping[str, str]) -> Child:
        inventory = started.source.inventory
        answers.append(tuple(inventory.answers(gpu_uuid(number)) for number in (0, 6)))
        if len(answers) == 3:
            renewed.set()
        return Child(argv, env=env)

    monkeypatch.setattr(source, "Child", child)
    started = start(periods=Periods(poll_period=0.2, reinit_period=0.2, hang_deadline=NEVER))
    await started.status(ComponentState.READY)
    fake.lost(gpu=6)
    async with asyncio.timeout(PATIENCE):
        await renewed.wait()

    assert answers == [(None, None), (True, False), (True, False)]
    assert await started.source.release(timeout=PATIENCE)
    assert started.source.inventory.answers(gpu_uuid(0)) is None


async def test_gpu_that_was_added_is_listed_by_another_init(fake: FakeNvml, start: Start) -> None:
    def unlisted() -> list[str]:
        return [control.kernel_address(6)] if len(env.source.inventory.gpus) < 8 else []

    fake.remove(gpu=6)
    env = start(periods=Periods(poll_period=0.2, reinit_period=0.2, hang_deadline=NEVER), unlisted=unlisted)
    await env.status(ComponentState.READY)
    fake.add(gpu=6)
    async with asyncio.timeout(PATIENCE):
        while gpu_uuid(6) not in (await env.inventories.get()).gpus:
            pass


async def test_query_waits_for_the_new_worker_while_nvml_is_initialised_again(
    fake: FakeNvml, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = list[asyncio.Task[DevicesAnswer | Unknown]]()
    again = asyncio.Event()

    def child(argv: list[str], *, env: Mapping[str, str]) -> Child:
        if started.source.inventory.gpus and not asked:
            asked.append(asyncio.create_task(started.source.query([DeviceId(gpu_uuid(0))], timeout=PATIENCE / 3)))
            again.set()
        return Child(argv, env=env)

    monkeypatch.setattr(source, "Child", child)
    started = start(periods=Periods(poll_period=0.2, reinit_period=0.2, hang_deadline=NEVER), unlisted=lambda: ["one"])
    async with asyncio.timeout(PATIENCE):
        await again.wait()
        (answer,) = await asyncio.gather(*asked)
    assert isinstance(answer, DevicesAnswer)


async def test_nvml_is_not_initialised_again_while_a_query_waits(
    fake: FakeNvml, start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Child, "send", lambda *_: None)  # the worker never gets the query
    env = start(periods=Periods(poll_period=0.2, reinit_period=0.2, hang_deadline=NEVER), unlisted=lambda: ["one"])
    await env.status(ComponentState.READY)
    answer = await env.source.query([DeviceId(gpu_uuid(0))], timeout=2.5)
    assert answer == Unknown("NVML did not answer within 2.5 s")


async def test_gpu_off_bus_before_start_is_reported_without_name(fake: FakeNvml, start: Start) -> None:
    fake.lost(gpu=1)
    env = start()

    lost = await env.finding(FindingKind.DEVICE_LOST)

    assert lost.device == DeviceLocator()
    assert len(env.source.inventory.gpus) == 7
    assert not env.source.inventory.complete
    assert env.source.inventory.answers(gpu_uuid(0))
    assert not env.source.inventory.answers(gpu_uuid(1))


async def test_recovery_action_change_is_found_by_event_and_poll(fake: FakeNvml, start: Start) -> None:
    env = start()
    await env.status(ComponentState.READY)

    fake.recovery(RecoveryAction.GPU_RESET, gpu=2)
    by_event = await env.finding(FindingKind.RECOVERY_ACTION)
    fake.recovery(RecoveryAction.NONE, gpu=2, event=False)
    by_poll = await env.finding(FindingKind.RECOVERY_ACTION)

    assert (by_event.code, by_event.action) == ("1", ActionClass.RESET_DEVICE)
    assert (by_poll.code, by_poll.device.uuid) == ("0", gpu_uuid(2))


async def test_event_triggers_a_poll_immediately(fake: FakeNvml, start: Start) -> None:
    env = start(periods=Periods(poll_period=NEVER))
    await env.status(ComponentState.READY)

    fake.recovery(RecoveryAction.NODE_REBOOT, gpu=0)

    assert (await env.finding(FindingKind.RECOVERY_ACTION)).code == "2"


async def test_reset_required_counts_as_recovery_action(fake: FakeNvml, start: Start) -> None:
    env = start()
    await env.status(ComponentState.READY)

    fake.fault(Fault.RESET_REQUIRED, gpu=7)
    finding = await env.finding(FindingKind.RECOVERY_ACTION)

    assert (finding.code, finding.device.uuid) == ("1", gpu_uuid(7))
    answer = await ask(env, gpu_uuid(7))
    assert answer.devices[0].condition is Condition.RESET_REQUIRED


async def test_field_that_the_driver_lacks_is_not_a_fault(fake: FakeNvml, start: Start) -> None:
    fake.field(control.RECOVERY_ACTION_FIELD, gpu=0, value=1, result=3)
    fake.supported_events(0, gpu=0)
    env = start()
    await env.status(ComponentState.READY)

    answer = await ask(env, gpu_uuid(0))

    assert all(device.condition is Condition.ANSWERS for device in answer.devices)
    assert answer.devices[0].recovery_action is None
    assert env.findings.empty()


async def test_unreadable_gpu_degrades_the_component_and_is_not_lost(fake: FakeNvml, start: Start) -> None:
    env = start()
    await env.status(ComponentState.READY)

    fake.fault(Fault.UNKNOWN, gpu=5)
    status = await env.status(ComponentState.DEGRADED)
    fake.healthy(gpu=5)
    await env.status(ComponentState.READY)

    assert gpu_uuid(5) in status.message
    assert status.hint
    assert env.findings.empty()


async def test_query_returns_leftover_processes_and_memory(fake: FakeNvml, start: Start) -> None:
    fake.processes({4711: 3 * control.GIB}, gpu=1)
    env = start()
    await env.status(ComponentState.READY)

    held, free, never_seen = (await ask(env, gpu_uuid(1), gpu_uuid(2), "GPU-never-seen")).devices

    assert held.processes == (ProcessUse(pid=4711, used=3 * control.GIB),)
    assert held.memory_used == 3 * control.GIB
    assert (free.processes, free.memory_used) == ((), 0)
    assert never_seen.condition is Condition.UNREADABLE


@pytest.mark.parametrize("kind", Kind)
async def test_query_returns_all_processes_of_the_gpu(fake: FakeNvml, start: Start, kind: Kind) -> None:
    fake.processes({4711: control.GIB, 4712: None}, gpu=1, kind=kind)
    env = start()
    await env.status(ComponentState.READY)

    (held,) = (await ask(env, gpu_uuid(1))).devices

    assert held.processes == (ProcessUse(pid=4711, used=control.GIB), ProcessUse(pid=4712, used=None))


async def test_uses_returns_processes_of_each_gpu(fake: FakeNvml, start: Start) -> None:
    fake.processes({4711: control.GIB}, gpu=1, used=5 * control.GIB)
    fake.lost(gpu=2)
    env = start()
    await env.status(ComponentState.READY)
    uuids = [DeviceId(gpu_uuid(number)) for number in range(3)]

    uses = await Driver(env.source).uses(uuids, timeout=PATIENCE)

    assert uses == {
        uuids[0]: DeviceUse((), memory_used=0),
        uuids[1]: DeviceUse((GateUse(4711, control.GIB),), memory_used=5 * control.GIB),
    }


async def test_uses_with_hanging_driver_returns_none(fake: FakeNvml, start: Start) -> None:
    env = start(periods=Periods(poll_period=NEVER, hang_deadline=2.0))
    await env.status(ComponentState.READY)
    fake.hang(Group.GETTERS)

    assert await Driver(env.source).uses([DeviceId(gpu_uuid(0))], timeout=0.2) is None


async def test_query_for_mig_instance_returns_only_its_processes(fake: FakeNvml, start: Start) -> None:
    fake.mig(MigSpec(gpu_instance=1), MigSpec(gpu_instance=2), gpu=0)
    fake.processes({99: control.GIB}, gpu=0, gpu_instance=2)
    env = start()
    await env.status(ComponentState.READY)

    idle, busy = (await ask(env, mig_uuid(0, 0), mig_uuid(0, 1))).devices

    assert idle.processes == ()
    assert [process.pid for process in busy.processes or ()] == [99]


async def test_concurrent_queries_get_their_own_answers(start: Start) -> None:
    env = start()
    await env.status(ComponentState.READY)

    answers = await asyncio.gather(*(ask(env, gpu_uuid(number)) for number in range(8)))

    assert [answer.devices[0].uuid for answer in answers] == [gpu_uuid(number) for number in range(8)]


async def test_query_before_first_answer_is_unknown(start: Start) -> None:
    env = start()

    assert isinstance(await env.source.query([], timeout=PATIENCE), Unknown)


async def test_row_remapping_accompanies_the_recovery_action(fake: FakeNvml, start: Start) -> None:
    fake.remapped_rows(gpu=0, pending=True)
    fake.recovery(RecoveryAction.GPU_RESET, gpu=0)
    env = start(periods=QUICK)

    finding = await env.finding(FindingKind.RECOVERY_ACTION)

    assert finding.evidence == {"row_remap_pending": "true", "row_remap_failed": "false"}
