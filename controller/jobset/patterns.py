"""Users' patterns, matched as upstream matches them: RE2, anywhere in the text (Go's ``regexp.MatchString``). Pure.

RE2 takes linear time, and what a pattern may cost is bounded: anybody who may create a JobSet writes one.
"""

import functools
from typing import Any, Final

import re2

MOST_CHARACTERS: Final = 4096
"""Of a pattern; a longer one counts as invalid."""

_MOST_MEMORY: Final = 1 << 20  # bytes for one pattern's automata; RE2 falls back to slower ones, or refuses
_CACHED: Final = 256


def any_matches(patterns: tuple[str, ...], text: str) -> bool:
    """Return whether one of the patterns is found in the text. Invalid ones are never found, as upstream has it."""
    return any(pattern is not None and pattern.search(text) is not None for pattern in map(_compiled, patterns))


def invalid(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return those that RE2 does not take."""
    return tuple(each for each in patterns if _compiled(each) is None)


@functools.lru_cache(maxsize=_CACHED)
def _compiled(pattern: str) -> Any | None:
    if len(pattern) > MOST_CHARACTERS:
        return None
    options = re2.Options()
    options.max_mem = _MOST_MEMORY
    options.log_errors = False
    try:
        return re2.compile(pattern, options)
    except re2.error:
        return None
