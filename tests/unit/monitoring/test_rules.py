"""Each alert is explained: it has a section in docs/troubleshooting.md, and sensible limits."""

import re
from typing import Final

import promql_parser as promql
import pytest
import yaml

from hack import monitoring
from hack.monitoring import ROOT
from kubemend.controller import metrics
from kubemend.controller.jobsets import queue
from kubemend.controller.rounds.states import Limits
from tests.unit.monitoring.component import ALERTS, RECORDINGS, Alert
from tests.unit.monitoring.promql import matchers

PAGE: Final = (ROOT / "docs" / "troubleshooting.md").read_text()
EVERY: Final = pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
SCRAPED_EVERY: Final = 60.0
"""Maximum seconds between two scrapes, for which the rules are written."""


def sections() -> dict[str, str]:
    """Return the text below each heading, by its anchor as Git hosts make it."""
    found = re.split(r"^#{2,3} (.+)\n", PAGE, flags=re.MULTILINE)[1:]
    return {
        re.sub(r"[^\w\- ]", "", title).strip().lower().replace(" ", "-"): text
        for title, text in zip(found[::2], found[1::2], strict=True)
    }


def seconds(duration: str) -> float:
    """Return a duration of Prometheus in seconds."""
    return promql.parse_duration(duration).total_seconds() if duration else 0.0


@EVERY
def test_every_alert_has_its_section(alert: Alert) -> None:
    text = sections()[alert.anchor]
    for part in ("What it means", "How to look", "What to do"):
        assert text.count(f"*{part}.*") == 1, part


def test_no_section_is_about_a_removed_alert() -> None:
    reported = {anchor for anchor in sections() if anchor.startswith("kubemend")}
    assert reported == {alert.anchor for alert in ALERTS}


def test_names_are_unique() -> None:
    names = [alert.name for alert in ALERTS] + [each.name for each in RECORDINGS]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"Kubemend([A-Z][a-z]+)+", alert.name) for alert in ALERTS)


@EVERY
def test_texts_are_sentences(alert: Alert) -> None:
    for text in (alert.summary, alert.description):
        assert re.fullmatch(r"[A-Z{`8].*\.", text), text
    assert alert.severity in ("critical", "warning", "info")


@EVERY
def test_times_are_longer_than_a_scrape_and_no_longer_than_an_hour(alert: Alert) -> None:
    times = re.findall(r"\[(\w+)\]|offset (\w+)", alert.expr)
    for each in (alert.wait, *(first or second for first, second in times)):
        assert each == "" or SCRAPED_EVERY <= seconds(each) <= 3600.0
    assert all(seconds(first) >= 4 * SCRAPED_EVERY for first, _ in times if first)


def test_a_round_is_stuck_only_after_the_longest_one_is_over() -> None:
    (stuck,) = [each for each in ALERTS if each.name == "KubemendRoundStuck"]
    assert seconds(stuck.wait) > Limits().whole


def test_long_hold_alert_waits_for_the_agents_own_timeout() -> None:
    (held,) = [each for each in ALERTS if each.name == "KubemendContainersHeldLong"]
    assert seconds(held.wait) > Limits().hold + Limits().recreated


def test_jobsets_wait_if_more_are_due_than_are_reconciled_at_once() -> None:
    (wait,) = [each for each in ALERTS if each.name == "KubemendJobSetsWait"]
    assert re.findall(r"kubemend_jobset_queue_depth > (\d+)", wait.expr) == [str(queue.PARALLEL)]


def test_slow_is_between_two_buckets() -> None:
    (slow,) = [each for each in ALERTS if each.name == "KubemendRoundsSlow"]
    (limit,) = re.findall(r"> (\d+)$", slow.expr)
    assert float(limit) in metrics.ROUND_BUCKETS[:-1]


@EVERY
def test_first_growth_is_noticed(alert: Alert) -> None:
    """A counter with labels appears with its first value:

    ``increase`` does not see that value, unless it existed before.
    """
    there = {"kubemend_rounds_total", "kubemend_hub_refused_total"}  # created with all values of their labels
    for series in re.findall(r"increase\((\w+_total)", alert.expr):
        has_labels = any(name == series for name, _ in matchers(alert.expr))
        assert not has_labels or series in there or f"unless {series}" in alert.expr


@EVERY
def test_runbook_is_the_alerts_own_section(alert: Alert) -> None:
    assert alert.runbook == f"{monitoring.RUNBOOKS}#{alert.anchor}"


def test_runbooks_have_the_given_address() -> None:
    _, alerts = yaml.safe_load(monitoring.rules("https://example.org/runbooks"))["groups"]
    urls = [rule["annotations"]["runbook_url"] for rule in alerts["rules"]]
    assert urls == [f"https://example.org/runbooks#{alert.anchor}" for alert in ALERTS]
