"""Parse the annotation of fatal exit codes, for agent and controller alike. Pure."""

from typing import Final

FATAL: Final = "kubemend.io/fatal-exit-codes"
"""The annotation that lists the exit codes after which kubemend does not restart a container of the pod."""

HIGHEST: Final = 255
"""The highest exit code of a process (wait(2))."""
_LONGEST_NUMBER: Final = 9


def parse(text: str) -> frozenset[int]:
    """Return the codes of a list such as ``42, 64-78``. Raises ValueError with the permitted form."""
    found: set[int] = set()
    for item in (each.strip() for each in text.split(",")):
        if not item:
            continue
        first, _, last = item.partition("-")
        low, high = _code(first), _code(last or first)
        if low > high:
            raise _bad()
        found.update(range(low, high + 1))
    return frozenset(found)


def _code(text: str) -> int:
    item = text.strip()
    if not (item.isascii() and item.isdecimal() and len(item) <= _LONGEST_NUMBER) or not 1 <= int(item) <= HIGHEST:
        raise _bad()
    return int(item)


def _bad() -> ValueError:
    return ValueError(f"list exit codes from 1 to {HIGHEST}, such as 42, 64-78")
