"""Read the component ``monitoring``: its alerts, its recorded series, and the dashboard's panels and queries."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import yaml

from hack import monitoring

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. ``wait`` is the time for which the expression must hold; empty: none."""

    name: str
    severity: str
    expr: str
    summary: str
    description: str
    runbook: str
    wait: str

    @property
    def anchor(self) -> str:
        """The anchor of its section in docs/troubleshooting.md."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded series."""

    name: str
    expr: str


@dataclass(frozen=True, slots=True)
class Query:
    """One expression of a panel; ``legend`` names its series."""

    panel: str
    expr: str
    legend: str


def groups() -> list[Json]:
    """Return the groups of rules: the recorded ones, then the alerts."""
    found: list[Json] = yaml.safe_load(monitoring.rules())["groups"]
    return found


def _alert(rule: Mapping[str, Any]) -> Alert:
    texts = rule["annotations"]
    return Alert(
        name=rule["alert"],
        severity=rule["labels"]["severity"],
        expr=rule["expr"],
        summary=texts["summary"],
        description=texts["description"],
        runbook=texts["runbook_url"],
        wait=rule.get("for", ""),
    )


_RECORDED, _ALERTS = groups()
RECORDINGS: Final = [Recording(rule["record"], rule["expr"]) for rule in _RECORDED["rules"]]
ALERTS: Final = [_alert(rule) for rule in _ALERTS["rules"]]

CONFIG_MAP: Final[Json] = yaml.safe_load((monitoring.COMPONENT / "dashboard.yaml").read_text("utf-8"))
DASHBOARD: Final[Json] = json.loads(CONFIG_MAP["data"]["kubemend.json"])
PANELS: Final[Sequence[Json]] = DASHBOARD["panels"]
QUERIES: Final = [
    Query(panel["title"], target["expr"], target["legendFormat"])
    for panel in PANELS
    for target in panel.get("targets", ())
]
VARIABLES: Final[Mapping[str, str]] = {
    each["name"]: each["current"]["value"] for each in DASHBOARD["templating"]["list"] if "current" in each
}
"""The dashboard's settings, with their defaults."""
