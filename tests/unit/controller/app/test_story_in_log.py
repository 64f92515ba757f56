"""One grep for a round, and one for the fault that it names, tell the whole story."""

from structlog.testing import capture_logs

from controller.app import story
from controller.model.faults import Request
from tests.unit.controller import builders
from tests.unit.controller.app.stage import Stage
from tests.unit.controller.app.test_conductor import round_of


def grep(logged: list[dict[str, object]], text: str) -> list[object]:
    """Return the events of the lines that have a text in them."""
    return [line["event"] for line in logged if text in map(str, line.values())]


async def test_a_round_and_its_fault_are_found_by_one_text_each() -> None:
    stage = Stage(builders.gang(3))
    with capture_logs() as logged:
        async with stage.leading() as conductor:
            stage.fails(conductor, 1, fault_id="fault-7")
            round_id = await round_of(stage, conductor)
    lines = [dict(line) for line in logged]
    assert grep(lines, round_id) == ["round.begun", "fault.answered", "round.phase", "round.phase", "round.ended"]
    assert [line["phase"] for line in lines if line["event"] == "round.phase"] == ["Releasing", "Done"]
    assert grep(lines, "fault-7") == ["fault", "gang.decided", "round.begun", "fault.answered"]
    (begun,) = [line for line in lines if line["event"] == "round.begun"]
    assert (begun["pod"], begun["cause"], begun["kind"]) == ("team/train-1-0", "Exit1", "InPlace")
    assert begun["gang"] == "team/Job/train"


def test_what_a_request_is_known_by() -> None:
    assert story.ids_of(Request(builders.GANG, "team/llama-x", "new data", at=1.0)) == {"request": "team/llama-x"}
    assert story.ids_of(builders.fault(device="GPU-1")) == {
        "fault": "fault-1",
        "pod": "team/train-0-0",
        "device": "GPU-1",
    }
