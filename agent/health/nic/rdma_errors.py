"""Error counters of RDMA ports: how fast they grow. Pure.

Only growth since the first reading counts, never the absolute value, which may be years old or of another cable.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType


@dataclass(frozen=True, slots=True)
class ErrorLimit:
    """A counter may grow by ``count`` in ``window`` seconds.

    More is a fault if it grew in ``readings`` readings of that window: a single burst, such as one caused by a peer's
    death, does not count. Where even one error is too many, one reading is enough.
    """

    counter: str
    count: int
    window: float
    readings: int = 1


ERROR_LIMITS = (
    ErrorLimit("symbol_error", count=120, window=3600.0),
    ErrorLimit("link_error_recovery", count=5, window=60.0),
    ErrorLimit("local_link_integrity_errors", count=0, window=60.0),
    ErrorLimit("excessive_buffer_overrun_errors", count=0, window=60.0),
    ErrorLimit("port_rcv_errors", count=1200, window=120.0, readings=3),
    ErrorLimit("port_xmit_discards", count=12000, window=120.0, readings=3),
    ErrorLimit("local_ack_timeout_err", count=120, window=120.0, readings=3),
    ErrorLimit("roce_slow_restart", count=1200, window=120.0, readings=3),
)
"""NVSentinel's default rates (its 120 symbol errors in an hour are the bit error rate that the InfiniBand specification
allows); those per second are measured over two minutes.

``rnr_nak_retry_err``, which NVSentinel treats as fatal at one, is excluded: it counts unavailable receivers, so every
restarted rank raises it on healthy NICs.
"""

COUNTERS = frozenset(limit.counter for limit in ERROR_LIMITS)
"""All counters that have a limit."""

QUIET = 600.0
"""Seconds within limits after which the errors are over: as long as gpud keeps its port observations."""


@dataclass(frozen=True, slots=True)
class CounterReading:
    """The counters of one port, read at ``at`` seconds. Unreadable ones are omitted."""

    at: float
    values: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class ErrorTrack:
    """The history of the counters of one port.

    ``values`` has the (time, value) of each counter's last reading, ``grown`` (time, growth) of each within its window.
    """

    at: float | None = None
    values: Mapping[str, tuple[float, int]] = field(default_factory=lambda: MappingProxyType({}))
    grown: Mapping[str, tuple[tuple[float, float], ...]] = field(default_factory=lambda: MappingProxyType({}))


def after_reading(track: ErrorTrack, reading: CounterReading) -> ErrorTrack:
    """Return the track after a reading; a reading that was already processed changes nothing.

    A counter that decreased was reset: it is counted from there.
    """
    if track.at is not None and reading.at <= track.at:
        return track
    grown = {
        limit.counter: tuple(
            (at, growth)
            for at, growth in (*track.grown.get(limit.counter, ()), (reading.at, _growth(track, reading, limit)))
            if growth > 0 and reading.at - at < limit.window
        )
        for limit in ERROR_LIMITS
    }
    return ErrorTrack(
        at=reading.at,
        values=MappingProxyType(
            {**track.values, **{counter: (reading.at, value) for counter, value in reading.values.items()}}
        ),
        grown=MappingProxyType({counter: grown[counter] for counter in grown if grown[counter]}),
    )


def _growth(track: ErrorTrack, reading: CounterReading, limit: ErrorLimit) -> float:
    """Return the growth in one window: over a longer time, in which the counter was not read, its mean."""
    if limit.counter not in track.values or limit.counter not in reading.values:
        return 0
    at, before = track.values[limit.counter]
    return (reading.values[limit.counter] - before) * min(1.0, limit.window / (reading.at - at))


def after_outage(track: ErrorTrack) -> ErrorTrack:
    """Return the track of a port that is down: counter growth until it works again comes from link training."""
    return replace(track, values=MappingProxyType({}))


def beyond_limits(track: ErrorTrack) -> tuple[str, ...]:
    """Return texts for the counters that grow faster than allowed."""
    return tuple(
        f"{limit.counter} grew by more than {limit.count} in {_span(limit.window)}"
        for limit in ERROR_LIMITS
        if (grown := track.grown.get(limit.counter, ()))
        and len(grown) >= limit.readings
        and sum(growth for _, growth in grown) > limit.count
    )


def _span(seconds: float) -> str:
    return f"{seconds / 3600:g} h" if seconds >= 3600 else f"{seconds / 60:g} min"
