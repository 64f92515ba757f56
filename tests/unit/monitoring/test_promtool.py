"""Prometheus' own tool checks the rules, and each alert fires on its cause, and not before."""

import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from hack import monitoring
from hack.devnode import packages
from tests.unit.monitoring.component import ALERTS, RECORDINGS, groups

_SECONDS = 60.0


@dataclass(frozen=True)
class Trial:
    """Series with one value a minute: no fault until the tenth; ``labels`` are those of the alert, an hour later."""

    alert: str
    series: Mapping[str, str]
    labels: Mapping[str, str] = field(default_factory=dict)


NODE: Final = {"node": "n1"}
POD: Final = {"pod": "c-1"}
JOB: Final = {"job": "kubemend/kubemend"}
"""As the Prometheus Operator names the PodMonitor's targets: by its namespace and name."""
OFF: Final = "1x10 0x60"
ON: Final = "0x10 1x60"
GROWS: Final = "0x10 1+1x60"
APPEARS: Final = "_x56 1x30"
"""A counter that does not exist before its first count: its first value is 1, and it does not grow afterwards."""

TRIALS: Final = (
    Trial(
        "KubemendAgentDown",
        {
            'up{job="kubemend/kubemend",component="agent",node="n1"}': OFF,
            'up{job="tracing/collector",component="agent",node="n2"}': OFF,  # another project's
        },
        {"component": "agent", **JOB, **NODE},
    ),
    Trial(
        "KubemendAgentComponentNotReady",
        {
            'kubemend_component_ready{component="agent",part="kernel-log",node="n1"}': OFF,
            # A node without GPUs, and one whose GPUs have an alert of their own.
            'kubemend_component_ready{component="agent",part="nvml",node="n2"}': "1x70",
            'kubemend_component_ready{component="agent",part="nvml",node="n3"}': OFF,
            'kubemend_device_verdict{device="GPU-1",verdict="Unknown",node="n3"}': "1x70",
        },
        {"component": "agent", "part": "kernel-log", **NODE},
    ),
    *(
        Trial(
            f"KubemendDevice{verdict}",
            {f'kubemend_device_verdict{{device="GPU-1",verdict="{verdict}",node="n1"}}': ON},
            {"device": "GPU-1", "verdict": verdict, **NODE},
        )
        for verdict in ("Unhealthy", "Degraded", "Unknown")
    ),
    Trial(
        "KubemendRestartsFail",
        {'kubemend_restarts_total{strategy="swap",cause="Xid31",result="Stuck",node="n1"}': APPEARS},
        {"strategy": "swap", "result": "Stuck", **NODE},
    ),
    Trial("KubemendNodeStorm", {'kubemend_node_restart_budget_left{node="n1"}': "60x10 0x60"}, NODE),
    Trial(
        "KubemendDeviceFailsAgain",
        {'kubemend_device_restart_budget_left{device="GPU-1",node="n1"}': OFF},
        {"device": "GPU-1", **NODE},
    ),
    Trial(
        "KubemendRestartBudgetSpent",
        {
            'kubemend_restart_budget_left{namespace="team",pod="p",container="c",node="n1"}': OFF,
            'kubemend_restart_decisions_total{verb="postpone",reason="BudgetSpent",node="n1"}': "_x40 1x30",
            # A member of a gang that rounds have restarted.
            'kubemend_restart_budget_left{namespace="team",pod="g",container="c",node="n2"}': OFF,
            'kubemend_restart_decisions_total{verb="act",reason="Admitted",node="n2"}': GROWS,
        },
        {"namespace": "team", "pod": "p", "container": "c", **NODE},
    ),
    Trial("KubemendContainersHeldLong", {'kubemend_round_held{node="n1"}': ON}, NODE),
    Trial("KubemendFindingsLost", {'kubemend_findings_lost_total{node="n1"}': GROWS}, NODE),
    Trial("KubemendKernelLogLost", {'kubemend_kernel_log_records_lost_total{node="n1"}': GROWS}, NODE),
    Trial(
        "KubemendConditionsNotWritten",
        {
            'kubemend_condition_patches_total{result="written",node="n1"}': "0+3x10 30x60",
            'kubemend_condition_patches_total{result="failed",node="n1"}': GROWS,
        },
        NODE,
    ),
    Trial("KubemendHubUnreachable", {'kubemend_hub_connected{node="n1"}': OFF}, NODE),
    Trial(
        "KubemendControllerDown",
        {
            'up{job="kubemend/kubemend",component="controller",pod="c-1"}': OFF,
            'up{job="kubernetes-pods",component="controller",pod="ingress"}': OFF,
        },
        {"component": "controller", **JOB, **POD},
    ),
    Trial(
        "KubemendControllerComponentNotReady",
        {
            'kubemend_component_ready{component="controller",part="leader",pod="c-1"}': OFF,
            'kubemend_component_ready{component="controller",part="jobsets",pod="c-1"}': OFF,  # has an alert of its own
        },
        {"component": "controller", "part": "leader", **POD},
    ),
    Trial(
        "KubemendNoLeader",
        {'kubemend_controller_leads{pod="c-1"}': OFF, 'kubemend_controller_leads{pod="c-2"}': "0x70"},
    ),
    Trial(
        "KubemendTwoLeaders",
        {'kubemend_controller_leads{pod="c-1"}': ON, 'kubemend_controller_leads{pod="c-2"}': "1x70"},
    ),
    Trial(
        "KubemendRoundFailed",
        {
            'kubemend_rounds_total{phase="Failed",pod="c-1"}': GROWS,
            'kubemend_rounds_total{phase="Done",pod="c-1"}': "0+1x70",
        },
        {"phase": "Failed", **POD},
    ),
    Trial(
        "KubemendRoundsSlow",
        {
            'kubemend_round_seconds_bucket{phase="Done",le="30.0",pod="c-1"}': "0+1x10 10x60",
            'kubemend_round_seconds_bucket{phase="Done",le="60.0",pod="c-1"}': "0+1x70",
            'kubemend_round_seconds_bucket{phase="Done",le="+Inf",pod="c-1"}': "0+1x70",
        },
    ),
    Trial("KubemendRoundStuck", {'kubemend_rounds_active{pod="c-1"}': ON}, POD),
    Trial(
        "KubemendGangGivenUp",
        {
            'kubemend_gang_decisions_total{kind="Fail",reason="NoProgress",pod="c-1"}': APPEARS,
            # As the workload requests it.
            'kubemend_gang_decisions_total{kind="Fail",reason="FatalExitCode",pod="c-1"}': GROWS,
        },
        {"reason": "NoProgress"},
    ),
    Trial(
        "KubemendJobSetsWait",
        {
            'kubemend_jobset_queue_depth{pod="c-1"}': "16x10 17x60",
            # One that stands by, or that leads where no JobSets exist.
            'kubemend_component_ready{component="controller",part="jobsets",pod="c-2"}': "1x70",
        },
        POD,
    ),
    Trial(
        "KubemendInternalError",
        {'kubemend_contained_failures_total{pod="c-1",part="gang"}': GROWS},
        {**POD, "part": "gang"},
    ),
    Trial("KubemendRoundsWithoutRecord", {'kubemend_rounds_begun_without_record_total{pod="c-1"}': GROWS}, POD),
    Trial(
        "KubemendHubRefuses",
        {
            'kubemend_hub_refused_total{reason="BadToken",pod="c-1"}': GROWS,
            'kubemend_hub_refused_total{reason="Standby",pod="c-1"}': GROWS,
        },
        {"reason": "BadToken"},
    ),
    Trial(
        "KubemendStraggler",
        {'kubemend_gang_stragglers{namespace="team",kind="JobSet",gang="llama"}': ON},
        {"namespace": "team", "kind": "JobSet", "gang": "llama"},
    ),
)


def promtool(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run promtool."""
    return subprocess.run(
        [str(packages.ensure_promtool()), *arguments],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=_SECONDS,
        check=False,
    )


def bare() -> list[dict[str, Any]]:
    """Return the rules without their texts, which a trial would have to repeat."""
    found = groups()
    for group in found:
        for rule in group["rules"]:
            rule.pop("annotations", None)
    return found


def tried(trial: Trial, *, quiet: Sequence[str] = ("9m",)) -> dict[str, Any]:
    """Return a trial as promtool reads it. ``quiet`` are times at which the alert does not fire yet."""
    (alert,) = [each for each in ALERTS if each.name == trial.alert]
    fires = {"exp_labels": {"severity": alert.severity, **trial.labels}}
    return {
        "name": trial.alert,
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in trial.series.items()],
        "alert_rule_test": [
            *({"eval_time": time, "alertname": trial.alert, "exp_alerts": []} for time in quiet),
            {"eval_time": "1h", "alertname": trial.alert, "exp_alerts": [fires]},
        ],
    }


def test_prometheus_accepts_the_rules(tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(monitoring.rules())
    checked = promtool("check", "rules", "rules.yaml", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout + checked.stderr
    count = len(ALERTS) + len(RECORDINGS)
    assert f"{count} rules found" in checked.stdout


def test_every_alert_is_tried() -> None:
    assert sorted(trial.alert for trial in TRIALS) == sorted(alert.name for alert in ALERTS)


@pytest.mark.parametrize("trial", TRIALS, ids=lambda trial: trial.alert)
def test_alert_fires_on_its_cause(trial: Trial, tmp_path: Path) -> None:
    check(tried(trial), tmp_path)


def test_jobsets_wait_while_the_leader_does_not_receive_them(tmp_path: Path) -> None:
    """It may never have received them, because a right is missing."""
    series = {'kubemend_component_ready{component="controller",part="jobsets",pod="c-1"}': OFF}
    check(tried(Trial("KubemendJobSetsWait", series, POD), quiet=("9m", "24m")), tmp_path)


def test_controller_that_does_not_run_has_no_leader(tmp_path: Path) -> None:
    """Its pods are gone, or were never scheduled: no series is left that could be 0."""
    series = {'kubemend_controller_leads{pod="c-1"}': "1x10 stale", 'kubemend_hub_connected{node="n1"}': OFF}
    check(tried(Trial("KubemendNoLeader", series)), tmp_path)


def test_node_whose_gpus_nvml_never_showed_raises_an_alert(tmp_path: Path) -> None:
    """No GPU has a verdict there, so no alert about a device can fire."""
    series = {
        'kubemend_component_ready{component="agent",part="nvml",node="n1"}': OFF,
        'kubemend_device_verdict{device="0000:3b:00.0",verdict="Healthy",node="n1"}': "1x70",  # a NIC
    }
    alert = Trial("KubemendAgentComponentNotReady", series, {"component": "agent", "part": "nvml", **NODE})
    check(tried(alert, quiet=("9m", "19m")), tmp_path)


@pytest.mark.parametrize(
    ("alert", "series", "labels"),
    [
        ("KubemendFindingsLost", "kubemend_findings_lost_total", {}),
        ("KubemendKernelLogLost", "kubemend_kernel_log_records_lost_total", {}),
        ("KubemendRoundFailed", "kubemend_rounds_total", {"phase": "Failed"}),
        ("KubemendInternalError", "kubemend_contained_failures_total", {"part": "replay"}),
        ("KubemendRoundsWithoutRecord", "kubemend_rounds_begun_without_record_total", {}),
    ],
)
def test_alert_fires_on_what_a_new_pod_counted_before_its_first_scrape(
    alert: str, series: str, labels: Mapping[str, str], tmp_path: Path
) -> None:
    """A new agent reads what the last one missed, and resumes its restarts; a new leader resumes rounds."""
    values = ",".join(f'{name}="{value}"' for name, value in {**labels, **POD}.items())
    check(tried(Trial(alert, {f"{series}{{{values}}}": APPEARS}, {**labels, **POD}), quiet=("9m", "76m")), tmp_path)


@pytest.mark.parametrize(
    ("alert", "series"),
    [
        ("KubemendContainersHeldLong", 'kubemend_round_held{node="n1"}'),
        ("KubemendRoundStuck", 'kubemend_rounds_active{node="n1"}'),
    ],
)
def test_lasting_state_of_a_process_that_has_just_started_fires_nothing(
    alert: str, series: str, tmp_path: Path
) -> None:
    """A new agent takes over what the previous one holds: its first values say nothing about ten minutes."""
    check(tried(Trial(alert, {series: "_x30 1x40"}, NODE), quiet=("31m", "34m")), tmp_path)


def check(test: dict[str, Any], directory: Path) -> None:
    """Have promtool test the rules."""
    (directory / "rules.yaml").write_text(yaml.safe_dump({"groups": bare()}))
    (directory / "trial.yaml").write_text(yaml.safe_dump({"rule_files": ["rules.yaml"], "tests": [test]}))
    reported = promtool("test", "rules", "trial.yaml", cwd=directory)
    assert reported.returncode == 0, reported.stdout + reported.stderr
