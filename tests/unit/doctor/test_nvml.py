"""The doctor's checks of the GPUs, on the fake NVML; and the meaning of each answer by node."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hack.fakenvml.control import EVENT_RECOVERY_ACTION, FakeNvml, MigSpec, gpu_uuid
from hack.fakenvml.layout import Driver, Fault, Group
from kubemend.agent.doctor import nvml, nvml_probe
from kubemend.agent.doctor.checks import Check, Result
from kubemend.agent.doctor.nvml_probe import Answer, Device
from kubemend.agent.sources.nvml import reader

PATIENCE = 60.0


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
    gpus, events = await nvml.gpus(sysfs=Path("/nowhere"), proc=Path("/nowhere"), hang_deadline=deadline)
    return gpus, events


async def test_healthy_gpus_are_ok(fake: FakeNvml) -> None:
    gpus, events = await ask()

    assert gpus == Check("nvml", Result.OK, "driver 595.71.05, 8 GPUs, MIG off")
    assert events.result is Result.OK


async def test_mig_is_reported_with_and_without_instances(fake: FakeNvml) -> None:
    fake.mig(MigSpec(gpu_instance=1), gpu=0)

    gpus, _ = await ask()

    assert gpus.result is Result.OK
    assert gpus.what.endswith("MIG on 1 of them")


async def test_lost_gpu_fails_and_others_are_counted(fake: FakeNvml) -> None:
    fake.lost(gpu=3)

    gpus, events = await ask()

    assert gpus.result is Result.FAIL
    assert "8 GPUs" in gpus.what
    assert "index 3" in gpus.what
    assert events.result is Result.UNKNOWN


async def test_gpu_that_needs_reset_fails_by_name(fake: FakeNvml) -> None:
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


async def test_driver_library_version_mismatch_fails(fake: FakeNvml) -> None:
    fake.driver(Driver.MISMATCH)

    gpus, events = await ask()

    assert [gpus.result, events.result] == [Result.FAIL, Result.UNKNOWN]
    assert "version mismatch" in gpus.hint


async def test_missing_driver_on_node_without_gpus_is_not_needed(fake: FakeNvml) -> None:
    fake.driver(Driver.ABSENT)

    checks = await ask()

    assert [check.result for check in checks] == [Result.NOT_NEEDED, Result.NOT_NEEDED]


async def test_missing_driver_on_node_with_gpus_fails(fake: FakeNvml, sysfs: Path) -> None:
    fake.driver(Driver.ABSENT)

    gpus, _ = await nvml.gpus(sysfs=sysfs, proc=Path("/nowhere"), hang_deadline=PATIENCE)

    assert gpus.result is Result.FAIL
    assert "2 NVIDIA GPUs" in gpus.what


async def test_gpu_of_the_driver_that_nvml_does_not_list_fails_by_its_address(fake: FakeNvml, tmp_path: Path) -> None:
    """The driver could not start it: the agent's verdict for it is Unknown, and a node with it is not in order."""
    answer = await nvml._ask(PATIENCE)
    assert isinstance(answer, Answer)
    driver = tmp_path / "bus" / "pci" / "drivers" / "nvidia"
    for name in (*(device.pci for device in answer.devices), "0000:ff:00.0"):
        function = driver / name
        function.mkdir(parents=True)
        (function / "vendor").write_text("0x10de\n")
        (function / "class").write_text("0x030200\n")

    gpus, _ = await nvml.gpus(sysfs=tmp_path, proc=Path("/nowhere"), hang_deadline=PATIENCE)

    assert gpus.result is Result.FAIL
    assert "8 GPUs, MIG off; NVML does not list GPU 0000:ff:00.0 of its driver" in gpus.what


@pytest.mark.parametrize("group", [Group.INIT, Group.GETTERS])
async def test_hanging_driver_is_named_with_the_call_and_not_killed(fake: FakeNvml, group: Group) -> None:
    fake.hang(group)

    gpus, events = await ask(deadline=0.5)

    assert [gpus.result, events.result] == [Result.FAIL, Result.UNKNOWN]
    assert "unresponsive: nvml" in gpus.what


async def test_crashed_probe_fails_with_its_last_output(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pynvml.py").write_text("raise RuntimeError('broken package')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    gpus, _ = await ask()

    assert gpus.result is Result.FAIL
    assert "broken package" in gpus.what


def test_missing_library_fails_only_with_gpus() -> None:
    answer = Answer(code=reader.LIBRARY_NOT_FOUND, error="NVML Shared Library Not Found")

    assert {check.result for check in nvml.judge(answer, on_bus=0)} == {Result.NOT_NEEDED}
    assert nvml.judge(answer, on_bus=8)[0].result is Result.FAIL


def test_driver_without_gpus_fails() -> None:
    gpus, events = nvml.judge(Answer(driver="595"), on_bus=0)

    assert [gpus.result, events.result] == [Result.FAIL, Result.UNKNOWN]


devices = st.builds(
    Device,
    name=st.text(),
    pci=st.text(),
    error=st.sampled_from(["", "GPU is lost"]),
    mig=st.none() | st.booleans(),
    events=st.none() | st.booleans(),
)
answers = st.builds(Answer, code=st.integers(), error=st.text(), driver=st.text(), devices=st.lists(devices).map(tuple))


@given(answer=answers, on_bus=st.integers(0, 16))
def test_answer_with_any_fault_is_never_ok(answer: Answer, on_bus: int) -> None:
    gpus, _ = nvml.judge(answer, on_bus=on_bus)

    if answer.code or any(device.error for device in answer.devices):
        assert gpus.result is not Result.OK


@given(message=answers | st.builds(nvml_probe.Hanging, call=st.text()))
def test_messages_round_trip(message: nvml_probe.Message) -> None:
    assert nvml_probe.decode(nvml_probe.encode(message)) == message


@pytest.mark.parametrize("line", [b"", b"[]", b"{}", b'{"type": "Answer"}', b'{"type": "Hanging"}', b"1"])
def test_invalid_lines_are_refused(line: bytes) -> None:
    with pytest.raises(nvml_probe.MessageError):
        nvml_probe.decode(line)
