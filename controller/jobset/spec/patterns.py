"""Match users' patterns as upstream does: RE2, anywhere in the text (Go's ``regexp.MatchString``). Pure.

RE2 takes linear time, and the cost of a pattern is limited: any user with the right to create JobSets can supply one.
"""

import functools
from typing import Any, Final

import re2

MOST_CHARACTERS: Final = 4096
"""Length of a pattern; a longer one counts as invalid."""

# bytes for one pattern's automata; above that RE2 uses slower ones, or refuses the pattern
_MOST_MEMORY: Final = 1 << 20
_CACHED: Final = 256


def any_matches(patterns: tuple[str, ...], text: str) -> bool:
    """Return whether the text contains a match of one of the patterns. As upstream, invalid ones never match."""
    return any(pattern is not None and pattern.search(text) is not None for pattern in map(_compiled, patterns))


def invalid(patterns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the patterns that RE2 rejects."""
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
