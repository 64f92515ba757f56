"""Define the numbers that kubemend must reach, and how to read them from the benchmarks' figures. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from bench import figures

PEERS: Final = "peers"
"""The benchmark that compares kubemend with other projects."""

NOT_RUN: Final = "not run"
EXIT_CODE: Final = "exit_code"
"""The key of a program's exit code in its output, if that is not 0."""

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Goal:
    """Define one number. ``value`` reads it from the output of ``program`` (``python -m bench.PROGRAM``).

    It is reached when the value is not above ``limit``. ``unit`` is empty for ratios and counts. A count of events that
    must not occur has ``times``, which reads how often they could have, and is reached from ``least`` times on.
    ``elsewhere`` gives the figure of other projects, from the output of ``bench.peers`` in the same run.
    """

    area: str
    what: str
    program: str
    value: Callable[[Json], float]
    limit: float
    unit: str = ""
    elsewhere: Callable[[Json], str] = lambda _: ""
    times: Callable[[Json], int] | None = None
    least: int = 0


@dataclass(frozen=True, slots=True)
class GoalResult:
    """Hold a goal with its measurement, None if its program did not finish; ``reason``: why the goal is not reached.

    ``elsewhere`` is empty where other projects were not measured.
    """

    goal: Goal
    measured: float | None
    reason: str = ""
    elsewhere: str = ""
    times: int = 0

    @property
    def reached(self) -> bool:
        """Return whether the goal is reached; False if it was not measured, not often enough, or its program failed."""
        if self.reason or self.measured is None:
            return False
        return self.measured <= self.goal.limit and self.times >= self.goal.least

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
            "times": self.times,
            "least": self.goal.least,
        }
        return {**reported, "reason": self.reason} if self.reason else reported


_EXIT: Final = "Exit of a container"
_SWAP: Final = "Restart of a container in place (swap)"
_RERUN: Final = "Rerun of a whole pod: init, sidecar, main"
_GANG: Final = "Gang of 20 on one node"
_HUB: Final = "5000 agents on one hub"
_HEALTH: Final = "From a fault to the API"
_REST: Final = "Agent at rest, 8 GPUs"
_PROOF: Final = "Active proof of a GPU"
_CRASH: Final = "Killed at random steps"
_JOBSET: Final = "JobSets"

_BUSY: Final = "busy_rounds --members 20 --rounds 50 --loops 15"
_MANY: Final = "hub --agents 20000 --part 5000 --rounds 5"
_CROWD: Final = "faults --only unauthenticated"
_PODS: Final = "memory --only 110"
_MB: Final = 2**20 / 1e6
"""Megabytes of a MiB."""


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
        _EXIT,
        "exit of an opted-in container to running, p99",
        "exits",
        lambda reported: reported["agent_ms"]["p99"],
        100.0,
        "ms",
        _kubelet,
    ),
    Goal(_EXIT, "pods shown in CrashLoopBackOff", "exits", lambda reported: reported["crash_loops"], 0),
    Goal(
        _EXIT,
        "exits during a restart that end in a failed pod, none or two successors, or CrashLoopBackOff, within reach",
        "dying",
        lambda reported: sum(bool(each["wrong"]) for each in reported["cases"]),
        0,
        times=lambda reported: reported["runs"],
        least=200,
    ),
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
    Goal(
        _SWAP,
        "attribution of a fault to the decision, p99",
        "health",
        lambda reported: reported["attribution_to_decision_ms"]["p99"],
        10.0,
        "ms",
    ),
    Goal(_RERUN, "ratio to the bare calls", "reruns", lambda reported: reported["ratio"], 1.5, "", _rule),
    Goal(_RERUN, "median", "reruns", lambda reported: reported["rerun_ms"]["p50"], 300.0, "ms", _rule),
    Goal(_GANG, "ratio to the bare calls for 20", "gang", lambda reported: reported["ratio"], 1.25, "", _upstream),
    Goal(
        _GANG, "slowest round over the first", "gang", lambda reported: reported["max_over_first"], 1.25, "", _upstream
    ),
    Goal(
        _GANG,
        "member restarts unheld or doubled, with 15 busy loops",
        _BUSY,
        lambda reported: len(reported["unheld"]) + len(reported["twice"]),
        0,
        times=lambda reported: reported["restarts"],
        least=1000,
    ),
    Goal(
        _HUB,
        "failure reported to last release answered, over a bare broadcast with answers, twice",
        "hub",
        lambda reported: reported["ratio"],
        1.5,
    ),
    Goal(
        _HUB,
        "the same time with 20000 agents, over that of 5000",
        _MANY,
        lambda reported: reported["growth"]["ratio"],
        4.0,
    ),
    Goal(
        _HUB,
        "faults, rounds and sessions lost among hostile connections",
        _CROWD,
        lambda reported: _tried(reported, "lost"),
        0,
        times=lambda reported: _tried(reported, "connections_tried"),
        least=20_000,
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
        100.0,
        "ms",
        _detector,
    ),
    Goal(_HEALTH, "records of a flood lost", "health", lambda reported: reported["kernel_log"]["lost"], 0),
    Goal(
        _REST,
        "CPU, with its worker",
        "health",
        lambda reported: reported["at_rest"]["cpu_percent_of_a_core"],
        0.5,
        "% of a core",
    ),
    Goal(
        _REST,
        "memory (RSS of the agent)",
        "health",
        lambda reported: _agent(reported["at_rest"]["rss_mib"]) * _MB,
        80.0,
        "MB",
    ),
    Goal(
        _REST,
        "memory (RSS) with 110 pods of 1 MB each",
        _PODS,
        lambda reported: reported["trials"][0]["rss_in_the_end_mib"] * _MB,
        150.0,
        "MB",
    ),
    Goal(
        _PROOF,
        "false alarms",
        "proofs",
        lambda reported: reported["falseAlarms"],
        0,
        times=lambda reported: reported["runs"],
        least=10_000,
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
        "agent: pods failed, duplicates, restarts lost",
        "crash",
        lambda reported: len(reported["cases"]),
        0,
        times=lambda reported: reported["kills"],
        least=500,
    ),
    Goal(
        _CRASH,
        "launcher: pods moved, duplicates, restarts and steps lost",
        "launched",
        lambda reported: len(reported["cases"]),
        0,
        times=lambda reported: reported["launcher_kills"],
        least=500,
    ),
)

LONG: Final = frozenset({"dying", "proofs", "crash", "launched", _BUSY, _MANY, _CROWD})
"""Programs that take longer than three minutes each for their goals."""


def results(reported: Mapping[str, Json | str]) -> Iterator[GoalResult]:
    """Yield the result of each goal. ``reported`` has the output of each program, or in a line why there is none."""
    for goal in GOALS:
        elsewhere = _elsewhere(goal, reported.get(PEERS))
        answer = reported.get(goal.program, NOT_RUN)
        if isinstance(answer, str):
            yield GoalResult(goal, None, reason=answer, elsewhere=elsewhere)
            continue
        try:
            times = goal.times(answer) if goal.times is not None else 0
            value, reason = round(float(goal.value(answer)), 3), failure(answer)
            yield GoalResult(goal, value, reason=reason, elsewhere=elsewhere, times=times)
        except (LookupError, TypeError, ValueError) as error:
            reason = f"bench.{goal.program} has no such figure: {error!r}"
            yield GoalResult(goal, None, reason=reason, elsewhere=elsewhere)


def failure(answer: Json | str) -> str:
    """Return why a program failed; empty if it did not. One that prints figures may have failed all the same."""
    if isinstance(answer, str):
        return answer
    return f"it ended with {code}" if (code := answer.get(EXIT_CODE)) else ""


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


def _tried(reported: Json, figure: str) -> int:
    """Return a figure of the only fault that was tried. Raises KeyError if it could not be tried."""
    (fault,) = reported["faults"]
    if "not_tried" in fault:
        raise KeyError(fault["not_tried"])
    return len(fault["lost"]) if figure == "lost" else int(fault["measured"][figure])
