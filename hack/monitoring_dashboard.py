"""The Grafana dashboard, from a description of its panels. Writes a ConfigMap that Grafana's sidecar loads."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

TITLE: Final = "kubemend"
_UID: Final = "kubemend-fleet"
_SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH: Final = 24
_QUANTILES: Final = (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
_COLOURS: Final = {"Healthy": "green", "Degraded": "yellow", "Unhealthy": "red", "Unknown": "purple"}

VARIABLES: Final = {"window": "1h", "baseline": "180"}
"""Settings of the dashboard: the window of rates and percentiles, and the baseline (docs/metrics.md)."""


@dataclass(frozen=True, slots=True)
class Query:
    """One expression; ``legend`` names its series."""

    expr: str
    legend: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One panel. ``kind`` (stat, timeseries or table) and ``unit`` are Grafana's."""

    title: str
    kind: str
    queries: tuple[Query, ...]
    about: str
    unit: str = "short"
    width: int = 8
    height: int = 8
    stacked: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """Panels under one title."""

    title: str
    panels: tuple[Panel, ...]


def _over(recorded: str) -> str:
    """Return a recorded rate, averaged over the window."""
    return f"avg_over_time({recorded}[$window])"


def _quantiles(buckets: str, *, by: str = "") -> tuple[Query, ...]:
    """Return the percentiles of a histogram, for each value of the label ``by``."""
    labels, legend = (f"le, {by}", f"{{{{{by}}}}} ") if by else ("le", "")
    return tuple(
        Query(f"histogram_quantile({share}, sum by ({labels}) ({buckets}))", f"{legend}{name}")
        for name, share in _QUANTILES
    )


_BEGUN: Final = _over("strategy_cause_result:kubemend_restarts:rate5m")
_RESTART_BUCKETS: Final = "strategy_phase_le:kubemend_restart_phase_seconds_bucket:rate5m"
_SAVED: Final = (
    '($baseline * sum(increase(kubemend_round_gpus_total{phase="Done"}[$__range]))'
    " - sum(increase(kubemend_round_gpu_seconds_total[$__range]))) / 3600"
)

ROWS: Final[Sequence[Row]] = (
    Row(
        "At a glance",
        (
            Panel(
                "Devices by verdict",
                "stat",
                (Query("sum by (verdict) (kubemend_device_verdict)", "{{verdict}}"),),
                "GPUs and NICs. Unknown: the state cannot be determined.",
                height=5,
            ),
            Panel(
                "GPU-hours saved",
                "stat",
                (Query(_SAVED),),
                "In the selected time: (baseline × GPUs of gangs that rounds brought back − GPU-seconds of all rounds) "
                "/ 3600. You set the baseline: seconds that a gang does not train when its pods are recreated. "
                "docs/metrics.md explains it.",
                unit="h",
                width=4,
                height=5,
            ),
            Panel(
                "Time to recover, gangs",
                "stat",
                (
                    Query(
                        "histogram_quantile(0.95, sum by (le) "
                        '(increase(kubemend_round_seconds_bucket{phase="Done"}[$__range])))',
                        "p95",
                    ),
                ),
                "From the fault to the last member running; 95 of 100 rounds took no longer.",
                unit="s",
                width=4,
                height=5,
            ),
            Panel(
                "Leads",
                "stat",
                (Query("sum(kubemend_controller_leads)"),),
                "Controller replicas that lead: must be 1.",
                width=4,
                height=5,
            ),
            Panel(
                "Agents connected",
                "stat",
                (Query("sum(kubemend_hub_sessions)", "hub"), Query('sum(up{component="agent"})', "answer Prometheus")),
                "Streams of the hub, and agents that Prometheus can scrape.",
                width=4,
                height=5,
            ),
        ),
    ),
    Row(
        "Fleet health",
        (
            Panel(
                "Devices that are not healthy",
                "timeseries",
                (Query('verdict:kubemend_device_verdict:sum{verdict!="Healthy"}', "{{verdict}}"),),
                "Number of devices with each verdict.",
            ),
            Panel(
                "Which ones",
                "table",
                (Query('kubemend_device_verdict{verdict!="Healthy"} == 1'),),
                "The node's condition kubemend.io/DevicesHealthy has the reason and the action.",
            ),
            Panel(
                "Findings",
                "timeseries",
                (Query("topk(10, sum by (kind, code) (rate(kubemend_findings_total[$window])))", "{{kind}} {{code}}"),),
                "Findings of all sources, by kind and code; the ten most frequent. `kubemend explain CODE` explains a "
                "code.",
                unit="ops",
            ),
        ),
    ),
    Row(
        "Restarts in place",
        (
            Panel(
                "By cause",
                "timeseries",
                (Query(f"topk(10, sum by (cause) ({_BEGUN}))", "{{cause}}"),),
                "Restarts, by the code of the fault.",
                unit="ops",
                stacked=True,
            ),
            Panel(
                "By strategy",
                "timeseries",
                (Query(f"sum by (strategy) ({_BEGUN})", "{{strategy}}"),),
                "Restarts, by strategy.",
                unit="ops",
                stacked=True,
            ),
            Panel(
                "By result",
                "timeseries",
                (Query(f"sum by (result) ({_BEGUN})", "{{result}}"),),
                "Restarts, by result. docs/operations.md explains each result.",
                unit="ops",
                stacked=True,
            ),
            Panel(
                "Fault to running",
                "timeseries",
                _quantiles(_over(f'{_RESTART_BUCKETS}{{phase="fault_to_running"}}')),
                "From the fault to the new process, for containers restarted by their own agent.",
                unit="s",
            ),
            Panel(
                "Phases",
                "timeseries",
                _quantiles(_over(f'{_RESTART_BUCKETS}{{phase!="fault_to_running"}}'), by="phase"),
                "Duration of each phase of a restart.",
                unit="s",
            ),
            Panel(
                "Next step",
                "timeseries",
                _quantiles(_over("since_le:kubemend_restart_next_step_seconds_bucket:rate5m"), by="since"),
                "From the fault, and from the end of the restart, to the first touch of the heartbeat file. Only for "
                "containers that have one (kubemend.io/heartbeat-file).",
                unit="s",
            ),
            Panel(
                "Refused and held",
                "timeseries",
                (
                    Query(
                        "topk(10, sum by (verb, reason) "
                        '(rate(kubemend_restart_decisions_total{verb!="act"}[$window])))',
                        "{{verb}} {{reason}}",
                    ),
                ),
                "Decisions to refuse or postpone a restart. docs/operations.md explains each reason.",
                unit="ops",
            ),
        ),
    ),
    Row(
        "Gang rounds",
        (
            Panel(
                "Rounds",
                "timeseries",
                (
                    Query("sum by (phase) (increase(kubemend_rounds_total[$window]))", "{{phase}}"),
                    Query("sum(kubemend_rounds_active)", "under way"),
                ),
                "Rounds that ended in the window, by final phase, and rounds under way.",
                width=6,
            ),
            Panel(
                "Time to recover",
                "timeseries",
                _quantiles('rate(kubemend_round_seconds_bucket{phase="Done"}[$window])'),
                "From the fault to the last member running.",
                unit="s",
                width=6,
            ),
            Panel(
                "Steps",
                "timeseries",
                _quantiles("rate(kubemend_round_step_seconds_bucket[$window])", by="step"),
                "decide: fault to decision; stop: until all old containers died; release: until the last member ran.",
                unit="s",
                width=6,
            ),
            Panel(
                "Members' phases",
                "timeseries",
                _quantiles(_over("phase_le:kubemend_round_phase_seconds_bucket:rate5m"), by="phase"),
                "Phases of members' own restarts, by their nodes' clocks.",
                unit="s",
                width=6,
            ),
            Panel(
                "Decisions",
                "timeseries",
                (
                    Query(
                        "sum by (kind, reason) (increase(kubemend_gang_decisions_total[$window]))",
                        "{{kind}} {{reason}}",
                    ),
                ),
                "Decisions about gangs, and their reasons.",
                width=6,
            ),
            Panel(
                "Final phases of members",
                "timeseries",
                (Query("sum by (phase) (increase(kubemend_round_members_total[$window]))", "{{phase}}"),),
                "As their agents reported them.",
                width=6,
            ),
            Panel(
                "Ran before it was held",
                "timeseries",
                _quantiles("rate(kubemend_round_unheld_seconds_bucket[$window])"),
                "Longest time in which a new container ran while an old one lived: 0 if the kernel has fanotify.",
                unit="s",
                width=6,
            ),
            Panel(
                "Held, and behind",
                "timeseries",
                (
                    Query("sum(kubemend_round_held)", "containers held now"),
                    Query(
                        "sum by (namespace, gang) (kubemend_gang_stragglers) > 0",
                        "stragglers of {{namespace}}/{{gang}}",
                    ),
                ),
                "Containers held for rounds, and members far below their gang's median.",
                width=6,
            ),
        ),
    ),
    Row(
        "Budgets",
        (
            Panel(
                "Nodes nearest to the storm limit",
                "table",
                (Query("bottomk(10, kubemend_node_restart_budget_left)"),),
                "Restarts that the node's storm limit still allows. 0: no more restarts.",
            ),
            Panel(
                "Devices",
                "table",
                (Query("bottomk(20, kubemend_device_restart_budget_left)"),),
                "Restarts because of the device that may still fail. Other devices have their whole budget.",
            ),
            Panel(
                "Containers and pods",
                "table",
                (Query("bottomk(20, kubemend_restart_budget_left)"),),
                "Restarts left; an empty container means the pod's own budget. Others have their whole budget.",
            ),
        ),
    ),
    Row(
        "Hub",
        (
            Panel(
                "Streams",
                "timeseries",
                (
                    Query("sum by (pod) (kubemend_hub_sessions)", "{{pod}}"),
                    Query("count(kubemend_hub_connected == 0)", "agents without a hub"),
                ),
                "Agents' streams by replica; only the leader has any.",
                width=6,
            ),
            Panel(
                "Messages",
                "timeseries",
                (
                    Query(
                        "sum by (direction, body) (rate(kubemend_hub_messages_total[$window]))",
                        "{{direction}} {{body}}",
                    ),
                ),
                "Of all agents; out is to the hub.",
                unit="ops",
                width=6,
            ),
            Panel(
                "Refused and ended",
                "timeseries",
                (
                    Query("sum by (reason) (increase(kubemend_hub_refused_total[$window])) > 0", "refused: {{reason}}"),
                    Query(
                        "sum by (reason) (increase(kubemend_hub_sessions_ended_total[$window])) > 0",
                        "ended: {{reason}}",
                    ),
                    Query(
                        "sum by (reason) (increase(kubemend_hub_connections_refused_total[$window])) > 0",
                        "not admitted: {{reason}}",
                    ),
                    Query("sum by (reason) (increase(kubemend_hub_ignored_total[$window])) > 0", "ignored: {{reason}}"),
                ),
                "By the hub, and (ignored) by agents. Standby and NotTold resolve by themselves.",
                width=6,
            ),
            Panel(
                "Reported faults",
                "timeseries",
                (
                    Query(
                        "sum by (kind, answer) (increase(kubemend_gang_faults_total[$window]))", "{{kind}} {{answer}}"
                    ),
                    Query(
                        'sum(increase(kubemend_hub_fault_answers_total{answer="Unanswered"}[$window]))',
                        "no answer in time",
                    ),
                ),
                "Faults that agents reported to the hub, and its answers.",
                width=6,
            ),
        ),
    ),
    Row(
        "Losses",
        (
            Panel(
                "Must be 0",
                "timeseries",
                (
                    Query("sum(increase(kubemend_findings_lost_total[$window]))", "findings lost"),
                    Query("sum(increase(kubemend_contained_failures_total[$window]))", "internal errors"),
                    Query(
                        "sum(increase(kubemend_rounds_begun_without_record_total[$window]))", "rounds without a record"
                    ),
                ),
                "Each has an alert; docs/troubleshooting.md has the remedies.",
            ),
            Panel(
                "Sources",
                "timeseries",
                (
                    Query("sum(increase(kubemend_kernel_log_records_lost_total[$window]))", "kernel log, overwritten"),
                    Query(
                        "sum(increase(kubemend_kernel_log_records_malformed_total[$window]))", "kernel log, malformed"
                    ),
                    Query("sum(increase(kubemend_netlink_overflows_total[$window]))", "netlink overflows"),
                ),
                "Records that agents could not read.",
            ),
            Panel(
                "Lost reports",
                "timeseries",
                (
                    Query(
                        "sum by (result) "
                        '(increase(kubemend_condition_patches_total{result=~"failed|refused|dropped"}[$window]))',
                        "pod conditions {{result}}",
                    ),
                    Query(
                        "sum by (result) "
                        '(increase(kubemend_node_condition_patches_total{result=~"failed|refused"}[$window]))',
                        "node conditions {{result}}",
                    ),
                    Query(
                        'sum by (result) (increase(kubemend_events_total{result=~"refused|dropped"}[$window]))',
                        "events {{result}}",
                    ),
                    Query(
                        'sum by (result) (increase(kubemend_round_traces_total{result=~"failed|dropped"}[$window]))',
                        "traces {{result}}",
                    ),
                ),
                "Failed conditions are written again; the others are lost.",
            ),
        ),
    ),
)


def dashboard() -> Json:
    """Return the dashboard as Grafana has it."""
    return {
        "uid": _UID,
        "title": TITLE,
        "tags": ["gpu", "kubemend"],
        "editable": True,
        "schemaVersion": 39,
        "refresh": "30s",
        "time": {"from": "now-24h", "to": "now"},
        "templating": {"list": [*_variables()]},
        "panels": [*_panels()],
    }


def resource() -> Json:
    """Return the ConfigMap."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "kubemend-dashboard",
            "namespace": "kubemend",
            "labels": {"app.kubernetes.io/name": "kubemend", "grafana_dashboard": "1"},
        },
        "data": {"kubemend.json": json.dumps(dashboard(), indent=1) + "\n"},
    }


def _variables() -> Iterator[Json]:
    yield {"name": "datasource", "type": "datasource", "query": "prometheus", "label": "Prometheus"}
    yield {
        "name": "window",
        "type": "custom",
        "label": "Rates over",
        "query": "15m,1h,6h,1d",
        "current": {"text": VARIABLES["window"], "value": VARIABLES["window"]},
    }
    yield {
        "name": "baseline",
        "type": "textbox",
        "label": "Seconds without kubemend",
        "query": VARIABLES["baseline"],
        "current": {"text": VARIABLES["baseline"], "value": VARIABLES["baseline"]},
    }


def _panels() -> Iterator[Json]:
    """Yield rows and panels, each with its number and its position: from left to right, then down."""
    number, top = 1, 0
    for row in ROWS:
        yield {"id": number, "type": "row", "title": row.title, "gridPos": _place(0, top, _WIDTH, 1), "panels": []}
        number, top, left, height = number + 1, top + 1, 0, 0
        for panel in row.panels:
            if left + panel.width > _WIDTH:
                left, top, height = 0, top + height, 0
            yield {"id": number, "gridPos": _place(left, top, panel.width, panel.height), **_drawn(panel)}
            number, left, height = number + 1, left + panel.width, max(height, panel.height)
        top += height


def _place(left: int, top: int, width: int, height: int) -> Json:
    return {"x": left, "y": top, "w": width, "h": height}


def _drawn(panel: Panel) -> Json:
    stacking: Json = {"custom": {"stacking": {"mode": "normal"}, "fillOpacity": 30}} if panel.stacked else {}
    drawn: Json = {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _SOURCE,
        "targets": [_target(panel, *each) for each in zip("ABCDEFG", panel.queries, strict=False)],
        "fieldConfig": {"defaults": {"unit": panel.unit, **stacking}, "overrides": [*_overrides(panel)]},
    }
    if panel.kind == "table":
        hidden = ("Time", "__name__", "instance", "job", "endpoint", "component")
        drawn["transformations"] = [{"id": "organize", "options": {"excludeByName": dict.fromkeys(hidden, True)}}]
    return drawn


def _target(panel: Panel, letter: str, query: Query) -> Json:
    at_once = panel.kind in ("stat", "table")
    return {
        "refId": letter,
        "datasource": _SOURCE,
        "expr": query.expr,
        "legendFormat": query.legend or "__auto",
        "instant": at_once,
        "range": not at_once,
        "format": "table" if panel.kind == "table" else "time_series",
    }


def _overrides(panel: Panel) -> Iterator[Json]:
    """Yield the colours of verdicts, the same in all panels."""
    if any("kubemend_device_verdict" in query.expr for query in panel.queries) and panel.kind != "table":
        for verdict, colour in _COLOURS.items():
            colouring = {"id": "color", "value": {"mode": "fixed", "fixedColor": colour}}
            yield {"matcher": {"id": "byName", "options": verdict}, "properties": [colouring]}
