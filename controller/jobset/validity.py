"""A JobSet that cannot be run as it is written: until it is mended it can only be suspended. Pure.

Upstream's webhook turns it away. Ours is a policy that may not be installed, or not have seen it, so it is asked again.
"""

from collections.abc import Sequence
from typing import Final

from controller.jobset import conditions
from controller.jobset.draft import Draft
from controller.jobset.plan import EventType
from controller.jobset.validation import Problem

INVALID: Final = "Invalid"
_MENDED: Final = "Mended"
_MENDED_MESSAGE: Final = "what was invalid is mended"
_LONGEST: Final = 900  # an event's note holds 1024 bytes


def refuse(problems: Sequence[Problem], *, draft: Draft) -> None:
    """Say what is wrong, as much of it as an event holds."""
    told = "; ".join(str(each) for each in problems)
    more = "" if len(told) <= _LONGEST else f" … ({len(problems)} problems)"
    message = told if not more else told[: _LONGEST - len(more)] + more
    draft.say(conditions.VALID, is_so=False, reason=INVALID, message=message, event=EventType.WARNING)


def accept(draft: Draft) -> None:
    """Take it back. A JobSet that always was valid does not say so: upstream's have no such condition."""
    if draft.status.condition(conditions.VALID) is not None:
        draft.say(conditions.VALID, is_so=True, reason=_MENDED, message=_MENDED_MESSAGE)
