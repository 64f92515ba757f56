"""What may follow what in a round. Every move is checked against these tables. Pure."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from controller.rounds.states import Phase, Stand

PHASES: Final[Mapping[Phase, frozenset[Phase]]] = MappingProxyType(
    {
        Phase.STOPPING: frozenset({Phase.RELEASING, Phase.DONE, Phase.DEGRADED, Phase.FAILED}),
        Phase.RELEASING: frozenset({Phase.DONE, Phase.DEGRADED, Phase.FAILED}),
        Phase.DONE: frozenset(),
        Phase.DEGRADED: frozenset(),
        Phase.FAILED: frozenset(),
    }
)

_ENDS = frozenset({Stand.COMPLETED, Stand.GONE, Stand.FAILED})

STANDS: Final[Mapping[Stand, frozenset[Stand]]] = MappingProxyType(
    {
        Stand.WAITING: _ENDS | {Stand.STOPPING, Stand.STOPPED, Stand.LEAVING, Stand.RUNNING},
        # From STOPPING straight to RUNNING: a former leader had released it, which we did not know.
        Stand.STOPPING: _ENDS | {Stand.STOPPED, Stand.LEAVING, Stand.RUNNING},
        Stand.LEAVING: _ENDS,
        Stand.JOINING: _ENDS | {Stand.STOPPED, Stand.LEAVING, Stand.RELEASING, Stand.RUNNING},
        Stand.STOPPED: _ENDS | {Stand.LEAVING, Stand.RELEASING, Stand.RUNNING},
        Stand.RELEASING: _ENDS | {Stand.RUNNING},
        Stand.RUNNING: _ENDS,
        Stand.COMPLETED: frozenset(),
        Stand.GONE: frozenset(),
        Stand.FAILED: frozenset(),
    }
)
