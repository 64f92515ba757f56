"""Decide whether the old process has left its devices and freed their memory. Pure: listings in, a result out.

Containers may share a GPU (time slicing, MPS, MIG). So the check considers only processes of the replaced containers,
and used memory that no listed process accounts for: allocations by other containers in the meantime change neither.
Where the driver does not report a process's memory, the list of processes alone decides.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart.verification import Check, CheckState

CHECK = "devices-free"
_GIB = 1 << 30


class ReleaseState(enum.Enum):
    """The state of the old process on its devices. The values of failures are reasons of the pod's condition.

    ``LEFTOVER``: a process of the old container is still listed, dead or alive. ``STUCK``: one is alive in a state in
    which no signal reaches it. ``MEMORY_HELD``: all have gone, but not their memory. ``UNKNOWN``: the driver did not
    answer.
    """

    FREE = "Free"
    LEFTOVER = "DeviceLeftover"
    STUCK = "Stuck"
    MEMORY_HELD = "DeviceMemoryHeld"
    UNKNOWN = "Unknown"

    @property
    def is_settled(self) -> bool:
        """Return whether there is nothing to wait for."""
        return self in (ReleaseState.FREE, ReleaseState.UNKNOWN)


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process that the driver lists on a device; ``used`` in bytes, None if the driver does not report it."""

    pid: int
    used: int | None


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """The processes on one device, by the driver; ``memory_used`` in bytes, None if it could not be read."""

    processes: tuple[ProcessUse, ...]
    memory_used: int | None


@dataclass(frozen=True, slots=True)
class Process:
    """Facts about a listed process from /proc: its start time (seconds since boot), and its container, if any."""

    started: float
    container: ContainerId | None


@dataclass(frozen=True, slots=True)
class DeviceListing:
    """One listing. ``devices`` lacks those that did not answer, ``processes`` those that do not exist (any more)."""

    devices: Mapping[DeviceId, DeviceUse]
    processes: Mapping[int, Process]


@dataclass(frozen=True, slots=True)
class Held:
    """What the old containers had on one device before they were stopped.

    ``pids`` maps each process to its start time, None for one that had died already. ``memory`` is their memory and
    ``unaccounted`` the used memory that no listed process accounts for (bytes); None if the driver does not report it.
    """

    device: DeviceId
    pids: Mapping[int, float | None]
    memory: int | None
    unaccounted: int | None


@dataclass(frozen=True, slots=True)
class ReleaseCheck:
    """The result, with details for people. ``pids`` are the processes that are still listed, by device."""

    verdict: ReleaseState
    detail: str = ""
    pids: Mapping[DeviceId, frozenset[int]] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much more memory may be in use afterwards than before, in bytes, or as a share of the old processes' memory.

    The driver's own bookkeeping changes by some tens of MiB as contexts come and go.
    """

    floor: int = 256 << 20
    share: float = 0.02

    def of(self, memory: int) -> float:
        """Return the tolerance for an amount of memory, in bytes."""
        return max(self.floor, self.share * memory)


_TOLERANCE = Tolerance()


def remember(before: DeviceListing, *, old: frozenset[ContainerId]) -> tuple[Held, ...]:
    """Return what the ``old`` containers have on the devices; a device on which they have nothing is left out.

    A listed process that has died belongs to no container any more. It counts as theirs if none of theirs is alive:
    then they have died by themselves, and left it.
    """
    theirs = {pid for pid, process in before.processes.items() if process.container in old}
    held = []
    for device, use in before.devices.items():
        dead = {each.pid for each in use.processes if each.pid not in before.processes} if not theirs else set()
        mine = [each for each in use.processes if each.pid in theirs or each.pid in dead]
        if mine:
            held.append(
                Held(
                    device=device,
                    pids={each.pid: _started(before, each.pid) for each in mine},
                    memory=_total(mine),
                    unaccounted=_unaccounted(use),
                )
            )
    return tuple(held)


def remember_late(
    listed: DeviceListing | None,
    recorded: Mapping[int, Process],
    *,
    devices: frozenset[DeviceId],
    old: frozenset[ContainerId],
) -> tuple[Held, ...]:
    """Return what the old containers had on devices whose processes the driver did not list before the stop.

    ``listed`` is what it has listed since; None: nothing. ``recorded`` are processes that had device files open before
    the stop: each counts for all of the devices. Memory is left out, because it may have been freed in part by then.
    """
    known = {pid: process for pid, process in recorded.items() if process.container in old}
    late: dict[DeviceId, Mapping[int, float | None]] = {}
    if listed is not None:
        seen = DeviceListing(listed.devices, {**listed.processes, **known})
        late = {item.device: item.pids for item in remember(seen, old=old)}
    pids = {pid: process.started for pid, process in known.items()}
    held = [Held(device, {**late.get(device, {}), **pids}, None, None) for device in sorted(devices)]
    return tuple(item for item in held if item.pids)


def judge(
    held: Sequence[Held],
    now: DeviceListing | None,
    *,
    old: frozenset[ContainerId],
    silent: frozenset[DeviceId] = frozenset(),
) -> ReleaseCheck:
    """Return whether the devices are free of the old containers' processes and memory.

    ``now`` None means that the driver did not answer; ``silent`` are devices that did not answer before the stop.
    """
    unasked = silent | frozenset(item.device for item in held if now is None or item.device not in now.devices)
    if now is None or any(item.device in unasked for item in held):
        return _unknown(unasked)
    left = {item.device: frozenset(_left(item, now, old=old)) for item in held}
    if any(left.values()):
        listed = "; ".join(f"{_pids(pids)} on {device}" for device, pids in sorted(left.items()) if pids)
        return ReleaseCheck(ReleaseState.LEFTOVER, f"still listed: {listed}", MappingProxyType(left))
    kept = [f"{excess / _GIB:.1f} GiB on {item.device}" for item in held if (excess := _excess(item, now))]
    if kept:
        return ReleaseCheck(
            ReleaseState.MEMORY_HELD, f"its processes have ended, but their memory is not freed: {'; '.join(kept)}"
        )
    if silent:
        return _unknown(silent)
    return ReleaseCheck(ReleaseState.FREE, "" if held else "none of its processes was on a device")


def _unknown(unasked: frozenset[DeviceId]) -> ReleaseCheck:
    return ReleaseCheck(
        ReleaseState.UNKNOWN, f"the driver did not list the processes on {', '.join(sorted(unasked)) or 'its devices'}"
    )


def overdue(judgement: ReleaseCheck, *, stuck: frozenset[int]) -> ReleaseCheck:
    """Return the result when the time is up; ``stuck`` are processes that no signal reaches."""
    held_up = {device: pids & stuck for device, pids in judgement.pids.items() if pids & stuck}
    if judgement.verdict is not ReleaseState.LEFTOVER or not held_up:
        return judgement
    where = "; ".join(f"{_pids(pids)} on {device}" for device, pids in sorted(held_up.items()))
    return ReleaseCheck(
        ReleaseState.STUCK,
        f"cannot be killed, because it waits inside the kernel (state D): {where}",
        MappingProxyType(held_up),
    )


def worst(judgements: Sequence[ReleaseCheck]) -> ReleaseCheck:
    """Return the worst of the results; FREE if there are none."""
    return max(judgements, key=lambda each: _GRAVITY.index(each.verdict), default=ReleaseCheck(ReleaseState.FREE))


def check(judgement: ReleaseCheck) -> Check:
    """Return the result as one check of a restart."""
    state = {ReleaseState.FREE: CheckState.PASSED, ReleaseState.UNKNOWN: CheckState.UNKNOWN}.get(
        judgement.verdict, CheckState.FAILED
    )
    reason = judgement.verdict.value if state is CheckState.FAILED else ""
    return Check(CHECK, state, judgement.detail, reason=reason)


def unknown_devices() -> Check:
    """Return the check of a container whose devices are unknown."""
    return Check(CHECK, CheckState.UNKNOWN, "its devices are unknown, because kubelet did not answer")


_GRAVITY = (
    ReleaseState.FREE,
    ReleaseState.UNKNOWN,
    ReleaseState.MEMORY_HELD,
    ReleaseState.LEFTOVER,
    ReleaseState.STUCK,
)


def left(held: Sequence[Held], now: DeviceListing | None) -> int:
    """Return how much memory the old processes still have on the devices, in bytes; 0 if that is unknown, or none.

    Where the driver does not report it by process, a device's memory in use counts while one of them is listed.
    """
    total = 0
    for item in held:
        use = now.devices.get(item.device) if now is not None else None
        listed = [each for each in use.processes if each.pid in item.pids] if use is not None else []
        if use is None or not listed:
            continue
        by_process = _total(listed)
        total += by_process if by_process is not None else use.memory_used or 0
    return total


def in_use(seen: DeviceListing | None) -> int:
    """Return how much memory is in use on the devices that answered, in bytes; 0 if none reports it."""
    return sum(use.memory_used or 0 for use in seen.devices.values()) if seen is not None else 0


def _left(held: Held, now: DeviceListing, *, old: frozenset[ContainerId]) -> Iterator[int]:
    """Yield the old containers' processes that are still listed; a pid may have been reused since."""
    for each in now.devices[held.device].processes:
        process = now.processes.get(each.pid)
        remembered = each.pid in held.pids and (process is None or process.started == held.pids[each.pid])
        if remembered or (process is not None and process.container in old):
            yield each.pid


def _excess(held: Held, now: DeviceListing) -> int:
    """Return by how many bytes unaccounted memory has grown; 0 if that is within the tolerance."""
    unaccounted = _unaccounted(now.devices[held.device])
    if held.memory is None or held.unaccounted is None or unaccounted is None:
        return 0
    excess = unaccounted - held.unaccounted
    return excess if excess > _TOLERANCE.of(held.memory) else 0


def _unaccounted(use: DeviceUse) -> int | None:
    listed = _total(use.processes)
    return use.memory_used - listed if use.memory_used is not None and listed is not None else None


def _total(processes: Sequence[ProcessUse]) -> int | None:
    used = [each.used for each in processes]
    return sum(size for size in used if size is not None) if None not in used else None


def _started(seen: DeviceListing, pid: int) -> float | None:
    process = seen.processes.get(pid)
    return process.started if process is not None else None


def _pids(pids: frozenset[int]) -> str:
    return f"pid {', '.join(str(pid) for pid in sorted(pids))}"
