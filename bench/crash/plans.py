"""Draw when to kill the agent: at random, reproducible from a seed. Pure.

All moments are fractions, scaled by the measured length of restarts, so that a slow machine draws the same plan. Only
the time without an agent is in seconds: kubelet lists containers once a second, however fast the machine is.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.crash.subjects import Subject
from kubemend.agent.clients.cri.events import EventKind

_COMPANIONS = (0, 1, 1, 2)
_AGAIN = 0.15
_BY_EVENT = 0.35
_WHOLE = 0.2
_BEYOND = 1.3
"""How far moments extend beyond the measured end of a restart."""
_AWAY = 0.3
_LONGEST_AWAY = 3.0


@dataclass(frozen=True, slots=True)
class Pace:
    """Hold the seconds from a fault to its running successors (``acted``), and to the closed intent (``closed``)."""

    acted: float
    closed: float


@dataclass(frozen=True, slots=True)
class Fault:
    """Describe one fault. ``lead`` is its time before the first one of the plan, as a fraction of a restart."""

    subject: Subject
    container: str
    lead: float


@dataclass(frozen=True, slots=True)
class Plan:
    """Describe one kill.

    Faults come first, the first of them last; then, after ``moment``, the kill. The moment is a fraction of the time
    until the restart's containers run (``whole`` False) or its intent is closed (``whole`` True); with ``event`` it
    counts from the first such event of a container of the first fault's pod, and in a short span. ``again`` is the
    moment, as a fraction of a recovery, at which the next agent is killed as well. ``away`` is the seconds without an
    agent: kubelet manages the pods alone in this time.
    """

    number: int
    faults: tuple[Fault, ...]
    moment: float
    whole: bool
    event: EventKind | None = None
    again: float | None = None
    away: float = 0.0

    def __str__(self) -> str:
        hit = ", ".join(f"{fault.subject.name}/{fault.container} {fault.lead:.3f}" for fault in self.faults)
        after = f"event {self.event.value}" if self.event is not None else "closing" if self.whole else "acting"
        again = f", again at {self.again:.3f}" if self.again is not None else ""
        away = f", away {self.away:.1f} s" if self.away else ""
        return f"run {self.number}: {hit}; killed at {self.moment:.3f} of {after}{away}{again}"


def draw(subjects: Sequence[Subject], *, count: int, seed: int) -> Iterator[Plan]:
    """Return ``count`` plans. The kill is timed by every subject in turn."""
    chance = random.Random(seed)
    turns: list[Subject] = []
    for number in range(1, count + 1):
        if not turns:
            turns = chance.sample(subjects, k=len(subjects))
        yield _plan(turns.pop(), subjects, number=number, chance=chance)


def _plan(first: Subject, subjects: Sequence[Subject], *, number: int, chance: random.Random) -> Plan:
    others = [subject for subject in subjects if subject is not first]
    companions = chance.sample(others, k=min(chance.choice(_COMPANIONS), len(others)))
    by_event = chance.random() < _BY_EVENT
    return Plan(
        number=number,
        faults=(
            Fault(first, chance.choice(first.mains), lead=0.0),
            *(Fault(subject, chance.choice(subject.mains), lead=chance.random()) for subject in companions),
        ),
        moment=chance.random() if by_event else chance.uniform(0.0, _BEYOND),
        whole=chance.random() < _WHOLE,
        event=chance.choice(list(EventKind)) if by_event else None,
        again=chance.uniform(0.0, _BEYOND) if chance.random() < _AGAIN else None,
        away=chance.uniform(0.0, _LONGEST_AWAY) if chance.random() < _AWAY else 0.0,
    )
