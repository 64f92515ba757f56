"""Combine the ``kubemend.io/`` annotations of a gang's members. Pure.

Members usually come from one template and agree. If they differ, the strictest value applies to all: the fewest
restarts, every exit code that is fatal to one of them, the shortest hold. An invalid value is never guessed: the first
such annotation, by slot, is reported as the gang's problem.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kubemend.common import durations, gangs
from kubemend.common import exit_codes as common_exit_codes
from kubemend.controller.gangs import members as members_module
from kubemend.controller.model.members import Member

FATAL_EXIT_CODES: Final = common_exit_codes.FATAL

_LONGEST = 1000
"""Characters of an annotation. The API allows 256 KiB, and user input must not keep the controller busy."""
_LONGEST_NUMBER = 9
_LONGEST_GRACE = 3600.0
"""Seconds, as in the agent (``agent.restart.options``)."""
_LONGEST_HOLD = 86400.0
"""Seconds; a round ends long before that."""


class BadAnnotationError(ValueError):
    """An annotation is invalid. The text names it and has the hint."""


@dataclass(frozen=True, slots=True)
class GangOptions:
    """One gang's options; None and empty values mean the defaults.

    ``max_restarts``: rounds per window. ``fatal_exit_codes``: a member that exits with one of them is left to the
    workload's own policy. ``hold``: seconds for which members that stayed wait for those that are recreated.
    """

    max_restarts: int | None = None
    fatal_exit_codes: frozenset[int] = frozenset()
    hold: float | None = None


def of(members: Iterable[Member]) -> GangOptions:
    """Return the combined options of these members. Raises BadAnnotationError."""
    limits: set[int] = set()
    codes: set[int] = set()
    holds: set[float] = set()
    checked: set[tuple[str | None, ...]] = set()
    before: Mapping[str, str] | None = None
    for slot, member in members_module.by_slot(members).items():
        if member.annotations == before:
            continue  # much faster than what follows
        before = member.annotations
        annotated = tuple(map(member.annotations.get, members_module.ANNOTATIONS))
        if annotated in checked:
            continue  # usual for members of one template, by the thousand
        checked.add(annotated)
        try:
            _check_length(member)
            _check_mode(member.annotations.get(members_module.RESTART))
            _check_flag(member, gangs.OWNER_RECREATES)
            if (text := member.annotations.get(members_module.MAX_RESTARTS)) is not None:
                limits.add(_count(text))
            codes |= exit_codes(member.annotations.get(FATAL_EXIT_CODES, ""))
            if (text := member.annotations.get(gangs.HOLD)) is not None:
                holds.add(_hold(text))
        except BadAnnotationError as error:
            raise BadAnnotationError(f"member {slot}: {error}") from None
    return GangOptions(min(limits, default=None), frozenset(codes), min(holds, default=None))


def grace_seconds(member: Member) -> float:
    """Return the grace period of its old containers in seconds; 0 if it is not set or invalid.

    The agent refuses an invalid one; here it only extends a deadline.
    """
    try:
        return min(durations.seconds(member.annotations.get(members_module.GRACE_PERIOD, "0")), _LONGEST_GRACE)
    except ValueError:
        return 0.0


def exit_codes(text: str) -> frozenset[int]:
    """Return the codes of a list such as ``42, 64-78``. Raises BadAnnotationError."""
    try:
        return common_exit_codes.parse(text)
    except ValueError as error:
        raise BadAnnotationError(f"annotation {FATAL_EXIT_CODES} is {text!r}; {error}") from None


def _number(text: str) -> int | None:
    """Return a whole number; None if the text is not one, or is longer than any valid value."""
    number = text.strip()
    return int(number) if number.isascii() and number.isdecimal() and len(number) <= _LONGEST_NUMBER else None


def _check_length(member: Member) -> None:
    for name in members_module.ANNOTATIONS:
        if len(member.annotations.get(name, "")) > _LONGEST:
            raise BadAnnotationError(f"annotation {name} is longer than {_LONGEST} characters")


def _check_mode(mode: str | None) -> None:
    if mode not in (None, members_module.IN_PLACE):
        known = members_module.IN_PLACE
        raise BadAnnotationError(f"annotation {members_module.RESTART} is {mode!r}. The only value is {known!r}")


def _check_flag(member: Member, name: str) -> None:
    if (text := member.annotations.get(name, "true")) not in ("true", "false"):
        raise BadAnnotationError(f"annotation {name} is {text!r}. It must be 'true' or 'false'")


def _count(text: str) -> int:
    if (count := _number(text)) is None:
        raise BadAnnotationError(f"annotation {members_module.MAX_RESTARTS} is {text!r}. It must be a whole number")
    return count


def _hold(text: str) -> float:
    try:
        seconds = durations.seconds(text)
    except ValueError as error:
        raise BadAnnotationError(f"annotation {gangs.HOLD}: {error}") from None
    if seconds > _LONGEST_HOLD:
        raise BadAnnotationError(f"annotation {gangs.HOLD} is {text!r}. It must be at most {_LONGEST_HOLD:g}s")
    return seconds
