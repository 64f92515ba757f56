"""Events about JobSets, as the API server accepts them."""

from typing import Any, cast

import pytest

from kubemend.common.kube.client import KubeClient
from kubemend.controller.jobset.plan import Event, EventType
from kubemend.controller.jobsets import events
from kubemend.controller.jobsets.events import Events, JobSetRef, PendingEvent


def body(reason: str, message: str) -> dict[str, object]:
    pending = PendingEvent(JobSetRef("team", "train", "uid-1"), Event(EventType.WARNING, reason, message), at=0.0)
    return events.body(pending, instance="one")


@pytest.mark.parametrize("message", ["x" * 1025, "ü" * 600, "x" + "…" * 400, "x" * 100_000])
def test_long_note_is_cut_to_allowed_bytes(message: str) -> None:
    note = str(body("JobCreationFailed", message)["note"])
    assert events.MAX_NOTE - 4 <= len(note.encode()) <= events.MAX_NOTE
    assert note.endswith("…")
    assert message.startswith(note.removesuffix("…"))


@pytest.mark.parametrize("message", ["", "x" * 1024, "ü" * 512])
def test_short_note_is_kept(message: str) -> None:
    assert body("JobCreationFailed", message)["note"] == message


def test_reason_is_cut_to_allowed_length() -> None:
    assert body(f"FailurePolicy_{'r' * 128}", "")["reason"] == f"FailurePolicy_{'r' * 114}"


def test_repeated_failure_is_counted_and_a_change_of_the_status_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder, counted = Events(api=cast("KubeClient", None), instance="one"), list[bool]()

    def record(*_: Any, may_repeat: bool, **__: Any) -> None:
        counted.append(may_repeat)

    monkeypatch.setattr(recorder._recorder, "record", record)
    failure = Event(EventType.WARNING, "JobCreationFailed", "exceeded quota")
    recorder.record(JobSetRef("team", "train", "uid-1"), failure)
    recorder.record(JobSetRef("team", "train", "uid-1"), failure, subject="resource version 1")
    assert counted == [True, False]
