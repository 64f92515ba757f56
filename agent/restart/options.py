"""What a pod asks for in its ``kubemend.io/`` annotations. Pure."""

import enum
import posixpath
from collections.abc import Mapping
from dataclasses import dataclass

from agent.restart import intents
from agent.restart.budget import Budget
from common import durations, targets

PREFIX = "kubemend.io/"
RESTART = PREFIX + "restart"
IN_PLACE = "InPlace"
STRATEGY = PREFIX + "strategy"
CONTAINERS = targets.CONTAINERS
GRACE_PERIOD = PREFIX + "grace-period"
MAX_RESTARTS = PREFIX + "max-restarts"
HEARTBEAT_FILE = PREFIX + "heartbeat-file"
HEARTBEAT_TIMEOUT = PREFIX + "heartbeat-timeout"
CLEAN = PREFIX + "clean"
OWNER_COUNTS = PREFIX + "owner-counts-restarts"

LONGEST_GRACE = 3600.0
"""Seconds, as a Restart allows (``gracePeriodSeconds`` in daemonset/crds/restarts.yaml)."""
SHORTEST_HEARTBEAT = 1.0
"""Seconds: a busy node delays what wants to touch a file that much."""
LONGEST_HEARTBEAT = 86400.0
"""Seconds: a container that may be silent for longer than a day is not watched at all."""

_ALL = (
    RESTART,
    STRATEGY,
    CONTAINERS,
    GRACE_PERIOD,
    MAX_RESTARTS,
    HEARTBEAT_FILE,
    HEARTBEAT_TIMEOUT,
    CLEAN,
    OWNER_COUNTS,
)
_LONGEST = 1000
"""Characters of an annotation: they can have 256 KiB, and what anybody may write must not fill logs and conditions."""
_LONGEST_NUMBER = 9
"""Digits; both as in the controller (``controller.gangs.wishes``), which reads some of them too."""


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

    ``containers`` are swapped together when a fault hits one of them, and no other ones are; empty means that of the
    pod's targets (``agent.restart.members.targets``) the one that was hit is swapped alone.
    ``owner_counts`` False: the pod's owner, of a kind that is not known, does not hold restarts against the pod.
    """

    opted_in: bool = False
    strategy: intents.Strategy = intents.Strategy.AUTO
    containers: frozenset[str] = frozenset()
    grace_seconds: float = 0.0
    max_restarts: int | None = None
    heartbeat: Heartbeat | None = None
    clean: frozenset[Clean] = frozenset()
    owner_counts: bool = True

    def budget(self) -> Budget:
        """Return the budget of each of the pod's containers."""
        return Budget() if self.max_restarts is None else Budget(limit=self.max_restarts)


def parse(annotations: Mapping[str, str]) -> Options:
    """Return the wishes in a pod's annotations. Raises BadAnnotationError."""
    _check_length(annotations, *_ALL)
    mode = annotations.get(RESTART)
    if mode not in (None, IN_PLACE):
        raise BadAnnotationError(f"annotation {RESTART} is {mode!r}; the only value is {IN_PLACE!r}")
    return Options(
        opted_in=mode == IN_PLACE,
        strategy=_strategy(annotations.get(STRATEGY, "auto")),
        containers=targets.named(annotations.get(CONTAINERS, "")),
        grace_seconds=_seconds(GRACE_PERIOD, annotations.get(GRACE_PERIOD, "0"), most=LONGEST_GRACE),
        max_restarts=_count(annotations.get(MAX_RESTARTS)),
        heartbeat=_heartbeat(annotations),
        clean=clean(annotations),
        owner_counts=_flag(OWNER_COUNTS, annotations.get(OWNER_COUNTS, "true")),
    )


def clean(annotations: Mapping[str, str]) -> frozenset[Clean]:
    """Return what is to be emptied before a successor runs. Raises BadAnnotationError."""
    _check_length(annotations, CLEAN)
    text = annotations.get(CLEAN, "")
    try:
        return frozenset(Clean(word.strip()) for word in text.split(",") if word.strip())
    except ValueError:
        known = ", ".join(each.value for each in Clean)
        raise BadAnnotationError(f"annotation {CLEAN} is {text!r}; it may list {known}") from None


def _check_length(annotations: Mapping[str, str], *names: str) -> None:
    for name in names:
        if len(annotations.get(name, "")) > _LONGEST:
            raise BadAnnotationError(f"annotation {name} is too long; {_LONGEST} characters are the most")


def _strategy(text: str) -> intents.Strategy:
    try:
        return intents.Strategy(text)
    except ValueError:
        known = ", ".join(strategy.value for strategy in intents.Strategy)
        raise BadAnnotationError(f"annotation {STRATEGY} is {text!r}; use one of {known}") from None


def _seconds(name: str, text: str, *, least: float = 0.0, most: float) -> float:
    try:
        seconds = durations.seconds(text)
    except ValueError as error:
        raise BadAnnotationError(f"annotation {name}: {error}") from None
    if not least <= seconds <= most:
        raise BadAnnotationError(f"annotation {name} is {text!r}; it must be from {least:g}s to {most:g}s")
    return seconds


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
    allowed = _seconds(HEARTBEAT_TIMEOUT, timeout, least=SHORTEST_HEARTBEAT, most=LONGEST_HEARTBEAT)
    return Heartbeat(file=file, timeout=allowed)


def _is_absolute_and_clean(path: str) -> bool:
    # POSIX gives two leading slashes a meaning of their own, so normpath keeps them. No file has a NUL in its name.
    begins_with_one = path.startswith("/") and not path.startswith("//")
    return begins_with_one and posixpath.normpath(path) == path != "/" and "\0" not in path


def _flag(name: str, text: str) -> bool:
    if text not in ("true", "false"):
        raise BadAnnotationError(f"annotation {name} is {text!r}; write 'true' or 'false'")
    return text == "true"


def _count(text: str | None) -> int | None:
    if text is None:
        return None
    word = text.strip()
    if not (word.isascii() and word.isdecimal() and len(word) <= _LONGEST_NUMBER):
        mend = f"write a whole number of at most {_LONGEST_NUMBER} digits"
        raise BadAnnotationError(f"annotation {MAX_RESTARTS} is {text!r}; {mend}")
    return int(word)
