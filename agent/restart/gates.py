"""Has the old process left its devices, and is its memory free? Pure: what was listed before and now in, a verdict out.

Containers may share a GPU (time slicing, MPS, MIG). So what counts is who was there of the containers that are
replaced, and memory in use that no listed process accounts for: what others allocate or free meanwhile changes
neither. Where the driver does not say how much a process uses, the list of processes alone decides.
"""

import enum
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from agent.model.devices import GpuUuid
from agent.model.workloads import ContainerId
from agent.restart.verification import Check, CheckState

CHECK = "devices-free"
_GIB = 1 << 30


class Verdict(enum.Enum):
    """What became of the old process on its devices. The words of those that fail are reasons of the pod's condition.

    ``LEFTOVER``: a process of the old container is still listed, dead or alive. ``STUCK``: one is alive in a state in
    which no signal reaches it. ``MEMORY_HELD``: all have gone, their memory has not. ``UNKNOWN``: nobody could say.
    """

    FREE = "Free"
    LEFTOVER = "DeviceLeftover"
    STUCK = "Stuck"
    MEMORY_HELD = "DeviceMemoryHeld"
    UNKNOWN = "Unknown"

    @property
    def is_settled(self) -> bool:
        """Whether there is nothing to wait for."""
        return self in (Verdict.FREE, Verdict.UNKNOWN)


@dataclass(frozen=True, slots=True)
class ProcessUse:
    """A process that the driver lists on a device; ``used`` in bytes, None where the driver does not say."""

    pid: int
    used: int | None


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Who is on one device, by the driver; ``memory_used`` in bytes, None where that could not be read."""

    processes: tuple[ProcessUse, ...]
    memory_used: int | None


@dataclass(frozen=True, slots=True)
class Process:
    """What /proc says of a listed process: since when it runs (seconds since boot), and in which container, if any."""

    started: float
    container: ContainerId | None


@dataclass(frozen=True, slots=True)
class Seen:
    """One look. ``devices`` lacks those that could not be asked, ``processes`` those that do not exist (any more)."""

    devices: Mapping[GpuUuid, DeviceUse]
    processes: Mapping[int, Process]


@dataclass(frozen=True, slots=True)
class Held:
    """What the old containers had on one device before they were stopped.

    ``pids`` maps each process to its start time, None for one that had died already. ``memory`` is what they used and
    ``unaccounted`` what was in use beside all listed processes (bytes); None where the driver does not say.
    """

    device: GpuUuid
    pids: Mapping[int, float | None]
    memory: int | None
    unaccounted: int | None


@dataclass(frozen=True, slots=True)
class Judgement:
    """The verdict and, for people, why. ``pids`` are the processes that are still listed, by device."""

    verdict: Verdict
    detail: str = ""
    pids: Mapping[GpuUuid, frozenset[int]] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Tolerance:
    """How much more memory may be in use afterwards than before, in bytes, or as a share of what the old ones used.

    The driver's own bookkeeping changes by some tens of MiB as contexts come and go.
    """

    floor: int = 256 << 20
    share: float = 0.02

    def of(self, memory: int) -> float:
        """Return it for so much memory."""
        return max(self.floor, self.share * memory)


_TOLERANCE = Tolerance()


def remember(before: Seen, *, old: frozenset[ContainerId]) -> tuple[Held, ...]:
    """Return what the ``old`` containers have on the devices; a device on which they have nothing is left out.

    A listed process that has died belongs to no container any more. It is taken for the old ones' where none of theirs
    is alive: then they have died by themselves, and left it.
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


def judge(
    held: Sequence[Held],
    now: Seen | None,
    *,
    old: frozenset[ContainerId],
    silent: frozenset[GpuUuid] = frozenset(),
) -> Judgement:
    """Return whether the devices are free of what was held on them.

    ``now`` None means that the driver could not be asked; ``silent`` are devices that did not answer before the stop.
    """
    unasked = silent | frozenset(item.device for item in held if now is None or item.device not in now.devices)
    if now is None or any(item.device in unasked for item in held):
        return _unknown(unasked)
    left = {item.device: frozenset(_left(item, now, old=old)) for item in held}
    if any(left.values()):
        listed = "; ".join(f"{_pids(pids)} on {device}" for device, pids in sorted(left.items()) if pids)
        return Judgement(Verdict.LEFTOVER, f"still listed: {listed}", MappingProxyType(left))
    kept = [f"{excess / _GIB:.1f} GiB on {item.device}" for item in held if (excess := _excess(item, now))]
    if kept:
        return Judgement(Verdict.MEMORY_HELD, f"its processes have gone, their memory has not: {'; '.join(kept)}")
    if silent:
        return _unknown(silent)
    return Judgement(Verdict.FREE, "" if held else "no process of it was on a device")


def _unknown(unasked: frozenset[GpuUuid]) -> Judgement:
    return Judgement(Verdict.UNKNOWN, f"the driver did not say who is on {', '.join(sorted(unasked)) or 'its devices'}")


def overdue(judgement: Judgement, *, stuck: frozenset[int]) -> Judgement:
    """Return the judgement when no more time is left; ``stuck`` are processes that no signal reaches."""
    held_up = {device: pids & stuck for device, pids in judgement.pids.items() if pids & stuck}
    if judgement.verdict is not Verdict.LEFTOVER or not held_up:
        return judgement
    where = "; ".join(f"{_pids(pids)} on {device}" for device, pids in sorted(held_up.items()))
    return Judgement(
        Verdict.STUCK,
        f"cannot be killed, for it waits inside the kernel (state D): {where}",
        MappingProxyType(held_up),
    )


def worst(judgements: Sequence[Judgement]) -> Judgement:
    """Return the gravest of them; without any there was nothing to wait for."""
    return max(judgements, key=lambda each: _GRAVITY.index(each.verdict), default=Judgement(Verdict.FREE))


def check(judgement: Judgement) -> Check:
    """Return the judgement as one check of a restart."""
    state = {Verdict.FREE: CheckState.PASSED, Verdict.UNKNOWN: CheckState.UNKNOWN}.get(
        judgement.verdict, CheckState.FAILED
    )
    reason = judgement.verdict.value if state is CheckState.FAILED else ""
    return Check(CHECK, state, judgement.detail, reason=reason)


def unknown_devices() -> Check:
    """Return the check of a container of which it is not known which devices it holds."""
    return Check(CHECK, CheckState.UNKNOWN, "kubelet could not be asked which devices it holds")


_GRAVITY = (Verdict.FREE, Verdict.UNKNOWN, Verdict.MEMORY_HELD, Verdict.LEFTOVER, Verdict.STUCK)


def in_use(seen: Seen | None) -> int:
    """Return how much memory is in use on the devices that answered, in bytes; 0 where none says so."""
    return sum(use.memory_used or 0 for use in seen.devices.values()) if seen is not None else 0


def _left(held: Held, now: Seen, *, old: frozenset[ContainerId]) -> Iterator[int]:
    """Yield the old containers' processes that are still listed; a pid can have been given to another one since."""
    for each in now.devices[held.device].processes:
        process = now.processes.get(each.pid)
        remembered = each.pid in held.pids and (process is None or process.started == held.pids[each.pid])
        if remembered or (process is not None and process.container in old):
            yield each.pid


def _excess(held: Held, now: Seen) -> int:
    """Return by how many bytes more memory than before has no owner; 0 when that is within the tolerance."""
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


def _started(seen: Seen, pid: int) -> float | None:
    process = seen.processes.get(pid)
    return process.started if process is not None else None


def _pids(pids: frozenset[int]) -> str:
    return f"pid {', '.join(str(pid) for pid in sorted(pids))}"
