"""The rules for all NICs of a node: a fold from readings to beginnings and ends of faults. Pure.

Faults are judged per link and emitted per NIC: one kind of fault on a NIC is emitted once, for any number of its
links.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from kubemend.agent.health.nic import hysteresis, links, rdma_errors
from kubemend.agent.health.nic.hysteresis import FaultCheck, FaultState
from kubemend.agent.health.nic.links import LinkLimits, LinkReading, LinkTrack, LinkType
from kubemend.agent.health.nic.nic_inventory_state import KnownNic, NicMemory
from kubemend.agent.health.nic.rdma_errors import CounterReading, ErrorTrack
from kubemend.agent.model.devices import PciAddress
from kubemend.agent.model.findings import FindingKind

KINDS = (
    FindingKind.NIC_LOST,
    FindingKind.LINK_DOWN,
    FindingKind.LINK_FLAPPING,
    FindingKind.LINK_SLOW,
    FindingKind.RDMA_PORT_DOWN,
    FindingKind.RDMA_ERRORS,
)
"""Every kind of fault that these rules emit."""

Key = tuple[FindingKind, str]
"""A kind of fault, and the name of its link.

Netdevs and ports (``mlx5_0/1``) cannot be confused, since no netdev's name contains a slash. The name for the NIC
itself is empty.
"""


@dataclass(frozen=True, slots=True)
class NicReading:
    """The current state of one NIC.

    ``scanned`` is False where sysfs could not be read. ``driver`` is "" where none is bound, None where the function is
    not on the bus. ``names`` are the existing links, ``links`` those with a known state.
    """

    pci: PciAddress
    scanned: bool
    driver: str | None = None
    model: str = ""
    names: frozenset[str] = frozenset()
    links: tuple[LinkReading, ...] = ()
    counters: Mapping[str, CounterReading] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class NicTrack:
    """The history of one NIC, and the texts emitted for it: "" means that a fault is over."""

    driver: str = ""
    last: NicReading | None = None
    links: Mapping[str, LinkTrack] = field(default_factory=lambda: MappingProxyType({}))
    errors: Mapping[str, ErrorTrack] = field(default_factory=lambda: MappingProxyType({}))
    fault_states: Mapping[Key, FaultState] = field(default_factory=lambda: MappingProxyType({}))
    emitted: Mapping[FindingKind, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class NicChange:
    """A fault of a NIC begins or changes; ``text`` None means that it is over."""

    pci: PciAddress
    kind: FindingKind
    text: str | None


Nics = Mapping[PciAddress, NicTrack]


def begun(memory: NicMemory) -> Nics:
    """Return the initial state of an agent with this memory of the boot."""
    return MappingProxyType(
        {
            pci: NicTrack(
                driver=nic.driver,
                links=MappingProxyType(
                    {name: LinkTrack(was_up=True, best_speed=speed) for name, speed in nic.links.items()}
                ),
            )
            for pci, nic in memory.nics.items()
        }
    )


def known(state: Nics, *, boot_id: str) -> NicMemory:
    """Return the memory to keep for the next agent on this boot."""
    nics = {
        pci: KnownNic(
            driver=track.driver,
            links=MappingProxyType({name: link.best_speed for name, link in track.links.items() if link.was_up}),
        )
        for pci, track in state.items()
    }
    return NicMemory(boot_id, MappingProxyType(nics))


def due(state: Nics) -> float | None:
    """Return when a fault begins or ends without another reading, in the seconds of ``now``; None: never."""
    return hysteresis.earliest(
        fault_state.due for track in state.values() for fault_state in track.fault_states.values()
    )


def without(state: Nics, pci: PciAddress) -> Nics:
    """Return the state without a NIC. If it is present, its history starts again."""
    return MappingProxyType({each: track for each, track in state.items() if each != pci})


def observe(
    state: Nics, readings: Iterable[NicReading], *, now: float, limits: LinkLimits
) -> tuple[Nics, tuple[NicChange, ...]]:
    """Return the state after time has passed and these readings were made, and the changes to emit, in order."""
    changes: list[NicChange] = []
    tracks = {pci: _emit(_settled(track, now=now), pci=pci, changes=changes) for pci, track in state.items()}
    for reading in readings:
        before = tracks.get(reading.pci, NicTrack())
        tracks[reading.pci] = _after_reading(before, reading, now=now, limits=limits)
    usual = _usual_speeds(tracks.values())
    for pci, track in tracks.items():
        judged = _judged(track, usual=usual, now=now, limits=limits)
        tracks[pci] = _emit(judged, pci=pci, changes=changes)
    return MappingProxyType(tracks), tuple(changes)


def _settled(track: NicTrack, *, now: float) -> NicTrack:
    fault_states = {key: hysteresis.settled(fault_state, now=now) for key, fault_state in track.fault_states.items()}
    return replace(track, fault_states=MappingProxyType(fault_states))


def _after_reading(track: NicTrack, reading: NicReading, *, now: float, limits: LinkLimits) -> NicTrack:
    tracks = dict(track.links)
    for link in reading.links:
        tracks[link.name] = links.after_reading(tracks.get(link.name, LinkTrack()), link, now=now, limits=limits)
    errors = {
        link.name: rdma_errors.after_outage(track.errors[link.name])
        for link in reading.links
        if link.name in track.errors and not link.up
    }
    for name, counters in reading.counters.items():
        errors[name] = rdma_errors.after_reading(track.errors.get(name, ErrorTrack()), counters)
    return replace(
        track,
        driver=track.driver or reading.driver or "",
        last=reading,
        links=MappingProxyType(tracks),
        errors=MappingProxyType({**track.errors, **errors}),
    )


def _usual_speeds(tracks: Iterable[NicTrack]) -> Mapping[tuple[str, LinkType], int]:
    speeds: defaultdict[tuple[str, LinkType], list[int]] = defaultdict(list)
    for track in tracks:
        for link in _seen(track):
            if link.up and link.speed is not None and track.last is not None:
                speeds[track.last.model, link.type].append(link.speed)
    return {peers: speed for peers, of in speeds.items() if (speed := links.usual_speed(of)) is not None}


def _seen(track: NicTrack) -> tuple[LinkReading, ...]:
    return track.last.links if track.last is not None and _is_there(track, track.last) else ()


def _is_there(track: NicTrack, reading: NicReading) -> bool:
    return not reading.scanned or (bool(reading.driver) and reading.driver == track.driver)


def _judged(track: NicTrack, *, usual: Mapping[tuple[str, LinkType], int], now: float, limits: LinkLimits) -> NicTrack:
    """Return the track with every fault's state updated."""
    if track.last is None:
        return track
    seen = dict(_checks(track, track.last, usual=usual, now=now, limits=limits))
    fault_states = {
        key: hysteresis.after(
            track.fault_states.get(key, FaultState()),
            seen.get(key, hysteresis.UNKNOWN),
            now=now,
            clean_for=_clean_for(key[0], limits),
        )
        for key in track.fault_states.keys() | seen.keys()
    }
    return _without_former(replace(track, fault_states=MappingProxyType(fault_states)), track.last)


def _checks(
    track: NicTrack,
    reading: NicReading,
    *,
    usual: Mapping[tuple[str, LinkType], int],
    now: float,
    limits: LinkLimits,
) -> Iterator[tuple[Key, FaultCheck]]:
    yield (FindingKind.NIC_LOST, ""), _presence(track, reading)
    for link in _seen(track):
        emitted = {
            kind: fault_state.emitted for (kind, name), fault_state in track.fault_states.items() if name == link.name
        }
        peers = usual.get((reading.model, link.type))
        checks = links.checks(track.links[link.name], emitted=emitted, usual=peers, now=now, limits=limits)
        yield from (((kind, link.name), check) for kind, check in checks.items())
    for name in reading.counters:
        beyond = rdma_errors.beyond_limits(track.errors[name])
        text = f"{name}: {', '.join(beyond)}"
        yield (FindingKind.RDMA_ERRORS, name), FaultCheck(holds=True, text=text) if beyond else hysteresis.CLEAN


def _presence(track: NicTrack, reading: NicReading) -> FaultCheck:
    """Judge whether the NIC is present. A vanished path in sysfs is evidence, not a failed reading."""
    if not reading.scanned:
        return hysteresis.UNKNOWN
    if reading.driver is None:
        return FaultCheck(holds=True, text="it was present on this boot, and is no longer on the PCI bus")
    if not reading.driver:
        return FaultCheck(holds=True, text=f"its driver {track.driver} was unbound from it")
    if reading.driver != track.driver:
        return FaultCheck(holds=True, text=f"it is bound to {reading.driver}; it was bound to {track.driver}")
    return hysteresis.CLEAN


def _clean_for(kind: FindingKind, limits: LinkLimits) -> float:
    return {
        FindingKind.LINK_FLAPPING: limits.flap_settle,
        FindingKind.LINK_SLOW: limits.slow_for,
        FindingKind.RDMA_ERRORS: rdma_errors.QUIET,
    }.get(kind, limits.up_for)


def _without_former(track: NicTrack, reading: NicReading) -> NicTrack:
    """Forget links that the NIC now has under another name, once a link of that sort is known to be healthy.

    A netdev that alone was moved into a pod's network namespace is not forgotten.
    """
    if not reading.scanned or not _is_there(track, reading):
        return track
    well = {
        "/" in name
        for (kind, name), fault_state in track.fault_states.items()
        if name in reading.names and kind in (FindingKind.LINK_DOWN, FindingKind.RDMA_PORT_DOWN)
        if fault_state.emitted is False
    }
    former = {name for name in track.links if name not in reading.names and ("/" in name) in well}
    if not former:
        return track
    return replace(
        track,
        links=MappingProxyType({name: link for name, link in track.links.items() if name not in former}),
        errors=MappingProxyType({name: errors for name, errors in track.errors.items() if name not in former}),
        fault_states=MappingProxyType({key: held for key, held in track.fault_states.items() if key[1] not in former}),
    )


def _emit(track: NicTrack, *, pci: PciAddress, changes: list[NicChange]) -> NicTrack:
    """Return the track after appending the changes of the NIC as a whole to ``changes``."""
    emitted = dict(track.emitted)
    for kind in KINDS:
        text = _text(track, kind)
        if text is not None and emitted.get(kind) != text:
            emitted[kind] = text
            changes.append(NicChange(pci, kind, text or None))
    return replace(track, emitted=MappingProxyType(emitted)) if emitted != track.emitted else track


def _text(track: NicTrack, kind: FindingKind) -> str | None:
    """Return the text of a kind that holds, "" where none does, and None where that is still unknown."""
    mine = {name: fault_state for (of, name), fault_state in track.fault_states.items() if of is kind}
    if held := sorted(fault_state.text for fault_state in mine.values() if fault_state.emitted):
        return "; ".join(held)
    proven = [fault_state.emitted is False for name, fault_state in mine.items() if not _never_up(track, name)]
    return "" if proven and all(proven) else None


def _never_up(track: NicTrack, name: str) -> bool:
    return name in track.links and not track.links[name].was_up
