"""The GPUs as doctor sees them, over the fake NVML; and what each answer means on which node."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.doctor import nvml, nvml_probe
from agent.doctor.checks import Check, Result
from agent.doctor.nvml_probe import Answer, Device
from agent.sources.nvml import reader
from hack.fakenvml.control import EVENT_RECOVERY_ACTION, FakeNvml, MigSpec, gpu_uuid
from hack.fakenvml.layout import Driver, Fault, Group

PATIENCE = 20.0


@pytest.fixture
def sysfs(tmp_path: Path) -> Path:
    """A machine with two NVIDIA GPUs, an audio function of one of them, and another vendor's display."""
    functions = {
        "0000:41:00.0": ("0x10de", "0x030200"),
        "0000:42:00.0": ("0x10de", "0x030000"),
        "0000:42:00.1": ("0x10de", "0x040300"),
        "0000:00:02.0": ("0x8086", "0x030000"),
    }
    for name, (vendor, kind) in functions.items():
        function = tmp_path / "bus" / "pci" / "devices" / name
        function.mkdir(parents=True)
        (function / "vendor").write_text(f"{vendor}\n")
        (function / "class").write_text(f"{kind}\n")
    return tmp_path


async def ask(*, deadline: float = PATIENCE) -> tuple[Check, Check]:
    gpus, events = await nvml.gpus(sysfs=Path("/nowhere"), hang_deadline=deadline)
    return gpus, events


async def test_healthy_gpus_are_well(fake: FakeNvml) -> None:
    gpus, events = await ask()

    assert gpus == Check("nvml", Result.OK, "driver 595.71.05, 8 GPUs, MIG off")
    assert events.result is Result.OK


async def test_mig_is_told_with_and_without_instances(fake: FakeNvml) -> None:
    fake.mig(MigSpec(gpu_instance=1), gpu=0)

    gpus, _ = await ask()

    assert gpus.result is Result.OK
    assert gpus.what.endswith("MIG on 1 of them")


async def test_a_lost_gpu_fails_and_the_others_are_still_counted(fake: FakeNvml) -> None:
    fake.lost(gpu=3)

    gpus, events = await ask()

    assert gpus.result is Result.FAIL
    assert "8 GPUs" in gpus.what
    assert "index 3" in gpus.what
    assert events.result is Result.UNKNOWN


async def test_a_gpu_that_needs_a_reset_fails_by_name(fake: FakeNvml) -> None:
    fake.fault(Fault.RESET_REQUIRED, gpu=2)

    gpus, _ = await ask()

    assert gpus.result is Result.FAIL
    assert "requires reset" in gpus.what


async def test_gpus_without_xid_events_are_a_warning(fake: FakeNvml) -> None:
    fake.supported_events(EVENT_RECOVERY_ACTION, gpu=1)

    gpus, events = await ask()

    assert gpus.result is Result.OK
    assert events.result is Result.WARN
    assert gpu_uuid(1) in events.what


async def test_a_driver_of_another_version_than_its_library_fails(fake: FakeNvml) -> None:
    fake.driver(Driver.MISMATCH)

    gpus, events = await ask()

    assert [gpus.result, events.result] == [Result.FAIL, Result.UNKNOWN]
    assert "version mismatch" in gpus.mend


async def test_no_driver_on_a_node_without_gpus_is_not_needed(fake: FakeNvml) -> None:
    fake.driver(Driver.ABSENT)

    checks = await ask()

    assert [check.result for check in checks] == [Result.NOT_NEEDED, Result.NOT_NEEDED]


async def test_no_driver_on_a_node_with_gpus_on_its_bus_fails(fake: FakeNvml, sysfs: Path) -> None:
    fake.driver(Driver.ABSENT)

    gpus, _ = await nvml.gpus(sysfs=sysfs, hang_deadline=PATIENCE)

    assert gpus.result is Result.FAIL
    assert "2 NVIDIA GPUs" in gpus.what


@pytest.mark.parametrize("group", [Group.INIT, Group.GETTERS])
async def test_a_driver_that_hangs_is_named_with_the_call_and_left_alone(fake: FakeNvml, group: Group) -> None:
    fake.hang(group)

    gpus, events = await ask(deadline=0.5)

    assert [gpus.result, events.result] == [Result.FAIL, Result.UNKNOWN]
    assert "unresponsive: nvml" in gpus.what


async def test_a_probe_that_crashes_fails_with_its_last_words(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("raise RuntimeError('broken package')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    gpus, _ = await ask()

    assert gpus.result is Result.FAIL
    assert "broken package" in gpus.what


def test_a_missing_library_is_a_fault_only_where_there_are_gpus() -> None:
    answer = Answer(code=reader.LIBRARY_NOT_FOUND, error="NVML Shared Library Not Found")

    assert {check.result for check in nvml.judge(answer, on_bus=0)} == {Result.NOT_NEEDED}
    assert nvml.judge(answer, on_bus=8)[0].result is Result.FAIL


def test_a_driver_that_shows_no_gpu_is_not_well() -> None:
    gpus, events = nvml.judge(Answer(driver="595"), on_bus=0)

    assert [gpus.result, events.result] == [Result.FAIL, Result.UNKNOWN]


devices = st.builds(
    Device,
    name=st.text(),
    error=st.sampled_from(["", "GPU is lost"]),
    mig=st.none() | st.booleans(),
    events=st.none() | st.booleans(),
)
answers = st.builds(Answer, code=st.integers(), error=st.text(), driver=st.text(), devices=st.lists(devices).map(tuple))


@given(answer=answers, on_bus=st.integers(0, 16))
def test_no_answer_with_a_fault_in_it_is_ok(answer: Answer, on_bus: int) -> None:
    gpus, _ = nvml.judge(answer, on_bus=on_bus)

    if answer.code or any(device.error for device in answer.devices):
        assert gpus.result is not Result.OK


@given(message=answers | st.builds(nvml_probe.Hanging, call=st.text()))
def test_messages_come_through_as_they_were(message: nvml_probe.Message) -> None:
    assert nvml_probe.decode(nvml_probe.encode(message)) == message


@pytest.mark.parametrize("line", [b"", b"[]", b"{}", b'{"type": "Answer"}', b'{"type": "Hanging"}', b"1"])
def test_other_lines_are_refused(line: bytes) -> None:
    with pytest.raises(nvml_probe.MessageError):
        nvml_probe.decode(line)
