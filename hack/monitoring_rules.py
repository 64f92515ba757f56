"""Alerts, and recording rules for the dashboard. Writes the PrometheusRule."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

Json = dict[str, Any]

CRITICAL: Final = "critical"
WARNING: Final = "warning"
INFO: Final = "info"
"""Severities: respond now; today; when there is time."""

SELECTED_BY: Final = {"app.kubernetes.io/name": "kubemend"}

_FAILED: Final = "Failed|Stuck|Undone|Unfinished|SuccessorExited"
_HARMLESS: Final = "Standby|NotTold"
_AGENT_PARTS: Final = "container-runtime|kubernetes-api|pod-resources|kernel-log"
_CONTROLLER_PARTS: Final = "members|nodes|leader|hub"
"""Components that every node, and every replica, needs. Others may be ``idle``, which is exported as 0 as well."""


@dataclass(frozen=True, slots=True)
class Alert:
    """One alert. ``wait`` is the time for which the expression must hold; empty: none."""

    name: str
    severity: str
    expr: str
    summary: str
    description: str
    wait: str = ""

    @property
    def anchor(self) -> str:
        """The anchor of its section in docs/troubleshooting.md."""
        return self.name.lower()


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded series: its name is ``labels:metric:operation``."""

    name: str
    expr: str


def grown(series: str, window: str) -> str:
    """Return an expression for a counter that has grown or has just appeared.

    ``increase`` alone ignores the step to the first value, because there was none before.
    """
    return f"increase({series}[{window}]) > 0 or ({series} > 0 unless {series} offset {window})"


ALERTS: Final[Sequence[Alert]] = (
    Alert(
        "KubemendAgentDown",
        WARNING,
        'up{component="agent"} == 0',
        "The kubemend agent on {{ $labels.node }} is down.",
        "Prometheus could not scrape the agent for 10 minutes. Faults of that node's devices are neither reported nor "
        "handled.",
        "10m",
    ),
    Alert(
        "KubemendAgentPartNotReady",
        WARNING,
        f'kubemend_component_ready{{component="agent",part=~"{_AGENT_PARTS}"}} == 0',
        "The agent's {{ $labels.part }} does not work on {{ $labels.node }}.",
        "The other components work. The agent's /readyz shows the problem and a hint.",
        "10m",
    ),
    Alert(
        "KubemendDeviceUnhealthy",
        WARNING,
        'kubemend_device_verdict{verdict="Unhealthy"} == 1',
        "{{ $labels.device }} on {{ $labels.node }} is unhealthy.",
        "The node's condition kubemend.io/DevicesHealthy has the reason and the action: a reset, a reboot, a "
        "replacement.",
        "1m",
    ),
    Alert(
        "KubemendDeviceDegraded",
        INFO,
        'kubemend_device_verdict{verdict="Degraded"} == 1',
        "{{ $labels.device }} on {{ $labels.node }} is degraded.",
        "It works, but slower than it should, or with corrected errors. A whole gang waits for its slowest member.",
        "30m",
    ),
    Alert(
        "KubemendDeviceUnknown",
        WARNING,
        'kubemend_device_verdict{verdict="Unknown"} == 1',
        "The state of {{ $labels.device }} on {{ $labels.node }} is unknown.",
        "Usually NVML does not answer: the driver hangs, is being replaced, or has lost the device.",
        "15m",
    ),
    Alert(
        "KubemendRestartsFail",
        WARNING,
        "sum by (node, strategy, result) (\n  "
        + grown(f'kubemend_restarts_total{{result=~"{_FAILED}"}}', "15m")
        + "\n)",
        "Restarts in place end as {{ $labels.result }} on {{ $labels.node }} (strategy {{ $labels.strategy }}).",
        "The pod's condition kubemend.io/InPlaceRestart has the reason, the agent's log event restart.finished all "
        "details.",
    ),
    Alert(
        "KubemendNodeStorm",
        CRITICAL,
        "kubemend_node_restart_budget_left == 0",
        "Too many containers fail on {{ $labels.node }}: the agent has stopped restarting them.",
        "More restarts than --storm-restarts within --storm-window: probably a common cause that restarts do not fix.",
    ),
    Alert(
        "KubemendDeviceFailsAgain",
        WARNING,
        "kubemend_device_restart_budget_left == 0",
        "Restarts because of {{ $labels.device }} on {{ $labels.node }} do not last.",
        "8 faults in a row, each less than a minute after the restart for the one before. The device counts as "
        "degraded.",
    ),
    Alert(
        "KubemendRestartBudgetSpent",
        WARNING,
        "kubemend_restart_budget_left == 0",
        "{{ $labels.namespace }}/{{ $labels.pod }} has used up its restarts (container {{ $labels.container }}).",
        "It fails repeatedly. It is restarted when its budget allows, or by hand; an empty container means the whole "
        "pod.",
        "5m",
    ),
    Alert(
        "KubemendContainersHeldLong",
        CRITICAL,
        "min_over_time(kubemend_round_held[10m]) > 0",
        "{{ $value }} containers on {{ $labels.node }} are held for a gang's round.",
        "At least one container has been held at any time for 10 minutes. Agents release containers 30 s after the "
        "hub's last message.",
    ),
    Alert(
        "KubemendFindingsLost",
        CRITICAL,
        "increase(kubemend_findings_lost_total[15m]) > 0",
        "The agent on {{ $labels.node }} has dropped findings.",
        "It could not keep up, which must not happen: it may have missed a fault. The log event finding.lost lists "
        "them.",
    ),
    Alert(
        "KubemendKernelLogLost",
        WARNING,
        "increase(kubemend_kernel_log_records_lost_total[15m]) > 0",
        "Records of the kernel log on {{ $labels.node }} were overwritten before they were read.",
        "The log is flooded, or the agent did not run. Xids among them are known only from NVML.",
    ),
    Alert(
        "KubemendConditionsNotWritten",
        WARNING,
        'sum by (node) (rate(kubemend_condition_patches_total{result=~"failed|refused|dropped"}[15m]))\n'
        "  > 0.5 * sum by (node) (rate(kubemend_condition_patches_total[15m]))",
        "The agent on {{ $labels.node }} cannot write most pod conditions.",
        "Restarts continue, but are not visible in the API. The log events conditions.refused and "
        "conditions.write_failed have the reason.",
        "15m",
    ),
    Alert(
        "KubemendHubUnreachable",
        WARNING,
        "kubemend_hub_connected == 0",
        "The agent on {{ $labels.node }} has no hub.",
        "Members of gangs there are restarted alone, and rounds of their gangs treat them as lost.",
        "5m",
    ),
    Alert(
        "KubemendControllerDown",
        WARNING,
        'up{component="controller"} == 0',
        "The controller {{ $labels.pod }} does not answer.",
        "If one of two replicas is down, the other leads; without both, gangs are not restarted as one.",
        "5m",
    ),
    Alert(
        "KubemendControllerPartNotReady",
        WARNING,
        f'kubemend_component_ready{{component="controller",part=~"{_CONTROLLER_PARTS}"}} == 0',
        "The controller's {{ $labels.part }} does not work in {{ $labels.pod }}.",
        "Its /readyz and the events part of its log show the problem and a hint.",
        "10m",
    ),
    Alert(
        "KubemendNoLeader",
        CRITICAL,
        "sum(kubemend_controller_leads) == 0",
        "No replica of the controller leads.",
        "Gangs are not restarted as one; agents restart single pods as without a controller.",
        "2m",
    ),
    Alert(
        "KubemendTwoLeaders",
        CRITICAL,
        "sum(kubemend_controller_leads) > 1",
        "{{ $value }} replicas of the controller believe that they lead.",
        "Agents obey only the one with the highest epoch, so the other is ineffective. This must not happen.",
        "2m",
    ),
    Alert(
        "KubemendRoundFailed",
        WARNING,
        'increase(kubemend_rounds_total{phase=~"Degraded|Failed"}[15m]) > 0',
        "A gang's round has ended as {{ $labels.phase }}.",
        "Some member is not back, or the gang was not restarted as one. `kubectl get restarts -A` lists the rounds.",
    ),
    Alert(
        "KubemendRoundsSlow",
        INFO,
        'histogram_quantile(0.95,\n  sum by (le) (increase(kubemend_round_seconds_bucket{phase="Done"}[1h]))\n) > 30',
        "One round in twenty takes more than {{ $value | humanizeDuration }}.",
        "From the fault to the last member running. `kubemend timeline RESTART` shows the slow members and phases.",
        "10m",
    ),
    Alert(
        "KubemendRoundStuck",
        WARNING,
        "min_over_time(kubemend_rounds_active[20m]) > 0",
        "The controller {{ $labels.pod }} has had a round under way for 20 minutes.",
        "No round should outlast --round-timeout (900); or one gang fails as soon as it is back.",
    ),
    Alert(
        "KubemendGangGivenUp",
        WARNING,
        "sum by (reason) (\n  "
        + grown('kubemend_gang_decisions_total{kind="Fail",reason=~"BudgetSpent|NoProgress|NotReplaceable"}', "15m")
        + "\n)",
        "A gang is not restarted any more ({{ $labels.reason }}).",
        "An Event of the pod that failed last, and the controller's log event gang.decided, have gang and reason.",
    ),
    Alert(
        "KubemendDefect",
        CRITICAL,
        "increase(kubemend_contained_failures_total[15m]) > 0",
        "{{ $labels.pod }} has stopped work on one object ({{ $labels.part }}) after an internal error.",
        "The log event work.failed has the traceback, the object and the place. Please report it.",
    ),
    Alert(
        "KubemendRoundsWithoutRecord",
        WARNING,
        "increase(kubemend_rounds_begun_without_record_total[15m]) > 0",
        "Rounds begin before their Restart objects can be written.",
        "The API server does not accept writes in time. If the leader is lost in such a round, no replica resumes it.",
    ),
    Alert(
        "KubemendHubRefuses",
        WARNING,
        f'sum by (reason) (increase(kubemend_hub_refused_total{{reason!~"{_HARMLESS}"}}[15m])) > 0',
        "The hub refuses streams or messages ({{ $labels.reason }}).",
        "The peer is an agent of another version, or no agent. The log events hub.refused and hub.broke_rules name it.",
    ),
    Alert(
        "KubemendStraggler",
        INFO,
        "kubemend_gang_stragglers > 0",
        "{{ $value }} members of {{ $labels.namespace }}/{{ $labels.gang }} stay far behind their gang.",
        "The whole gang waits for them. Events Straggler on the pods name the measure; nothing is restarted.",
        "15m",
    ),
)

RECORDINGS: Final[Sequence[Recording]] = (
    Recording("verdict:kubemend_device_verdict:sum", "sum by (verdict) (kubemend_device_verdict)"),
    Recording(
        "strategy_cause_result:kubemend_restarts:rate5m",
        "sum by (strategy, cause, result) (rate(kubemend_restarts_total[5m]))",
    ),
    Recording(
        "strategy_phase_le:kubemend_restart_phase_seconds_bucket:rate5m",
        "sum by (strategy, phase, le) (rate(kubemend_restart_phase_seconds_bucket[5m]))",
    ),
    Recording(
        "since_le:kubemend_restart_next_step_seconds_bucket:rate5m",
        "sum by (since, le) (rate(kubemend_restart_next_step_seconds_bucket[5m]))",
    ),
    Recording(
        "phase_le:kubemend_round_phase_seconds_bucket:rate5m",
        "sum by (phase, le) (rate(kubemend_round_phase_seconds_bucket[5m]))",
    ),
)
"""Sums over thousands of agents, computed once and not at each view of the dashboard."""


def groups(runbooks: str) -> list[Json]:
    """Return the groups of rules. ``runbooks`` is the address of docs/troubleshooting.md."""
    recorded = [{"record": each.name, "expr": each.expr} for each in RECORDINGS]
    return [
        {"name": "kubemend.recorded", "rules": recorded},
        {"name": "kubemend.alerts", "rules": [_alert(each, runbooks) for each in ALERTS]},
    ]


def resource(runbooks: str) -> Json:
    """Return the PrometheusRule."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PrometheusRule",
        "metadata": {"name": "kubemend", "namespace": "kubemend", "labels": dict(SELECTED_BY)},
        "spec": {"groups": groups(runbooks)},
    }


def _alert(alert: Alert, runbooks: str) -> Json:
    return {
        "alert": alert.name,
        "expr": alert.expr,
        **({"for": alert.wait} if alert.wait else {}),
        "labels": {"severity": alert.severity},
        "annotations": {
            "summary": alert.summary,
            "description": alert.description,
            "runbook_url": f"{runbooks}#{alert.anchor}",
        },
    }
