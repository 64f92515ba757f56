"""Read a trainer's records (``bench.steps.train``), and find what each fault has cost. Pure."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Self

STAGES: Final = ("restart", "imports", "rendezvous", "device", "build", "compile", "load", "step")
"""The stages in their order. ``restart`` is from the fault to the program's first line; one process alone has no
``rendezvous``."""

_FIRST_LINE: Final = "interpreter"


@dataclass(frozen=True, slots=True)
class Record:
    """Hold a line of the records: the stage that was over at ``at`` (seconds), and the last finished step."""

    at: float
    stage: str
    step: int

    @classmethod
    def parse(cls, line: str) -> Self:
        """Raises ValueError for anything but a complete line."""
        at, stage, step = line.split(" ")
        return cls(int(at) / 1e9, stage, int(step))


@dataclass(frozen=True, slots=True)
class Recovery:
    """Hold what one fault has cost, in seconds.

    ``stages`` lead to the first step that any trainer finished again; ``new_step`` is until the first step that no
    trainer had finished before, and ``second_step`` until the second step, None if the first was such a step. ``lost``
    counts the steps that were finished twice.
    """

    stages: dict[str, float]
    second_step: float | None
    new_step: float
    lost: int

    @property
    def first_step(self) -> float:
        """Return the seconds from the fault to the first step."""
        return sum(self.stages.values())


def parse(text: str) -> list[Record]:
    """Return the records of a file; a last line that is not complete is left out. Raises ValueError."""
    return [Record.parse(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]


def deaths_without_fault(records: Sequence[Record]) -> int:
    """Return how many trainers began without a fault of the one before."""
    begun = sum(record.stage == _FIRST_LINE for record in records)
    return max(0, begun - 1 - sum(record.stage == "fault" for record in records))


def recoveries(records: Sequence[Record]) -> list[Recovery]:
    """Return the recovery after each fault that is over, in order."""
    faults = [position for position, record in enumerate(records) if record.stage == "fault"]
    found = (_recovery(records[position], records[position + 1 :]) for position in faults)
    return [each for each in found if each is not None]


def _recovery(fault: Record, after: Sequence[Record]) -> Recovery | None:
    stages: dict[str, float] = {}
    steps: list[float] = []
    last, loaded = fault.at, 0
    for record in after:
        if record.stage == "load":
            loaded = record.step
        if not steps:
            stage = "restart" if record.stage == _FIRST_LINE else record.stage
            stages[stage] = stages.get(stage, 0.0) + record.at - last
            last = record.at
        if record.stage == "step":
            steps.append(record.at - fault.at)
            if record.step > fault.step:
                second = steps[1] if len(steps) > 1 else None
                return Recovery(stages, second, new_step=steps[-1], lost=fault.step - loaded)
    return None


def figures(*runs: Sequence[Record]) -> dict[str, Any]:
    """Return the printed figures: medians of seconds, and every recovery's time to the first and to the new step.

    ``runs`` are the records of one trainer, or of several that had a fault each. ``total_s`` is from the first step of
    all to the last new one, added up.
    """
    each = [one for records in runs for one in recoveries(records)]
    seconds = [one.second_step for one in each if one.second_step is not None]
    steps = [[record.at for record in records if record.stage == "step"] for records in runs]
    return {
        "first_step_s": round(statistics.median(one.first_step for one in each), 2),
        **({"second_step_s": round(statistics.median(seconds), 2)} if seconds else {}),
        "new_step_s": round(statistics.median(one.new_step for one in each), 2),
        "steps_lost": statistics.median(one.lost for one in each),
        "stages_s": {
            stage: round(statistics.median(one.stages.get(stage, 0.0) for one in each), 2) for stage in STAGES
        },
        "each_first_step_s": [round(one.first_step, 2) for one in each],
        "each_second_step_s": [round(second, 2) for second in seconds],
        "each_new_step_s": [round(one.new_step, 2) for one in each],
        "total_s": round(sum(each[-1] - each[0] for each in steps), 1),
    }
