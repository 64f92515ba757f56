"""The rules for one link: a netdev, or a port of an RDMA device. Pure.

A link that has never been up on this boot was never cabled, or is unused: that is not a fault. A link that was up and
has no carrier is faulty, unless it was taken down administratively.
"""

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kubemend.agent.health.nic import hysteresis
from kubemend.agent.health.nic.hysteresis import FaultCheck
from kubemend.agent.model.findings import FindingKind


@dataclass(frozen=True, slots=True)
class LinkLimits:
    """The limits from which a link is faulty, and from which that is over. Times are in seconds.

    ``up_for``: 10, for which a link must be up again. Kernels report carrier changes at most once a second
    (``net/core/link_watch.c``), and one marginal link comes and goes every few seconds.
    ``link_training_timeout``: 30, which a link has after it was enabled, or its driver loaded, before a missing carrier
    is a fault: at 400 Gb/s it takes a good part of that. A link that loses its carrier has no such time.
    ``roce_down_delay``: 1.5, for which a RoCE port must be down. Netlink may report up to a second later that its
    netdev was taken down; a lost carrier of the netdev is reported immediately.
    ``flap_drops`` in ``flap_window``: 3 drops in 10 minutes. gpud counts 3 in its look-back, NVSentinel more than 2.
    ``flap_settle``: 10 minutes without a drop end the flapping. gpud keeps a drop as long, and flaps indefinitely.
    ``slow_for``: 10, for which a link must be slow, or not slow: a speed read while a link trains is not reliable.
    """

    up_for: float = 10.0
    link_training_timeout: float = 30.0
    roce_down_delay: float = 1.5
    flap_drops: int = 3
    flap_window: float = 600.0
    flap_settle: float = 600.0
    slow_for: float = 10.0


class LinkType(enum.Enum):
    """``ROCE`` is a port that follows its netdev: its drops and its speed are reported for the netdev."""

    NETDEV = "netdev"
    INFINIBAND = "infiniband"
    ROCE = "roce"

    @property
    def down(self) -> FindingKind:
        """The kind of fault of such a link when it is down."""
        return FindingKind.LINK_DOWN if self is LinkType.NETDEV else FindingKind.RDMA_PORT_DOWN

    @property
    def faults(self) -> tuple[FindingKind, ...]:
        """All kinds of faults that such a link can have."""
        if self is LinkType.ROCE:
            return (self.down,)
        return (self.down, FindingKind.LINK_FLAPPING, FindingKind.LINK_SLOW)


@dataclass(frozen=True, slots=True)
class LinkReading:
    """The current state of a link.

    ``state`` is the kernel's name for a port state (``INIT``). ``drops`` counts how often the link was lost since its
    driver was loaded, if it was read. ``speed`` is in Mb/s. ``serial`` changes when the driver recreates the link.
    """

    name: str
    type: LinkType
    up: bool
    admin_up: bool = True
    state: str = ""
    drops: int | None = None
    speed: int | None = None
    serial: int = 0


@dataclass(frozen=True, slots=True)
class LinkTrack:
    """The history of a link. ``was_up`` and ``best_speed`` hold for the boot, and outlive the agent."""

    was_up: bool = False
    best_speed: int | None = None
    last: LinkReading | None = None
    drops: int | None = None
    """The last count of drops that was read; some readings have none."""
    expected_from: float | None = None
    """The time until which it may still be coming up."""
    drop_times: tuple[float, ...] = ()
    flapping: bool = False


def after_reading(track: LinkTrack, reading: LinkReading, *, now: float, limits: LinkLimits) -> LinkTrack:
    """Return the track after a reading of the link. Processing the same reading twice changes nothing."""
    recreated = track.last is not None and track.last.serial != reading.serial
    lost = _lost(track, reading)
    is_quiet = now >= _quiet_from(track, limits=limits)
    times = (*track.drop_times, *[now] * min(lost, limits.flap_drops))[-limits.flap_drops :]
    many = len(times) == limits.flap_drops and now - times[0] <= limits.flap_window
    speeds = [speed for speed in (track.best_speed, reading.speed if reading.up else None) if speed is not None]
    return replace(
        track,
        was_up=track.was_up or reading.up,
        best_speed=max(speeds, default=None),
        last=reading,
        drops=reading.drops if reading.drops is not None or recreated else track.drops,
        expected_from=_expected_from(track, reading, now=now, limits=limits),
        drop_times=times,
        flapping=(track.flapping and not is_quiet) or (lost > 0 and many),
    )


def _lost(track: LinkTrack, reading: LinkReading) -> int:
    """Return how often the link was lost between two readings. A link taken down administratively was not lost."""
    last = track.last
    if last is None or last.serial != reading.serial or not (last.admin_up and reading.admin_up):
        return 0
    if track.drops is not None:  # a link with a counter is judged by it alone, even when this reading lacks the count
        return max(reading.drops - track.drops, 0) if reading.drops is not None else 0
    return int(last.up and not reading.up)


def _expected_from(track: LinkTrack, reading: LinkReading, *, now: float, limits: LinkLimits) -> float | None:
    if reading.up or not reading.admin_up:
        return None
    last = track.last
    if last is not None and (last.serial != reading.serial or not last.admin_up):
        return now + limits.link_training_timeout
    return track.expected_from


def _quiet_from(track: LinkTrack, *, limits: LinkLimits) -> float:
    return track.drop_times[-1] + limits.flap_settle if track.drop_times else 0.0


def checks(
    track: LinkTrack, *, emitted: Mapping[FindingKind, bool | None], usual: int | None, now: float, limits: LinkLimits
) -> dict[FindingKind, FaultCheck]:
    """Return the result of the track for each kind of fault.

    ``emitted`` gives the kinds that were emitted, ``usual`` is the speed of the link's peers (``usual_speed``).
    """
    if track.last is None:
        return {}
    seen = {
        track.last.type.down: _down(track, track.last, now=now, limits=limits),
        FindingKind.LINK_FLAPPING: _flapping(
            track, track.last, emitted=emitted.get(FindingKind.LINK_FLAPPING), now=now, limits=limits
        ),
        FindingKind.LINK_SLOW: _slow(track.last, best=track.best_speed, usual=usual, now=now, limits=limits),
    }
    return {kind: seen[kind] for kind in track.last.type.faults}


def _down(track: LinkTrack, link: LinkReading, *, now: float, limits: LinkLimits) -> FaultCheck:
    if link.up or not link.admin_up:
        return hysteresis.CLEAN
    if not track.was_up:
        return hysteresis.UNKNOWN  # a link that was never cabled looks the same as one that broke before the boot
    since = track.expected_from
    if link.type is LinkType.NETDEV:
        return FaultCheck(holds=True, text=f"{link.name} has no carrier; it was up on this boot", since=since)
    if link.type is LinkType.ROCE and since is None:
        since = now + limits.roce_down_delay
    text = f"{link.name} is {link.state or 'not active'}; it was active on this boot"
    return FaultCheck(holds=True, text=text, since=since)


def _flapping(
    track: LinkTrack, link: LinkReading, *, emitted: bool | None, now: float, limits: LinkLimits
) -> FaultCheck:
    last_drop = track.drop_times[-1] if track.drop_times else None
    if track.flapping and emitted is not True and now < _quiet_from(track, limits=limits):
        minutes = limits.flap_window / 60
        return FaultCheck(holds=True, text=f"{link.name} was lost {limits.flap_drops} times within {minutes:g} minutes")
    return FaultCheck(holds=False, since=last_drop)


def _slow(link: LinkReading, *, best: int | None, usual: int | None, now: float, limits: LinkLimits) -> FaultCheck:
    if not link.up or link.speed is None:
        return hysteresis.UNKNOWN
    since = now + limits.slow_for
    if best is not None and link.speed < best:
        return FaultCheck(
            holds=True, text=f"{link.name} runs at {link.speed} Mb/s; it had {best} on this boot", since=since
        )
    if usual is not None and link.speed < usual:
        return FaultCheck(holds=True, text=f"{link.name} runs at {link.speed} Mb/s, its peers at {usual}", since=since)
    return hysteresis.CLEAN


def usual_speed(speeds: Iterable[int]) -> int | None:
    """Return the speed of most of these links; None where there are fewer than three, or no speed has the majority.

    Of two links that differ, either may be right.
    """
    counts = Counter(speeds)
    if counts.total() < 3:
        return None
    speed, count = counts.most_common(1)[0]
    return speed if 2 * count > counts.total() else None
