"""The allowed transitions of a round. Every change is checked against these tables. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kubemend.controller.rounds.states import MemberPhase, Phase

PHASES: Final[Mapping[Phase, frozenset[Phase]]] = MappingProxyType(
    {
        Phase.STOPPING: frozenset({Phase.RELEASING, Phase.DONE, Phase.DEGRADED, Phase.FAILED}),
        Phase.RELEASING: frozenset({Phase.DONE, Phase.DEGRADED, Phase.FAILED}),
        Phase.DONE: frozenset(),
        Phase.DEGRADED: frozenset(),
        Phase.FAILED: frozenset(),
    }
)

_ENDS = frozenset({MemberPhase.COMPLETED, MemberPhase.GONE, MemberPhase.FAILED})

STANDS: Final[Mapping[MemberPhase, frozenset[MemberPhase]]] = MappingProxyType(
    {
        MemberPhase.WAITING: _ENDS
        | {MemberPhase.STOPPING, MemberPhase.STOPPED, MemberPhase.LEAVING, MemberPhase.RUNNING},
        # From STOPPING directly to RUNNING: a previous leader had released it, which was not known here.
        MemberPhase.STOPPING: _ENDS | {MemberPhase.STOPPED, MemberPhase.LEAVING, MemberPhase.RUNNING},
        MemberPhase.LEAVING: _ENDS,
        MemberPhase.JOINING: _ENDS
        | {MemberPhase.STOPPED, MemberPhase.LEAVING, MemberPhase.RELEASING, MemberPhase.RUNNING},
        MemberPhase.STOPPED: _ENDS | {MemberPhase.LEAVING, MemberPhase.RELEASING, MemberPhase.RUNNING},
        MemberPhase.RELEASING: _ENDS | {MemberPhase.RUNNING},
        MemberPhase.RUNNING: _ENDS,
        MemberPhase.COMPLETED: frozenset(),
        MemberPhase.GONE: frozenset(),
        MemberPhase.FAILED: frozenset(),
    }
)
