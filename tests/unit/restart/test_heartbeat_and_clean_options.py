"""The annotations on heartbeats and on cleaning."""

import pytest

from kubemend.agent.restart import options
from kubemend.agent.restart.options import BadAnnotationError, Clean, Heartbeat
from kubemend.agent.restart.overlap import Overlap

FILE, TIMEOUT, CLEAN = options.HEARTBEAT_FILE, options.HEARTBEAT_TIMEOUT, options.CLEAN


def test_heartbeat_needs_a_file_and_a_timeout() -> None:
    found = options.parse({FILE: "/checkpoints/beat", TIMEOUT: "1.5m"})
    assert found.heartbeat == Heartbeat(file="/checkpoints/beat", timeout=90.0)


def test_no_annotations_watch_and_clean_nothing() -> None:
    found = options.parse({})
    assert (found.heartbeat, found.clean) == (None, frozenset())


@pytest.mark.parametrize(
    ("given", "missing"), [({FILE: "/beat"}, TIMEOUT), ({TIMEOUT: "60s"}, FILE)], ids=["timeout", "file"]
)
def test_missing_heartbeat_annotation_is_named(given: dict[str, str], missing: str) -> None:
    with pytest.raises(BadAnnotationError, match=f"annotation {missing} is missing"):
        options.parse(given)


@pytest.mark.parametrize(
    "file", ["beat", "", "/", "//beat", "/tmp/../beat", "/tmp/./beat", "/tmp//beat", "/tmp/beat/", "../beat", "/be\0at"]
)
def test_heartbeat_path_must_be_absolute_and_normalised(file: str) -> None:
    with pytest.raises(BadAnnotationError, match=FILE):
        options.parse({FILE: file, TIMEOUT: "60s"})


@pytest.mark.parametrize("timeout", ["soon", "", "0", "999ms", "-5s", "inf", "25h", "9" * 400])
def test_heartbeat_timeout_must_be_a_valid_duration(timeout: str) -> None:
    with pytest.raises(BadAnnotationError, match=TIMEOUT):
        options.parse({FILE: "/beat", TIMEOUT: timeout})


@pytest.mark.parametrize(("text", "seconds"), [("1000ms", 1.0), ("24h", 86400.0)])
def test_heartbeat_timeout_ranges_from_a_second_to_a_day(text: str, seconds: float) -> None:
    found = options.parse({FILE: "/beat", TIMEOUT: text})
    assert found.heartbeat == Heartbeat("/beat", seconds)


@pytest.mark.parametrize("text", ["shm", " shm ", "shm,shm", "shm,"])
def test_clean_accepts_shm(text: str) -> None:
    assert options.parse({CLEAN: text}).clean == {Clean.SHM}


def test_nothing_overlaps_by_default() -> None:
    assert options.parse({}).overlap is None
    assert options.parse({options.OVERLAP: "imports"}).overlap is Overlap.IMPORTS


@pytest.mark.parametrize("text", ["", "true", "Imports", "imports,", "device"])
def test_overlap_refuses_other_values(text: str) -> None:
    with pytest.raises(BadAnnotationError, match=f"{options.OVERLAP} .* the only value is 'imports'"):
        options.parse({options.OVERLAP: text})


@pytest.mark.parametrize("text", ["tmp", "shm,tmp", "SHM", "true"])
def test_clean_refuses_other_values(text: str) -> None:
    with pytest.raises(BadAnnotationError, match=f"{CLEAN} .* may list shm"):
        options.parse({CLEAN: text})
