"""Define the numbers that kubemend must reach, and how to read them from the benchmarks' figures. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bench import figures

PEERS: Final = "peers"
"""The benchmark that compares kubemend with other projects."""

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Goal:
    """Define one number. ``value`` reads it from the output of ``program`` (``python -m bench.PROGRAM``).

    It is reached when the value is not above ``limit``. ``unit`` is empty for ratios and counts. ``elsewhere`` gives
    the figure of other projects, from the output of ``bench.peers`` in the same run.
    """

    area: str
    what: str
    program: str
    value: Callable[[Json], float]
    limit: float
    unit: str = ""
    elsewhere: Callable[[Json], str] = lambda _: ""


@dataclass(frozen=True, slots=True)
class GoalResult:
    """Hold a goal with its measurement; ``measured`` None: its program did not finish for this ``reason``.

    ``elsewhere`` is empty where other projects were not measured.
    """

    goal: Goal
    measured: float | None
    reason: str = ""
    elsewhere: str = ""

    @property
    def reached(self) -> bool:
        """Return whether the goal is reached; False if it was not measured."""
        return self.measured is not None and self.measured <= self.goal.limit

    def figures(self) -> dict[str, Any]:
        """Return the printed figures."""
        reported = {
            "area": self.goal.area,
            "what": self.goal.what,
            "program": self.goal.program,
            "measured": self.measured,
            "reach": self.goal.limit,
            "unit": self.goal.unit,
            "reached": self.reached,
            "elsewhere": self.elsewhere,
        }
        return {**reported, "reason": self.reason} if self.reason else reported


_SWAP: Final = "Restart of a container in place (swap)"
_RERUN: Final = "Rerun of a whole pod: init, sidecar, main"
_GANG: Final = "Gang of 20 on one node"
_HUB: Final = "5000 agents on one hub"
_HEALTH: Final = "From a fault to the API"
_REST: Final = "Agent at rest, 8 GPUs"
_CRASH: Final = "Agent killed at random steps"
_JOBSET: Final = "JobSets"


def _kubelet(peers: Json) -> str:
    return f"kubelet: {figures.shown(peers['container']['kubelet_ms'])}"


def _rule(peers: Json) -> str:
    return f"RestartAllContainers: {figures.shown(peers['container']['restart_all_containers_ms'])}"


def _upstream(peers: Json) -> str:
    return f"upstream JobSet: {figures.shown(peers['gang']['upstream_jobset']['failure_to_all_running_ms'])}"


def _detector(peers: Json) -> str:
    return f"node-problem-detector: {figures.shown([peers['log_line']['node_problem_detector_ms']['p50']])}"


GOALS: Final = (
    Goal(
        _SWAP,
        "ratio to the bare stop, create and start",
        "restart",
        lambda reported: reported["ratio"],
        1.1,
        "",
        _kubelet,
    ),
    Goal(
        _SWAP,
        "slowest of some failures in a row over the first",
        "restart",
        lambda reported: reported["failures_in_a_row"]["swap"]["max_over_first"],
        2.0,
    ),
    Goal(_RERUN, "ratio to the bare calls", "reruns", lambda reported: reported["ratio"], 1.5, "", _rule),
    Goal(_RERUN, "median", "reruns", lambda reported: reported["rerun_ms"]["p50"], 300.0, "ms", _rule),
    Goal(_GANG, "ratio to the bare calls for 20", "gang", lambda reported: reported["ratio"], 1.25, "", _upstream),
    Goal(
        _GANG, "slowest round over the first", "gang", lambda reported: reported["max_over_first"], 2.0, "", _upstream
    ),
    Goal(
        _HUB,
        "failure reported to last release answered, p99",
        "hub",
        lambda reported: reported["alone"]["fault_to_last_release_answered_ms"]["p99"],
        1000.0,
        "ms",
    ),
    Goal(
        _HUB,
        "API writes from fault to release",
        "hub",
        lambda reported: reported["alone"]["api_writes_fault_to_release"],
        5,
    ),
    Goal(_HUB, "all connected", "hub", lambda reported: reported["connect_seconds"], 60.0, "s"),
    Goal(
        _HEALTH,
        "kernel log line to pod condition, p99",
        "health",
        lambda reported: reported["log_line_to_condition_ms"]["p99"],
        250.0,
        "ms",
        _detector,
    ),
    Goal(_HEALTH, "records of a flood lost", "health", lambda reported: reported["kernel_log"]["lost"], 0),
    Goal(_REST, "CPU", "health", lambda reported: reported["at_rest"]["cpu_percent_of_a_core"], 0.5, "% of a core"),
    Goal(
        _REST,
        "memory (RSS of the agent)",
        "health",
        lambda reported: _agent(reported["at_rest"]["rss_mib"]),
        90.0,
        "MiB",
    ),
    Goal(
        _JOBSET,
        "a reconcile of 1000 child Jobs, the slowest",
        "jobset",
        lambda reported: reported["by_jobs"]["1000"]["look_ms"]["max"],
        1000.0,
        "ms",
    ),
    Goal(
        _JOBSET,
        "API calls of a restart in place: 1000 child Jobs over 10",
        "jobset",
        lambda reported: reported["growth"]["api_calls_per_restart"],
        1.5,
    ),
    Goal(
        _JOBSET,
        "20 workers: slowest of some failures in a row over the first",
        "jobset",
        lambda reported: reported["failures_in_a_row"]["max_over_first"],
        2.0,
        "",
        _upstream,
    ),
    Goal(
        _CRASH,
        "pods failed, duplicates, restarts lost",
        "crash",
        lambda reported: len(reported["cases"]),
        0,
    ),
)


def results(reported: Mapping[str, Json | str]) -> Iterator[GoalResult]:
    """Yield the result of each goal. ``reported`` has the output of each program, or in a line why there is none."""
    for goal in GOALS:
        elsewhere = _elsewhere(goal, reported.get(PEERS))
        answer = reported.get(goal.program, "not run")
        if isinstance(answer, str):
            yield GoalResult(goal, None, reason=answer, elsewhere=elsewhere)
            continue
        try:
            yield GoalResult(goal, float(goal.value(answer)), elsewhere=elsewhere)
        except (KeyError, TypeError, ValueError) as error:
            reason = f"bench.{goal.program} has no such figure: {error!r}"
            yield GoalResult(goal, None, reason=reason, elsewhere=elsewhere)


def _elsewhere(goal: Goal, peers: Json | str | None) -> str:
    if peers is None or isinstance(peers, str):
        return ""
    try:
        return goal.elsewhere(peers)
    except (KeyError, TypeError):
        return ""  # that part was not run


def _agent(resident: Json) -> float:
    """Return the agent's own; its worker for NVML is a process of its own."""
    return float(max(resident.values()))
