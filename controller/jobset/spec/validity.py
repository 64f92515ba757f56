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
_VALID_AGAIN: Final = "Mended"
_VALID_AGAIN_MESSAGE: Final = "the JobSet is valid again"
_LONGEST: Final = 900  # an Event's note holds 1024 bytes


def refuse(problems: Sequence[Problem], *, draft: StatusBuilder) -> None:
    """Set the condition with the problems, cut to what an Event holds."""
    text = "; ".join(str(each) for each in problems)
    more = "" if len(text) <= _LONGEST else f" … ({len(problems)} problems)"
    message = text if not more else text[: _LONGEST - len(more)] + more
    draft.set_condition(conditions.VALID, is_so=False, reason=INVALID, message=message, event=EventType.WARNING)


def accept(draft: StatusBuilder) -> None:
    """Set the JobSet valid again. One that was never invalid has no condition: upstream's JobSets have none, either."""
    if draft.status.condition(conditions.VALID) is not None:
        draft.set_condition(conditions.VALID, is_so=True, reason=_VALID_AGAIN, message=_VALID_AGAIN_MESSAGE)
