"""Parts of the agent that can be missing on a node, and what a person can do about it."""

import enum
from dataclasses import dataclass


class PartState(enum.Enum):
    """``IDLE`` is a part that this node does not need (no driver loaded on a CPU node): not a fault."""

    STARTING = "starting"
    READY = "ready"
    IDLE = "idle"
    DEGRADED = "degraded"


@dataclass(frozen=True, slots=True)
class PartStatus:
    """How one part does. ``message`` says in one line what is missing and where, ``mend`` what to do."""

    state: PartState
    message: str = ""
    mend: str = ""
