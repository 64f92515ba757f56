"""Count the results of the crash benchmark, and compute its printed figures."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench import figures
from bench.crash.judging import Overlap, Violation, Wrong
from bench.crash.plans import Pace
from bench.crash.stages import Stage

_SLOWEST = 5


@dataclass(frozen=True, slots=True)
class Case:
    """Describe the violations of one pod (or of the agent: "") after one kill, with all that is needed to reproduce
    them.
    """

    pod: str
    violations: Sequence[Violation]
    plan: str
    found: Sequence[str]
    timeline: Sequence[str]
    log: Sequence[str]

    def figures(self) -> dict[str, Any]:
        """Return the printed figures."""
        return {
            "pod": self.pod,
            "wrong": [f"{violation.wrong.value}: {violation.detail}" for violation in self.violations],
            "plan": self.plan,
            "found": list(self.found),
            "timeline": list(self.timeline),
            "log": list(self.log),
        }


@dataclass(frozen=True, slots=True)
class Recovery:
    """Hold the seconds from an agent's start until the node was quiet; ``found`` are the stages of earlier kills."""

    seconds: float
    plan: str
    found: Sequence[str]

    def figures(self) -> dict[str, Any]:
        """Return the printed figures."""
        return {"ms": round(self.seconds * 1000), "plan": self.plan, "found": list(self.found)}


@dataclass
class Tally:
    """Count kills, violations and recoveries."""

    runs: int = 0
    kills: int = 0
    kills_in_recovery: int = 0
    faults: int = 0
    overlaps: Counter[Overlap] = field(default_factory=Counter)
    stages: Counter[tuple[str, Stage]] = field(default_factory=Counter)
    recoveries: list[Recovery] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)

    def killed(self, hit: Iterable[tuple[str, Stage]], *, in_recovery: bool = False) -> None:
        """Count a kill; ``hit`` has the subjects' names and the stages of their restarts."""
        self.kills += 1
        self.kills_in_recovery += in_recovery
        self.stages.update(hit)

    @property
    def flawless(self) -> bool:
        """Return whether runs were made, without any violation."""
        return self.runs > 0 and not self.cases

    def figures(self, *, paces: Mapping[str, Pace]) -> dict[str, Any]:
        """Return the printed figures."""
        slowest = sorted(self.recoveries, key=lambda recovery: -recovery.seconds)
        wrong = Counter(kind for case in self.cases for kind in {violation.wrong for violation in case.violations})
        return {
            "runs": self.runs,
            "kills": self.kills,
            "kills_in_recovery": self.kills_in_recovery,
            "faults_injected": self.faults,
            "copies_by_kubelet": self.overlaps[Overlap.COPY],
            "began_beside_frozen": self.overlaps[Overlap.HELD],
            "kills_by_step": self._by_stage(),
            "kills_by_pod": {
                name: {stage.value: self.stages[name, stage] for stage in Stage if self.stages[name, stage]}
                for name in sorted({name for name, _ in self.stages})
            },
            **{kind.value: wrong[kind] for kind in Wrong},
            "restart_ms": {
                name: {"acted": round(pace.acted * 1000), "closed": round(pace.closed * 1000)}
                for name, pace in sorted(paces.items())
            },
            "recovery_ms": figures.milliseconds([recovery.seconds for recovery in self.recoveries]),
            "slowest": [recovery.figures() for recovery in slowest[:_SLOWEST]],
            "cases": [case.figures() for case in self.cases],
        }

    def _by_stage(self) -> dict[str, int]:
        return {
            stage.value: sum(self.stages[name, stage] for name, each in self.stages if each is stage) for stage in Stage
        }
