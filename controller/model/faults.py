"""The cause of a round: a member's fault, or a request."""

from dataclasses import dataclass
from typing import NamedTuple

from kubemend.common.coordination import FaultKind
from kubemend.common.gangs import GangKey
from kubemend.controller.model.members import PodRef, PodUid


class FaultKey(NamedTuple):
    """The key of a fault: an agent chooses the id, so it is unique for its own pods only."""

    pod: PodUid
    id: str


@dataclass(frozen=True, slots=True)
class Fault:
    """One member's fault, as reported by its agent.

    ``at`` is Unix time by the controller's own clock (its arrival less its age). ``action_class`` is the worst verdict
    of the member's devices (``RestartApp``, ``ResetDevice``, ``RebootNode``, ``Replace``, ``AskDriver``, ``Observe``,
    ``None``). ``exit_code`` is None unless it is an exit. ``alone``: its agent had no answer in time, and has restarted
    the member by itself; other members of the gang are unaffected.
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

    @property
    def key(self) -> FaultKey:
        """Return its key."""
        return FaultKey(self.pod.uid, self.id)


@dataclass(frozen=True, slots=True)
class Request:
    """A Restart object: a request to restart this gang though nothing failed.

    ``by`` and ``reason`` are for people. ``at`` is Unix time. ``max_unavailable``: that many
    members at a time, one after another (rolling); None: all at once. ``recreate``: all members are recreated.
    """

    gang: GangKey
    by: str
    reason: str
    at: float
    max_unavailable: int | None = None
    recreate: bool = False


Cause = Fault | Request
