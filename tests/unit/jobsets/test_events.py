"""Events about JobSets, as the API server takes them."""

import pytest

from controller.jobset.plan import Event, EventType
from controller.jobsets import events
from controller.jobsets.events import About, Story


def body(reason: str, message: str) -> dict[str, object]:
    story = Story(About("team", "train", "uid-1"), Event(EventType.WARNING, reason, message), at=0.0)
    return events.body(story, instance="one")


@pytest.mark.parametrize("message", ["x" * 1025, "ü" * 600, "x" + "…" * 400, "x" * 100_000])
def test_a_note_that_is_too_long_is_cut_to_the_bytes_that_are_taken(message: str) -> None:
    note = str(body("JobCreationFailed", message)["note"])
    assert events.MAX_NOTE - 4 <= len(note.encode()) <= events.MAX_NOTE
    assert note.endswith("…")
    assert message.startswith(note.removesuffix("…"))


@pytest.mark.parametrize("message", ["", "x" * 1024, "ü" * 512])
def test_a_note_that_fits_is_told_whole(message: str) -> None:
    assert body("JobCreationFailed", message)["note"] == message


def test_a_reason_is_no_longer_than_is_taken() -> None:
    assert body(f"FailurePolicy_{'r' * 128}", "")["reason"] == f"FailurePolicy_{'r' * 114}"
