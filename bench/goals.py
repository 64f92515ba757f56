"""The numbers that kubemend is to reach, and where the benchmarks' figures tell whether it does. Pure."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Goal:
    """One number. ``value`` takes it out of what ``program`` (``python -m bench.PROGRAM``) prints.

    It is reached when the value is not above ``limit``. ``unit`` is empty for ratios and counts, ``elsewhere`` is what
    others need for the same.
    """

    area: str
    what: str
    program: str
    value: Callable[[Json], float]
    limit: float
    unit: str = ""
    elsewhere: str = ""


@dataclass(frozen=True, slots=True)
class Standing:
    """A goal with what was measured; ``measured`` None: its program did not come to its end, ``why`` says how."""

    goal: Goal
    measured: float | None
    why: str = ""

    @property
    def reached(self) -> bool:
        """Whether it is; what was not measured is not."""
        return self.measured is not None and self.measured <= self.goal.limit

    def figures(self) -> dict[str, Any]:
        """Return what is printed."""
        told = {
            "area": self.goal.area,
            "what": self.goal.what,
            "program": self.goal.program,
            "measured": self.measured,
            "reach": self.goal.limit,
            "unit": self.goal.unit,
            "reached": self.reached,
            "elsewhere": self.goal.elsewhere,
        }
        return {**told, "why": self.why} if self.why else told


_SWAP: Final = "Restart of a container in place (swap)"
_RERUN: Final = "Rerun of a whole pod: init, sidecar, main"
_GANG: Final = "Gang of 20 on one node"
_HUB: Final = "5000 agents on one hub"
_HEALTH: Final = "From trouble to the API"
_REST: Final = "Agent at rest, 8 GPUs"
_CRASH: Final = "Agent killed at random steps"
_JOBSET: Final = "JobSets"

_KUBELET: Final = "kubelet: 850 ms, then its backoff"
_KEP_5532: Final = "KEP-5532: 3.3 s"
_UPSTREAM: Final = "upstream JobSet in place: 3.1 s to 172 s"

GOALS: Final = (
    Goal(_SWAP, "ratio to the bare stop, create and start", "restart", lambda told: told["ratio"], 1.3, "", _KUBELET),
    Goal(
        _SWAP,
        "slowest of 10 failures in a row over the first",
        "restart",
        lambda told: told["failures_in_a_row"]["swap"]["max_over_first"],
        2.0,
    ),
    Goal(_RERUN, "ratio to the bare calls", "reruns", lambda told: told["ratio"], 1.5, "", _KEP_5532),
    Goal(_RERUN, "median", "reruns", lambda told: told["rerun_ms"]["p50"], 300.0, "ms", _KEP_5532),
    Goal(_GANG, "ratio to the bare calls for 20", "gang", lambda told: told["ratio"], 1.5, "", _UPSTREAM),
    Goal(_GANG, "slowest round over the first", "gang", lambda told: told["max_over_first"], 2.0, "", _UPSTREAM),
    Goal(
        _HUB,
        "failure reported to last release answered, p99",
        "hub",
        lambda told: told["alone"]["fault_to_last_release_answered_ms"]["p99"],
        1000.0,
        "ms",
        "JobSet: about 10 s",
    ),
    Goal(
        _HUB,
        "API writes from fault to release",
        "hub",
        lambda told: told["alone"]["api_writes_fault_to_release"],
        5,
        "",
        "JobSet: more than 10,000",
    ),
    Goal(_HUB, "all connected", "hub", lambda told: told["connect_seconds"], 60.0, "s"),
    Goal(
        _HEALTH,
        "kernel log line to pod condition, p99",
        "health",
        lambda told: told["log_line_to_condition_ms"]["p99"],
        250.0,
        "ms",
        "node-problem-detector: 980 ms; polling agents: 15 to 60 s",
    ),
    Goal(_HEALTH, "records of a flood lost", "health", lambda told: told["kernel_log"]["lost"], 0),
    Goal(_REST, "CPU", "health", lambda told: told["at_rest"]["cpu_percent_of_a_core"], 0.5, "% of a core"),
    Goal(_REST, "memory (RSS of the agent)", "health", lambda told: _agent(told["at_rest"]["rss_mib"]), 90.0, "MiB"),
    Goal(
        _JOBSET,
        "a look at 1000 child Jobs, the slowest",
        "jobset",
        lambda told: told["by_jobs"]["1000"]["look_ms"]["max"],
        1000.0,
        "ms",
    ),
    Goal(
        _JOBSET,
        "API calls of a restart in place: 1000 child Jobs over 10",
        "jobset",
        lambda told: told["growth"]["api_calls_per_restart"],
        1.5,
        "",
        "upstream JobSet in place: one for each pod, and more",
    ),
    Goal(
        _JOBSET,
        "20 workers: slowest of five failures in a row over the first",
        "jobset",
        lambda told: told["failures_in_a_row"]["max_over_first"],
        2.0,
        "",
        _UPSTREAM,
    ),
    Goal(
        _CRASH,
        "pods failed, duplicates, restarts lost",
        "crash",
        lambda told: len(told["cases"]),
        0,
        "",
        "untested anywhere",
    ),
)


def standings(told: Mapping[str, Json | str]) -> Iterator[Standing]:
    """Yield each goal's. ``told`` has for each program what it printed, or in a line why it printed nothing."""
    for goal in GOALS:
        answer = told.get(goal.program, "not run")
        if isinstance(answer, str):
            yield Standing(goal, None, why=answer)
            continue
        try:
            yield Standing(goal, float(goal.value(answer)))
        except (KeyError, TypeError, ValueError) as error:
            yield Standing(goal, None, why=f"bench.{goal.program} does not tell it: {error!r}")


def _agent(resident: Json) -> float:
    """Return the agent's own; its worker for NVML is a process of its own."""
    return float(max(resident.values()))
