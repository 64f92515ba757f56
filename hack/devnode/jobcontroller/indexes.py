"""Sets of completion indexes as a Job's status writes them, such as ``0,2-5``. Pure."""

from collections.abc import Iterable


def parse(text: str, *, completions: int) -> frozenset[int]:
    """Return the indexes below ``completions`` that a text names."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        found.update(range(int(first), min(int(last or first) + 1, completions)))
    return frozenset(found)


def render(indexes: Iterable[int]) -> str:
    """Return the text; three or more in a row are a range (``orderedIntervals.String``)."""
    runs: list[list[int]] = []
    for index in sorted(indexes):
        if runs and index == runs[-1][-1] + 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ",".join(map(str, run)) for run in runs)
