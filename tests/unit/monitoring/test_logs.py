"""docs/logs.md has every event of the sources, and pages name only existing events."""

import ast
import functools
import re
from collections.abc import Sequence
from typing import Final

import pytest

from hack import monitoring, monitoring_logs
from tests.unit.monitoring.component import ALERTS

_NO_EVENT: Final = {"kubemend.round", "kubemend.io", "status.failures"}


@functools.cache
def events() -> Sequence[monitoring_logs.Event]:
    """Return the events of the sources."""
    return monitoring_logs.events(monitoring.ROOT)


@functools.cache
def names() -> frozenset[str]:
    """Return the names of the events of the sources."""
    return frozenset(each.name for each in events())


def named(text: str) -> set[str]:
    """Return texts that look like an event's name: backquoted in a page."""
    return set(re.findall(r"`([a-z_]+\.[a-z_]+)`", text)) - _NO_EVENT


def test_events_are_found_as_text_has_them() -> None:
    """The results of a plain search are complete: the syntax tree must not miss a call."""
    found = set()
    for package in monitoring_logs.PACKAGES:
        for path in (monitoring.ROOT / package).rglob("*.py"):
            found |= set(re.findall(r'\blog\.\w+\(\s*"([a-z_.]+)"', path.read_text()))
    assert len(found) > 100
    assert found <= names()


def test_names_are_stable() -> None:
    assert all(re.fullmatch(r"[a-z_]+(\.[a-z_]+)?", name) for name in names())


def test_no_key_stands_for_two_things() -> None:
    """An operator greps for one id: `id` and `name` do not identify their object."""
    assert not [each for each in events() if each.package == "controller" and "id" in each.keys]


@pytest.mark.parametrize(
    "name", ["fault", "gang.decided", "fault.answered", "round.begun", "round.phase", "round.ended"]
)
def test_events_of_a_round_are_linked(name: str) -> None:
    """Each line has the round or, before there is one, the fault and the gang."""
    (event,) = [each for each in events() if each.name == name and each.package == "controller"]
    assert {"round", "fault"} & set(event.keys) or ("gang" in event.keys and "…" in event.keys)


@pytest.mark.parametrize("page", ["docs/troubleshooting.md", "hack/pages/logs.md"])
def test_pages_name_existing_events(page: str) -> None:
    found = named((monitoring.ROOT / page).read_text())
    assert len(found) > 10
    assert found <= names()


def test_alerts_name_existing_events() -> None:
    texts = " ".join(each.description for each in ALERTS)
    reported = set(re.findall(r"\b[a-z_]+\.[a-z_]+\b", texts)) - _NO_EVENT
    assert len(reported) > 5
    assert reported <= names()


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ('log.info("a.b", gang=1)', [("a.b", "info", ("gang",))]),
        ('log.exception("a.b")', [("a.b", "error", ())]),
        (
            'log.warning("a" if x else "b", **more, pod=1)',
            [("a", "warning", ("pod", "…")), ("b", "warning", ("pod", "…"))],
        ),
        (
            'say = log.debug if x else log.info\nsay("part")',
            [("part", "debug", ()), ("part", "info", ())],
        ),
        ('say("part")', []),
        ("log.info(text)", []),
        ('catalog.info("a.b")', []),
    ],
)
def test_what_a_call_logs(source: str, expected: list[tuple[str, str, tuple[str, ...]]]) -> None:
    found = monitoring_logs._of_module(ast.parse(source), package="agent", module="m")
    assert [(each.name, each.level, each.keys) for each in found] == expected
