"""Check the names and labels of an expression, and return the labels of its result."""

import functools
import re
from collections.abc import Mapping
from typing import Final

import promql_parser as promql
import yaml

from hack import monitoring_metrics
from hack.monitoring import COMPONENT
from tests.unit.monitoring.component import RECORDINGS, VARIABLES

ADDED: Final = frozenset({"job", "instance", "namespace", "pod", "container", "endpoint"})
"""Labels that the Prometheus Operator gives every target of a PodMonitor, in addition to those of its relabelings."""

_KEEPS: Final = ("topk", "bottomk", "limitk")
_ASKED_OF_TARGETS: Final = frozenset({"up"})

Labels = frozenset[str]


class WrongError(Exception):
    """An expression uses an unknown name or label; the text names it."""


def of_targets() -> Labels:
    """Return the labels that every series has from its target."""
    (endpoint,) = yaml.safe_load((COMPONENT / "podmonitor.yaml").read_text())["spec"]["podMetricsEndpoints"]
    return ADDED | {each["targetLabel"] for each in endpoint["relabelings"]}


@functools.cache
def known() -> Mapping[str, Labels]:
    """Return the labels of every series that there is, by its name: exported, recorded, and of Prometheus itself."""
    found: dict[str, Labels] = dict.fromkeys(_ASKED_OF_TARGETS, of_targets())
    for metric in monitoring_metrics.exported():
        for name, labels in metric.series().items():
            found[name] = found.get(name, frozenset()) | labels | of_targets()
    for recording in RECORDINGS:
        found[recording.name] = outcome(recording.expr, known=found)
    return found


def outcome(text: str, *, known: Mapping[str, Labels]) -> Labels:
    """Return the labels of an expression's result. Raises WrongError, and ValueError for invalid PromQL."""
    for name, value in (*VARIABLES.items(), ("__range", "1d")):
        text = text.replace(f"${name}", value)
    return _labels(promql.parse(text), known)


def matchers(text: str) -> list[tuple[str, promql.Matcher]]:
    """Return all conditions on labels, each with the name of its series."""
    found: list[tuple[str, promql.Matcher]] = []

    def look(expr: promql.Expr) -> None:
        if isinstance(expr, promql.VectorSelector):
            found.extend((expr.name or "", each) for each in expr.matchers.matchers)

    for name, value in (*VARIABLES.items(), ("__range", "1d")):
        text = text.replace(f"${name}", value)
    promql.walk(promql.parse(text), look)
    return found


@functools.singledispatch
def _labels(expr: promql.Expr, known: Mapping[str, Labels]) -> Labels:
    raise NotImplementedError(type(expr).__name__)


@_labels.register
def _(expr: promql.VectorSelector, known: Mapping[str, Labels]) -> Labels:
    if expr.name is None or expr.name not in known:
        raise WrongError(f"nothing exports {expr.name}")
    _are_there({each.name for each in expr.matchers.matchers}, known[expr.name], expr)
    return known[expr.name]


@_labels.register
def _(expr: promql.MatrixSelector, known: Mapping[str, Labels]) -> Labels:
    return _labels(expr.vector_selector, known)


@_labels.register(promql.ParenExpr)
@_labels.register(promql.SubqueryExpr)
@_labels.register(promql.UnaryExpr)
def _(expr: promql.ParenExpr, known: Mapping[str, Labels]) -> Labels:
    return _labels(expr.expr, known)


@_labels.register(promql.NumberLiteral)
@_labels.register(promql.StringLiteral)
def _(_expr: promql.Expr, _known: Mapping[str, Labels]) -> Labels:
    return frozenset()


@_labels.register
def _(expr: promql.AggregateExpr, known: Mapping[str, Labels]) -> Labels:
    within = _labels(expr.expr, known)
    if expr.modifier is None:
        operation = re.match(r"\w+", expr.prettify())
        assert operation is not None
        return within if operation[0] in _KEEPS else frozenset()
    asked = frozenset(expr.modifier.labels)
    _are_there(asked, within, expr)
    return asked if expr.modifier.type == promql.AggModifierType.By else within - asked


@_labels.register
def _(expr: promql.BinaryExpr, known: Mapping[str, Labels]) -> Labels:
    left, right = _labels(expr.lhs, known), _labels(expr.rhs, known)
    if expr.modifier is not None and expr.modifier.matching is not None:
        _are_there(expr.modifier.matching.labels, left & right, expr)
    return right if isinstance(expr.lhs, promql.NumberLiteral) else left


@_labels.register
def _(expr: promql.Call, known: Mapping[str, Labels]) -> Labels:
    labels = [_labels(each, known) for each in expr.args]
    if expr.func.name == "histogram_quantile":
        _are_there({"le"}, labels[1], expr)
        return labels[1] - {"le"}
    return frozenset().union(*labels)


def _are_there(asked: "set[str] | Labels | list[str]", there: Labels, expr: promql.Expr) -> None:
    if missing := set(asked) - there:
        raise WrongError(f"{', '.join(sorted(missing))}: no such label in {expr.prettify()}")
