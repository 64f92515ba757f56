"""Decide whether a successor imports while its predecessor dies. Pure.

It runs up to its first opening of the GPU driver's libraries, where it waits until the old container is dead
(``agent.actuator.hold.driver_hold``). It may read files that the old program is leaving behind, and finds its ports
taken, so the pod must allow it.
"""

import enum
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final


class Overlap(enum.Enum):
    """What may overlap the end of the old program: the values of the annotation."""

    IMPORTS = "imports"


class Obstacle(enum.Enum):
    """Why a successor does nothing before the old container is dead, although the pod allows it."""

    IN_ROUND = "InRound"
    SEVERAL_CONTAINERS = "SeveralContainers"
    CLEANS = "Cleans"
    NO_STANDBY = "NoStandby"
    NOT_HELD = "NotHeld"
    NO_ROOM = "NoRoom"
    NO_DRIVER = "NoDriver"
    FOREIGN_DRIVER = "ForeignDriver"
    TOO_MANY_LIBRARIES = "TooManyLibraries"
    NOT_MARKED = "NotMarked"
    TIMED_OUT = "TimedOut"
    INTERNAL_ERROR = "InternalError"

    @property
    def text(self) -> str:
        """Return the reason for people."""
        return _TEXTS[self]


_TEXTS: Final = MappingProxyType(
    {
        Obstacle.IN_ROUND: "in a round it is held for its gang",
        Obstacle.SEVERAL_CONTAINERS: "several containers are restarted together",
        Obstacle.CLEANS: "files are moved or removed before it may run",
        Obstacle.NO_STANDBY: "it was not started next to the old container",
        Obstacle.NOT_HELD: "it was not held at its first instruction",
        Obstacle.NO_ROOM: "the pod's memory limit leaves no room for the imports next to the old program",
        Obstacle.NO_DRIVER: "the GPU driver's libraries are not mounted into it one by one",
        Obstacle.FOREIGN_DRIVER: "the GPU driver's libraries are, or could be, in a volume",
        Obstacle.TOO_MANY_LIBRARIES: "it has too many libraries of the GPU driver",
        Obstacle.NOT_MARKED: "the kernel does not report openings of the GPU driver's libraries",
        Obstacle.TIMED_OUT: "the GPU driver's libraries were not found in time",
        Obstacle.INTERNAL_ERROR: "an internal error, see the agent's log",
    }
)


@dataclass(frozen=True, slots=True)
class Request:
    """A pod's wish that a successor imports early. ``several``: others are restarted together with it."""

    several: bool = False


def obstacle(request: Request, *, in_round: bool, cleans: bool) -> Obstacle | None:
    """Return why a successor that is started next to the old container must not run yet; None if it may.

    ``cleans``: something is moved or removed before its start (paths to keep, shared memory, a compile cache), when
    neither container may run.
    """
    if in_round:
        return Obstacle.IN_ROUND
    if request.several:
        return Obstacle.SEVERAL_CONTAINERS
    return Obstacle.CLEANS if cleans else None


def note(container: str, found: Obstacle | None) -> str:
    """Return the result of the request, for people; ``found`` None: it imported early."""
    if found is None:
        return f"{container} imported while the old program ended"
    return f"{container} did not import while the old program ended: {found.text} ({found.value})"
