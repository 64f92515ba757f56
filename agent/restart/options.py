"""Parse the ``kubemend.io/`` annotations of a pod. Pure."""

import difflib
import enum
import functools
import posixpath
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kubemend.agent.restart import intents, keep
from kubemend.agent.restart.budget import Budget
from kubemend.agent.restart.overlap import Overlap
from kubemend.common import durations, exit_codes, gangs, targets

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
CACHE = PREFIX + "cache"
"""Read by the component ``caches`` when the pod is created; ``Off`` counts here as well."""
CACHE_SIZE = PREFIX + "cache-size"
"""Read by the same component."""
LAUNCHER = PREFIX + "launcher"
"""Read by the component ``launcher`` when the pod is created, like the next one."""
LAUNCHER_OPTIONS = PREFIX + "launcher-options"
KEEP_CACHE = PREFIX + "keep-cache"
KEEP = PREFIX + "keep"
OVERLAP = PREFIX + "overlap"
FATAL_EXIT_CODES = exit_codes.FATAL
RESTARTS = PREFIX + "restarts"
"""Written, not read: how often the containers were restarted (``agent.reporters.restart_counts``)."""
OWNER_COUNTS = PREFIX + "owner-counts-restarts"
HOLD = gangs.HOLD
OWNER_RECREATES = gangs.OWNER_RECREATES

LONGEST_GRACE = 3600.0
"""Seconds, as a Restart allows (``gracePeriodSeconds`` in daemonset/crds/restarts.yaml)."""
SHORTEST_HEARTBEAT = 1.0
"""Seconds: a busy node delays a process that touches a file by that much."""
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
    KEEP_CACHE,
    KEEP,
    OVERLAP,
    FATAL_EXIT_CODES,
    OWNER_COUNTS,
)
USED = frozenset({*_ALL, CACHE, RESTARTS})
"""The annotations of a pod that the agent reads."""
_READ_BY_OTHERS = (CACHE_SIZE, LAUNCHER, LAUNCHER_OPTIONS, HOLD, OWNER_RECREATES)
KNOWN = USED.union(_READ_BY_OTHERS)
"""All annotations of a pod that have an effect."""
_ALIKE = 0.85
"""Similarity from which a name is taken for a misspelled one; the prefix alone gives some 0.6."""
_LONGEST = 1000
"""Characters of an annotation: they can have 256 KiB, and user input must not fill logs and conditions."""
_LONGEST_NUMBER = 9
"""Digits; both as in the controller (``controller.gangs.gang_options``), which reads some of them too."""


class BadAnnotationError(ValueError):
    """An annotation is invalid; nothing is restarted on a guess. The text names it and the hint."""


class Clean(enum.Enum):
    """Resources that are emptied after the end of the old containers, before anything new runs."""

    SHM = "shm"


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A container is hung if ``file``, a path inside it, has not been touched for ``timeout`` seconds."""

    file: str
    timeout: float


@dataclass(frozen=True, slots=True)
class Options:
    """One pod's options.

    ``max_restarts`` None means the default budget, ``heartbeat`` None that none is watched. ``containers`` are swapped
    together when a fault hits one of them, and no others are; if empty, the hit container is swapped alone, if it is
    one of the pod's targets (``agent.restart.members.targets``). ``fatal_exit_codes``: a container that exits with one
    of them is left to kubelet. ``owner_counts`` False: the pod's owner, of an unknown kind, does not count restarts.
    ``keep_cache``: the compile cache is never emptied (``agent.restart.cache``). ``keep`` are paths of the writable
    layer that a successor keeps (``agent.restart.keep``). ``overlap``: what a successor may do while its predecessor
    dies (``agent.restart.overlap``); None: nothing.
    """

    opted_in: bool = False
    strategy: intents.Strategy = intents.Strategy.AUTO
    containers: frozenset[str] = frozenset()
    grace_seconds: float = 0.0
    max_restarts: int | None = None
    heartbeat: Heartbeat | None = None
    clean: frozenset[Clean] = frozenset()
    fatal_exit_codes: frozenset[int] = frozenset()
    owner_counts: bool = True
    keep_cache: bool = False
    keep: tuple[str, ...] = ()
    overlap: Overlap | None = None

    def budget(self) -> Budget:
        """Return the budget of each of the pod's containers."""
        return Budget() if self.max_restarts is None else Budget(limit=self.max_restarts)


def parse(annotations: Mapping[str, str]) -> Options:
    """Return the options in a pod's annotations. Raises BadAnnotationError.

    The latest results are cached: every exit and every fault asks for the options of all pods on the node.
    """
    _check_length(annotations, *_ALL)
    read = tuple((name, annotations[name]) for name in _ALL if name in annotations)
    return _parsed(read, cache_is_off=annotations.get(CACHE) == "Off")


@functools.lru_cache(maxsize=128)
def _parsed(read: tuple[tuple[str, str], ...], *, cache_is_off: bool) -> Options:
    annotations = dict(read)
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
        fatal_exit_codes=_exit_codes(annotations.get(FATAL_EXIT_CODES, "")),
        owner_counts=_flag(OWNER_COUNTS, annotations.get(OWNER_COUNTS, "true")),
        keep_cache=_flag(KEEP_CACHE, annotations.get(KEEP_CACHE, "false")) or cache_is_off,
        keep=kept_paths(annotations),
        overlap=_overlap(annotations.get(OVERLAP)),
    )


def unknown(annotations: Iterable[str]) -> str:
    """Return the names among a pod's annotations that are kubemend's and have no effect, with hints; empty: none.

    They are no reason to refuse a restart: a later release may know them.
    """
    found = []
    for name in sorted(name for name in annotations if is_unknown(name)):
        alike = difflib.get_close_matches(name, KNOWN, n=1, cutoff=_ALIKE)
        found.append(f"{name} (did you mean {alike[0]}?)" if alike else name)
    return f"unknown annotations have no effect: {', '.join(found)}" if found else ""


def is_unknown(name: str) -> bool:
    """Return whether an annotation's name is kubemend's and has no effect."""
    return name.startswith(PREFIX) and name not in KNOWN


def kept_paths(annotations: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths of the writable layer that a successor keeps. Raises BadAnnotationError."""
    _check_length(annotations, KEEP)
    text = annotations.get(KEEP, "")
    try:
        return keep.parse(text)
    except ValueError as error:
        raise BadAnnotationError(f"annotation {KEEP} is {text!r}; {error}") from None


def clean(annotations: Mapping[str, str]) -> frozenset[Clean]:
    """Return the directories that must be emptied before a successor runs. Raises BadAnnotationError."""
    _check_length(annotations, CLEAN)
    text = annotations.get(CLEAN, "")
    try:
        return frozenset(Clean(value.strip()) for value in text.split(",") if value.strip())
    except ValueError:
        known = ", ".join(each.value for each in Clean)
        raise BadAnnotationError(f"annotation {CLEAN} is {text!r}; it may list {known}") from None


def _check_length(annotations: Mapping[str, str], *names: str) -> None:
    for name in names:
        if len(annotations.get(name, "")) > _LONGEST:
            raise BadAnnotationError(f"annotation {name} is too long; the maximum is {_LONGEST} characters")


def _strategy(text: str) -> intents.Strategy:
    try:
        return intents.Strategy(text)
    except ValueError:
        known = ", ".join(strategy.value for strategy in intents.Strategy)
        raise BadAnnotationError(f"annotation {STRATEGY} is {text!r}; use one of {known}") from None


def _overlap(text: str | None) -> Overlap | None:
    if text is None:
        return None
    try:
        return Overlap(text)
    except ValueError:
        known = ", ".join(each.value for each in Overlap)
        raise BadAnnotationError(f"annotation {OVERLAP} is {text!r}; the only value is {known!r}") from None


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
        hint = "write the absolute path of a file in the container, without '..', '.' or repeated slashes"
        raise BadAnnotationError(f"annotation {HEARTBEAT_FILE} is {file!r}; {hint}")
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


def _exit_codes(text: str) -> frozenset[int]:
    try:
        return exit_codes.parse(text)
    except ValueError as error:
        raise BadAnnotationError(f"annotation {FATAL_EXIT_CODES} is {text!r}; {error}") from None


def _count(text: str | None) -> int | None:
    if text is None:
        return None
    digits = text.strip()
    if not (digits.isascii() and digits.isdecimal() and len(digits) <= _LONGEST_NUMBER):
        hint = f"write a whole number of at most {_LONGEST_NUMBER} digits"
        raise BadAnnotationError(f"annotation {MAX_RESTARTS} is {text!r}; {hint}")
    return int(digits)
