"""What a gang asks for: its members' ``kubemend.io/`` annotations taken together. Pure.

Members usually come from one template and agree. Where they do not, the strictest wish holds for all: the fewest
restarts, every exit code that is fatal to one of them, the shortest hold. What cannot be understood is never guessed:
the first such annotation, by slot, is told as what is wrong with the gang.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from common import durations
from controller.gangs import members as members_module
from controller.model.members import Member

MAX_RESTARTS: Final = members_module.PREFIX + "max-restarts"
FATAL_EXIT_CODES: Final = members_module.PREFIX + "fatal-exit-codes"
HOLD: Final = members_module.PREFIX + "hold"
GRACE_PERIOD: Final = members_module.PREFIX + "grace-period"

_OF_THE_GANG: Final = (members_module.RESTART, MAX_RESTARTS, FATAL_EXIT_CODES, HOLD, GRACE_PERIOD)
_HIGHEST_EXIT_CODE = 255
_LONGEST = 1000
"""Characters of an annotation: they can have 256 KiB, and what anybody may write must not keep the controller busy."""
_LONGEST_NUMBER = 9
_LONGEST_GRACE = 3600.0
"""Seconds, as in the agent (``agent.restart.options``)."""
_LONGEST_HOLD = 86400.0
"""Seconds; a round ends long before that."""


class BadAnnotationError(ValueError):
    """An annotation cannot be understood. The text names it and the mend."""


@dataclass(frozen=True, slots=True)
class Wishes:
    """One gang's wishes; None and empty ones mean the defaults.

    ``max_restarts``: rounds per window. ``fatal_exit_codes``: a member that exits with one of them is left to the
    workload's own policy. ``hold``: for so many seconds members that stayed wait for those that are recreated.
    """

    max_restarts: int | None = None
    fatal_exit_codes: frozenset[int] = frozenset()
    hold: float | None = None


def of(members: Iterable[Member]) -> Wishes:
    """Return what these members ask for together. Raises BadAnnotationError."""
    limits: set[int] = set()
    codes: set[int] = set()
    holds: set[float] = set()
    looked_at: set[tuple[str | None, ...]] = set()
    for slot, member in members_module.by_slot(members).items():
        said = tuple(map(member.annotations.get, _OF_THE_GANG))
        if said in looked_at:
            continue  # as members of one template are, by the thousand
        looked_at.add(said)
        try:
            _check_length(member)
            _check_mode(member.annotations.get(members_module.RESTART))
            if (text := member.annotations.get(MAX_RESTARTS)) is not None:
                limits.add(_count(text))
            codes |= exit_codes(member.annotations.get(FATAL_EXIT_CODES, ""))
            if (text := member.annotations.get(HOLD)) is not None:
                holds.add(_hold(text))
        except BadAnnotationError as error:
            raise BadAnnotationError(f"member {slot}: {error}") from None
    return Wishes(min(limits, default=None), frozenset(codes), min(holds, default=None))


def grace_seconds(member: Member) -> float:
    """Return how long its old containers may take to end; 0 where that is not set or cannot be understood.

    Its agent refuses what cannot be understood; here it only lengthens a deadline.
    """
    try:
        return min(durations.seconds(member.annotations.get(GRACE_PERIOD, "0")), _LONGEST_GRACE)
    except ValueError:
        return 0.0


def exit_codes(text: str) -> frozenset[int]:
    """Return the codes of a list such as ``42, 64-78``. Raises BadAnnotationError."""
    found: set[int] = set()
    for word in (each.strip() for each in text.split(",")):
        if not word:
            continue
        first, _, last = word.partition("-")
        low, high = _exit_code(first, text), _exit_code(last or first, text)
        if low > high:
            raise _bad_codes(text)
        found.update(range(low, high + 1))
    return frozenset(found)


def _exit_code(word: str, text: str) -> int:
    code = _number(word)
    if code is None or not 1 <= code <= _HIGHEST_EXIT_CODE:
        raise _bad_codes(text)
    return code


def _bad_codes(text: str) -> BadAnnotationError:
    mend = f"list exit codes from 1 to {_HIGHEST_EXIT_CODE}, such as 42, 64-78"
    return BadAnnotationError(f"annotation {FATAL_EXIT_CODES} is {text!r}; {mend}")


def _number(text: str) -> int | None:
    """Return a whole number; None for what is none, or longer than any that means something here."""
    word = text.strip()
    return int(word) if word.isascii() and word.isdecimal() and len(word) <= _LONGEST_NUMBER else None


def _check_length(member: Member) -> None:
    for name in _OF_THE_GANG:
        if len(member.annotations.get(name, "")) > _LONGEST:
            raise BadAnnotationError(f"annotation {name} is too long; {_LONGEST} characters are the most")


def _check_mode(mode: str | None) -> None:
    if mode not in (None, members_module.IN_PLACE):
        known = members_module.IN_PLACE
        raise BadAnnotationError(f"annotation {members_module.RESTART} is {mode!r}; the only value is {known!r}")


def _count(text: str) -> int:
    if (count := _number(text)) is None:
        raise BadAnnotationError(f"annotation {MAX_RESTARTS} is {text!r}; write a whole number")
    return count


def _hold(text: str) -> float:
    try:
        seconds = durations.seconds(text)
    except ValueError as error:
        raise BadAnnotationError(f"annotation {HOLD}: {error}") from None
    if seconds > _LONGEST_HOLD:
        raise BadAnnotationError(f"annotation {HOLD} is {text!r}; it must be at most {_LONGEST_HOLD:g}s")
    return seconds
