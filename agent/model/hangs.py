"""A hang: a container that has stopped touching its heartbeat file."""

from dataclasses import dataclass
from typing import Final

from agent.model.workloads import ContainerId, ContainerRef

CODE: Final = "Hung"
"""The cause of a restart for a hang, in KUBEMEND_RESTART_REASON and in metrics."""


@dataclass(frozen=True, slots=True)
class Thread:
    """What one thread was doing. ``state`` is the kernel's letter (proc_pid_stat(5)): R runs, S sleeps, D cannot be
    killed while it waits. ``waits_in`` is the kernel function, ``stack`` the uppermost ones; empty: the kernel does not
    say. ``used`` is the CPU time that it has used, in the kernel's ticks, 0 where nobody asked. Pids are the node's."""

    pid: int
    tid: int
    name: str
    state: str
    waits_in: str = ""
    stack: tuple[str, ...] = ()
    used: int = 0

    def __str__(self) -> str:
        where = f" in {self.waits_in}" if self.waits_in else ""
        return f"{self.name} ({self.tid}) {self.state}{where}"


@dataclass(frozen=True, slots=True)
class Hang:
    """One container's silence. ``silent`` and ``timeout`` are seconds, ``observed_at`` is Unix time.

    ``threads`` are the most telling ones, ``doing`` says in a few words what all of them were at.
    """

    target: ContainerRef
    container_id: ContainerId
    file: str
    silent: float
    timeout: float
    observed_at: float
    doing: str
    threads: tuple[Thread, ...] = ()
