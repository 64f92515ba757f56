"""A search of the log for a round, and one for the fault that it names, give all of their lines."""

from structlog.testing import capture_logs

from kubemend.controller.coordinator import round_report
from kubemend.controller.model.faults import Request
from tests.unit.controller import builders
from tests.unit.controller.coordinator.env import CoordinatorEnv
from tests.unit.controller.coordinator.test_coordinator import round_of


def grep(logged: list[dict[str, object]], text: str) -> list[object]:
    """Return the events of the lines that contain a text."""
    return [line["event"] for line in logged if text in map(str, line.values())]


async def test_one_text_finds_round_and_fault_in_log() -> None:
    env = CoordinatorEnv(builders.gang(3))
    with capture_logs() as logged:
        async with env.leading() as coordinator:
            env.fails(coordinator, 1, fault_id="fault-7")
            round_id = await round_of(env, coordinator)
    lines = [dict(line) for line in logged]
    assert grep(lines, round_id) == ["round.begun", "fault.answered", "round.phase", "round.phase", "round.ended"]
    assert [line["phase"] for line in lines if line["event"] == "round.phase"] == ["Releasing", "Done"]
    assert grep(lines, "fault-7") == ["fault", "gang.decided", "round.begun", "fault.answered"]
    (begun,) = [line for line in lines if line["event"] == "round.begun"]
    assert (begun["pod"], begun["cause"], begun["kind"]) == ("team/train-1-0", "Exit1", "InPlace")
    assert begun["gang"] == "team/Job/train"


def test_ids_of_request_are_logged() -> None:
    assert round_report.ids_of(Request(builders.GANG, "team/llama-x", "new data", at=1.0)) == {
        "request": "team/llama-x"
    }
    assert round_report.ids_of(builders.fault(device="GPU-1")) == {
        "fault": "fault-1",
        "pod": "team/train-0-0",
        "device": "GPU-1",
    }
