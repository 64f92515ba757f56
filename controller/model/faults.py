"""What starts a round: a member's fault, or somebody's request."""

import enum
from dataclasses import dataclass

from common.gangs import GangKey
from controller.model.members import PodRef


class FaultKind(enum.Enum):
    """coordination/v1 ``Fault.Kind``."""

    OTHER = "Other"
    EXIT = "Exit"
    DEVICE = "Device"
    HANG = "Hang"


@dataclass(frozen=True, slots=True)
class Fault:
    """One member's fault, as its agent tells it.

    ``at`` is Unix time by the controller's own clock (its arrival less its age). ``action_class`` is the worst verdict
    of the member's devices (``RestartApp``, ``ResetDevice``, ``RebootNode``, ``Replace``, ``AskDriver``, ``Observe``,
    ``None``), ``exit_code`` None unless it is an exit. ``alone``: its agent has had no answer in time, and has
    restarted the member by itself; the others of its gang have not heard of it.
    """

    id: str
    pod: PodRef
    gang: GangKey
    kind: FaultKind
    code: str
    message: str
    at: float
    container: str = ""
    exit_code: int | None = None
    action_class: str = "None"
    device: str = ""
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """Somebody's Restart object: restart this gang though nothing failed.

    ``by`` is who asked and ``why`` is their reason, both for people. ``at`` is Unix time. ``max_unavailable``: that
    many members at a time, one after another (rolling); None: all at once. ``recreate``: no member stays where it is.
    """

    gang: GangKey
    by: str
    why: str
    at: float
    max_unavailable: int | None = None
    recreate: bool = False


Cause = Fault | Request
