"""Record lives: a worker in C that records when it was alive, by a clock that all containers of the machine share.

The containers themselves, not kubemend's logs, show whether a new one ran while an old one was still alive.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from hack import compiler

PROGRAM = "/bin/pulse"
"""Its path in the dev node's image."""
SOURCE = Path(__file__).with_name("pulse.c")

_LIFE = struct.Struct("=6Q")  # struct life in pulse.c
_STEP = struct.Struct("=Q")
_HELD = 50_000_000  # nanoseconds; a busy machine delays a process by less than this, a round holds it longer


@dataclass(frozen=True, slots=True)
class Life:
    """Describe one run of a worker. Times are CLOCK_MONOTONIC nanoseconds (``time.monotonic_ns``), both ends inclusive.

    ``still_since`` and ``still_for`` describe its longest pause. ``ours``: kubemend has started it, not kubelet.
    """

    member: str
    began: int
    last: int
    beats: int
    still_since: int
    still_for: int
    ours: bool = False

    def ran_before(self, moment: int) -> int:
        """Return for how many nanoseconds it ran before that moment, if it was paused from some time before it on."""
        if self.began >= moment:
            return 0
        stood_still = self.still_since < moment <= self.still_since + self.still_for
        return (self.still_since if stood_still else min(self.last, moment)) - self.began

    @property
    def runs_since(self) -> int:
        """Return when it was released: the end of its hold, if it was held after its first moments."""
        was_held = self.still_for > _HELD and self.still_since - self.began < _HELD
        return self.still_since + self.still_for if was_held else self.began


@dataclass(frozen=True, slots=True)
class Barrier:
    """Describe the lives of a gang around one round, in nanoseconds.

    ``old`` and ``new`` count them. ``apart``: from the last sign of life of an old one to the first of a new one;
    negative when they overlap. ``slipped``: the longest time that a new one ran before all old ones were dead, and
    ``ours_slipped`` the same for those that kubemend has started.
    """

    old: int
    new: int
    apart: int
    slipped: int
    ours_slipped: int


def build(directory: Path) -> Path:
    """Compile the worker into a directory, for any root file system; return its path.

    Raises the errors of ``compiler.build``.
    """
    return compiler.build(SOURCE, directory / Path(PROGRAM).name, "-std=c11", "-static")


def command(lives: str) -> Sequence[str]:
    """Return the command of a container for it; ``lives`` is a directory as the container sees it."""
    return (PROGRAM, lives)


def lives(directory: Path) -> tuple[Life, ...]:
    """Return all recorded lives, oldest first."""
    found = []
    for path in directory.glob("*.life"):
        data = path.read_bytes()
        if len(data) == _LIFE.size and any(data):  # not between its creation and its first beat
            began, last, beats, still_since, still_for, ours = _LIFE.unpack(data)
            member = path.name.split(".")[0]
            found.append(Life(member, began, last, beats, still_since, still_for, ours=bool(ours)))
    return tuple(sorted(found, key=lambda life: life.began))


def step(directory: Path, member: str) -> int:
    """Return the step of a member's training; 0 when it has never begun."""
    try:
        data = (directory / f"{member}.step").read_bytes()
    except FileNotFoundError:
        return 0
    return int(_STEP.unpack(data)[0]) if len(data) == _STEP.size else 0


def barrier(seen: Iterable[Life], *, since: int) -> Barrier:
    """Return the relation of lives around one round, for a fault at ``since``.

    Old is the last life of each member that began before; one that continues has not been restarted, and counts. New
    are all that began later, except a life by kubelet that another one of its member has followed: kubelet starts a
    container that has ended at once, and a round that comes later ends what it finds. No new one may run before that
    one's death either. Raises ValueError when there is no old one, or no new one: then nothing is proved.
    """
    lives_seen = sorted(seen, key=lambda life: life.began)
    old = {life.member: life for life in lives_seen if life.began < since}
    later = [life for life in lives_seen if life.began >= since]
    if not old or not later:
        raise ValueError(f"{len(old)} lives existed at {since} and {len(later)} began after it; no barrier to judge")
    latest = {life.member: life for life in later}
    new = [life for life in later if life.ours or life is latest[life.member]]
    replaced = [life for life in later if life not in new]
    last_death = max(life.last for life in (*old.values(), *replaced))
    return Barrier(
        old=len(old),
        new=len(new),
        apart=new[0].began - last_death,
        slipped=max(life.ran_before(last_death) for life in new),
        ours_slipped=max((life.ran_before(last_death) for life in new if life.ours), default=0),
    )
