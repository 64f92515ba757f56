"""Decide whether a pod's memory limit leaves room for a held successor next to the old container. Pure.

A held successor has executed nothing of its image. It takes only the memory of the runtime's init process before its
execve. Measured with runc 1.1.5 on Linux 6.18: 2.5 MB in its container's cgroup, 0.4 MB of it for the kernel. Near the
limit even this could wake the OOM killer, which would end the frozen old container while kubelet sees no newer one.
"""

from dataclasses import dataclass
from typing import Final

HELD_SUCCESSOR_BYTES: Final = 16 << 20
"""Memory allowed for a held successor. Well above the measured amount, because runtimes that copy their own program
into memory (runc's protection against CVE-2019-5736) take some 10 MB more."""

IMPORTING_SUCCESSOR_BYTES: Final = 2 << 30
"""Memory allowed for the imports of a successor (``agent.restart.overlap``). A Python process that has imported PyTorch
or JAX with what belongs to them takes 0.4 to 1.5 GiB, before it uses a device."""

_MEBI: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class PodMemory:
    """A pod's cgroup in bytes: its limit, what it uses, and how much of that is page cache, which can be freed."""

    limit: int
    used: int
    page_cache: int = 0


def has_room(memory: PodMemory | None, *, needed: int) -> bool:
    """Return whether a successor may take that many bytes next to the old container. ``memory``: ``no_room_reason``."""
    return memory is None or _free(memory) >= needed


def no_room_reason(memory: PodMemory | None) -> str:
    """Return why a successor cannot be held next to the old container; empty if it can.

    ``memory`` None: the pod has no limit, or the limit cannot be read. Then the successor may be held.
    """
    if memory is None or has_room(memory, needed=HELD_SUCCESSOR_BYTES):
        return ""
    return (
        f"the pod is {max(_free(memory), 0) // _MEBI} MiB below its memory limit of {memory.limit // _MEBI} MiB, and a "
        f"successor held next to the old container may take {HELD_SUCCESSOR_BYTES // _MEBI} MiB; raise the limit"
    )


def _free(memory: PodMemory) -> int:
    return memory.limit - (memory.used - min(memory.page_cache, memory.used))
