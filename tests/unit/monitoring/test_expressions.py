"""Alerts and dashboard use what the code exports: each name, each label, and each value that the code can set."""

import enum
import re
from collections.abc import Mapping
from typing import Final

import promql_parser as promql
import pytest

from hack.monitoring import ROOT
from kubemend.agent.model.outcomes import Result
from kubemend.agent.model.verdicts import Health
from kubemend.agent.reporters import events, node_condition, pod_conditions
from kubemend.agent.restart import admission, reasons
from kubemend.controller.decisions import facts
from kubemend.controller.hub import refusals
from kubemend.controller.rounds.states import Phase
from tests.unit.monitoring import component
from tests.unit.monitoring.component import Alert, Query
from tests.unit.monitoring.promql import WrongError, known, matchers, outcome


def values(*kinds: type[enum.Enum]) -> set[str]:
    """Return the values of enumerations."""
    return {each.value for kind in kinds for each in kind}


def parts(package: str) -> set[str]:
    """Return the parts that a package names."""
    sources = (path.read_text() for path in (ROOT / package).rglob("*.py"))
    return {name for text in sources for name in re.findall(r'reporter\("([a-z-]+)"', text)}


def phases_of_restarts() -> set[str]:
    """Return the one phase of a restart that is queried, if the agent still has it."""
    return set(re.findall(r'"(fault_to_running)"', (ROOT / "agent/restarts/conclusion.py").read_text()))


SET: Final[Mapping[tuple[str, str], set[str]]] = {
    ("kubemend_device_verdict", "verdict"): values(Health),
    ("kubemend_device_verdict", "device"): {"GPU-.+"},
    ("verdict:kubemend_device_verdict:sum", "verdict"): values(Health),
    ("kubemend_restarts_total", "result"): values(Result),
    ("strategy_phase_le:kubemend_restart_phase_seconds_bucket:rate5m", "phase"): phases_of_restarts(),
    ("kubemend_restart_decisions_total", "verb"): values(admission.Verb),
    ("kubemend_restart_decisions_total", "reason"): values(reasons.Reason),
    ("kubemend_condition_patches_total", "result"): values(pod_conditions.Outcome),
    ("kubemend_node_condition_patches_total", "result"): values(node_condition.Outcome),
    ("kubemend_events_total", "result"): values(events.Outcome),
    ("kubemend_hub_fault_answers_total", "answer"): {"Unanswered"},
    ("kubemend_rounds_total", "phase"): {each.value for each in Phase if each.is_final},
    ("kubemend_round_seconds_bucket", "phase"): {each.value for each in Phase if each.is_final},
    ("kubemend_round_gpus_total", "phase"): {each.value for each in Phase if each.is_final},
    ("kubemend_round_traces_total", "result"): {"exported", "failed", "dropped"},
    ("kubemend_gang_decisions_total", "kind"): values(facts.Kind),
    ("kubemend_gang_decisions_total", "reason"): values(facts.Reason),
    ("kubemend_hub_refused_total", "reason"): values(refusals.Reason),
    ("kubemend_component_ready", "part"): parts("agent") | parts("controller"),
    ("kubemend_component_ready", "component"): {"agent", "controller"},
    ("up", "component"): {"agent", "controller"},
    ("up", "job"): {".*kubemend.*"},
}
"""The values of labels that expressions name."""


ALERTS: Final = [pytest.param(each, id=each.name) for each in component.ALERTS]
QUERIES: Final = [pytest.param(each, id=f"{each.panel}: {each.legend}") for each in component.QUERIES]
EXPRESSIONS: Final = [
    *(pytest.param(each.expr, id=each.name) for each in component.ALERTS),
    *(pytest.param(each.expr, id=each.name) for each in component.RECORDINGS),
    *(pytest.param(each.expr, id=f"{each.panel}: {each.legend}") for each in component.QUERIES),
]


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_every_name_and_label_is_exported(expr: str) -> None:
    outcome(expr, known=known())


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_every_value_that_is_named_can_be_set(expr: str) -> None:
    for series, matcher in matchers(expr):
        pattern = promql.MatchOp.Re, promql.MatchOp.NotRe
        named = set(matcher.value.split("|")) if matcher.op in pattern else {matcher.value}
        assert named <= SET[series, matcher.name], (series, matcher.name)


def test_every_known_value_is_used() -> None:
    asked = {(series, matcher.name) for each in EXPRESSIONS for series, matcher in matchers(str(each.values[0]))}
    assert set(SET) <= asked


@pytest.mark.parametrize("alert", ALERTS)
def test_alert_texts_use_existing_labels(alert: Alert) -> None:
    reported = re.findall(r"\$labels\.(\w+)", alert.summary + alert.description)
    assert set(reported) <= outcome(alert.expr, known=known())


@pytest.mark.parametrize("query", QUERIES)
def test_legends_use_existing_labels(query: Query) -> None:
    reported = re.findall(r"{{(\w+)}}", query.legend)
    assert set(reported) <= outcome(query.expr, known=known())


@pytest.mark.parametrize(
    "expr",
    [
        "kubemend_devices_verdict",
        "kubemend_restarts",  # without _total
        "kubemend_round_seconds",  # a histogram has buckets, sum and count
        'kubemend_device_verdict{state="Healthy"}',
        "sum by (gang) (kubemend_rounds_total)",
        "sum by (verdict) (sum(kubemend_device_verdict))",
        "histogram_quantile(0.9, sum by (phase) (rate(kubemend_round_seconds_bucket[5m])))",
        "kubemend_round_held * on (device) kubemend_device_verdict",
    ],
)
def test_unexported_name_is_detected(expr: str) -> None:
    with pytest.raises(WrongError):
        outcome(expr, known=known())


@pytest.mark.parametrize("expr", ["sum by (node) kubemend_round_held[5m]", "rate(kubemend_rounds_total)", "a b"])
def test_invalid_promql_is_detected(expr: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        outcome(expr, known=known())
