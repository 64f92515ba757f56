"""What a pod asks for in its ``kubemend.io/`` annotations. Pure."""

import enum
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass

from agent.restart import intents
from agent.restart.budget import Budget
from common import durations

PREFIX = "kubemend.io/"
RESTART = PREFIX + "restart"
IN_PLACE = "InPlace"
STRATEGY = PREFIX + "strategy"
CONTAINERS = PREFIX + "containers"
GRACE_PERIOD = PREFIX + "grace-period"
MAX_RESTARTS = PREFIX + "max-restarts"
HEARTBEAT_FILE = PREFIX + "heartbeat-file"
HEARTBEAT_TIMEOUT = PREFIX + "heartbeat-timeout"
CLEAN = PREFIX + "clean"

SHORTEST_HEARTBEAT = 1.0
"""Seconds: a busy node delays what wants to touch a file that much."""


class BadAnnotationError(ValueError):
    """An annotation cannot be understood; nothing is restarted on a guess. The text names it and the mend."""


class Clean(enum.Enum):
    """What is emptied after the end of the old containers, before anything new runs."""

    SHM = "shm"


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A container is hung when ``file``, a path inside it, has not been touched for ``timeout`` seconds."""

    file: str
    timeout: float


@dataclass(frozen=True, slots=True)
class Options:
    """One pod's wishes. ``max_restarts`` None means the default budget, ``heartbeat`` None that none is watched.

    ``containers`` are swapped together when a fault hits one of them, and no other ones are; empty means that the
    container that was hit, whichever it is, is swapped alone.
    """

    opted_in: bool = False
    strategy: intents.Strategy = intents.Strategy.AUTO
    containers: frozenset[str] = frozenset()
    grace_seconds: float = 0.0
    max_restarts: int | None = None
    heartbeat: Heartbeat | None = None
    clean: frozenset[Clean] = frozenset()

    def budget(self) -> Budget:
        """Return the budget of each of the pod's containers."""
        return Budget() if self.max_restarts is None else Budget(limit=self.max_restarts)


def parse(annotations: Mapping[str, str]) -> Options:
    """Return the wishes in a pod's annotations. Raises BadAnnotationError."""
    mode = annotations.get(RESTART)
    if mode not in (None, IN_PLACE):
        raise BadAnnotationError(f"annotation {RESTART} is {mode!r}; the only value is {IN_PLACE!r}")
    return Options(
        opted_in=mode == IN_PLACE,
        strategy=_strategy(annotations.get(STRATEGY, "auto")),
        containers=frozenset(name.strip() for name in annotations.get(CONTAINERS, "").split(",") if name.strip()),
        grace_seconds=_seconds(annotations.get(GRACE_PERIOD, "0")),
        max_restarts=_count(annotations.get(MAX_RESTARTS)),
        heartbeat=_heartbeat(annotations),
        clean=clean(annotations),
    )


def clean(annotations: Mapping[str, str]) -> frozenset[Clean]:
    """Return what is to be emptied before a successor runs. Raises BadAnnotationError."""
    text = annotations.get(CLEAN, "")
    try:
        return frozenset(Clean(word.strip()) for word in text.split(",") if word.strip())
    except ValueError:
        known = ", ".join(each.value for each in Clean)
        raise BadAnnotationError(f"annotation {CLEAN} is {text!r}; it may list {known}") from None


def _strategy(text: str) -> intents.Strategy:
    try:
        return intents.Strategy(text)
    except ValueError:
        known = ", ".join(strategy.value for strategy in intents.Strategy)
        raise BadAnnotationError(f"annotation {STRATEGY} is {text!r}; use one of {known}") from None


def _seconds(text: str) -> float:
    try:
        return durations.seconds(text)
    except ValueError as error:
        raise BadAnnotationError(f"annotation {GRACE_PERIOD}: {error}") from None


def _heartbeat(annotations: Mapping[str, str]) -> Heartbeat | None:
    file, timeout = annotations.get(HEARTBEAT_FILE), annotations.get(HEARTBEAT_TIMEOUT)
    if file is None and timeout is None:
        return None
    if file is None:
        raise BadAnnotationError(f"annotation {HEARTBEAT_FILE} is missing; {HEARTBEAT_TIMEOUT} needs it")
    if timeout is None:
        raise BadAnnotationError(f"annotation {HEARTBEAT_TIMEOUT} is missing; {HEARTBEAT_FILE} needs it, such as 60s")
    if not _is_absolute_and_clean(file):
        mend = "write the absolute path of a file in the container, without '..' and the like"
        raise BadAnnotationError(f"annotation {HEARTBEAT_FILE} is {file!r}; {mend}")
    try:
        allowed = durations.seconds(timeout)
    except ValueError as error:
        raise BadAnnotationError(f"annotation {HEARTBEAT_TIMEOUT}: {error}") from None
    if allowed < SHORTEST_HEARTBEAT:
        raise BadAnnotationError(
            f"annotation {HEARTBEAT_TIMEOUT} is {timeout!r}; it must be at least {SHORTEST_HEARTBEAT:g}s"
        )
    return Heartbeat(file=file, timeout=allowed)


def _is_absolute_and_clean(path: str) -> bool:
    # POSIX gives two leading slashes a meaning of their own, so normpath keeps them.
    return path.startswith("/") and not path.startswith("//") and posixpath.normpath(path) == path != "/"


def _count(text: str | None) -> int | None:
    if text is None:
        return None
    if not text.strip().isdecimal():
        raise BadAnnotationError(f"annotation {MAX_RESTARTS} is {text!r}; write a whole number")
    return int(text)
