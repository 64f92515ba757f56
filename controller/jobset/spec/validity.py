"""Mark a JobSet that cannot be run as written: until it is fixed it can only be suspended. Pure.

Upstream's webhook rejects it. kubemend's admission policy may not be installed, or may not have seen the JobSet, so the
controller validates it again.
"""

from collections.abc import Sequence
from typing import Final

from kubemend.controller.jobset import conditions
from kubemend.controller.jobset.plan import EventType
from kubemend.controller.jobset.spec.validation import Problem
from kubemend.controller.jobset.status_builder import StatusBuilder

INVALID: Final = "Invalid"
_HINTED: Final = "Mended"
_HINTED_MESSAGE: Final = "the JobSet is valid again"
_LONGEST: Final = 900  # an Event's note holds 1024 bytes


def refuse(problems: Sequence[Problem], *, draft: StatusBuilder) -> None:
    """Set the condition with the problems, cut to what an Event holds."""
    told = "; ".join(str(each) for each in problems)
    more = "" if len(told) <= _LONGEST else f" … ({len(problems)} problems)"
    message = told if not more else told[: _LONGEST - len(more)] + more
    draft.say(conditions.VALID, is_so=False, reason=INVALID, message=message, event=EventType.WARNING)


def accept(draft: StatusBuilder) -> None:
    """Set the JobSet valid again. One that was never invalid has no condition: upstream's JobSets have none, either."""
    if draft.status.condition(conditions.VALID) is not None:
        draft.say(conditions.VALID, is_so=True, reason=_HINTED, message=_HINTED_MESSAGE)
