"""Count over a sliding window of time, in parts, so that the state stays small."""

import itertools
from dataclasses import dataclass

PARTS = 10
_WIDEST_GAP = 4  # parts between two polls
_FULL = 0.9  # of its length: the current part is never complete


@dataclass(frozen=True, slots=True)
class Part:
    """The counts of one part of a window."""

    number: int
    hits: int
    samples: int


@dataclass(frozen=True, slots=True)
class Window:
    """Hits and polls of the last ``length`` seconds.

    ``begun``: the time of the first of an unbroken series of polls.
    """

    length: float
    begun: float = 0.0
    parts: tuple[Part, ...] = ()

    def with_sample(self, *, now: float, hits: int) -> "Window":
        """Return the window after one more poll with so many hits. ``now`` never decreases."""
        number = int(now * PARTS / self.length)
        kept = tuple(part for part in self.parts if part.number > number - PARTS)
        begun = self.begun if kept else now
        if kept and kept[-1].number == number:
            last = kept[-1]
            return Window(
                length=self.length,
                begun=begun,
                parts=(*kept[:-1], Part(number=number, hits=last.hits + hits, samples=last.samples + 1)),
            )
        return Window(length=self.length, begun=begun, parts=(*kept, Part(number=number, hits=hits, samples=1)))

    @property
    def hits(self) -> int:
        """All hits in the window as of its last poll."""
        return sum(part.hits for part in self.parts)

    @property
    def share(self) -> float:
        """Hits per poll."""
        return self.hits / samples if (samples := self._samples) else 0.0

    def full(self, *, now: float) -> bool:
        """Return whether it covers about its whole length, without a wide gap: enough to prove absence."""
        gaps = (later.number - earlier.number for earlier, later in itertools.pairwise(self.parts))
        return now - self.begun >= _FULL * self.length and all(gap <= _WIDEST_GAP for gap in gaps)

    @property
    def _samples(self) -> int:
        return sum(part.samples for part in self.parts)
