"""A hang: a container that has stopped touching its heartbeat file."""

from dataclasses import dataclass
from typing import Final

from kubemend.agent.model.workloads import ContainerId, ContainerRef

CODE: Final = "Hung"
"""Cause code of a restart for a hang, in KUBEMEND_RESTART_REASON and in metrics."""


@dataclass(frozen=True, slots=True)
class Thread:
    """The state of one thread.

    ``state`` is the kernel's letter (proc_pid_stat(5)): R runs, S sleeps, D cannot be killed while it waits.
    ``waits_in`` is the kernel function and ``stack`` the innermost kernel functions; both are empty where the kernel
    does not give them. ``used`` is the thread's CPU time in kernel ticks, 0 where it was not read. Pids are those of
    the node's PID namespace.
    """

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
    """A container whose heartbeat timed out.

    ``silent`` and ``timeout`` are seconds, ``observed_at`` is Unix time. ``threads`` are the most informative threads;
    ``doing`` is a short summary of all of them.
    """

    target: ContainerRef
    container_id: ContainerId
    file: str
    silent: float
    timeout: float
    observed_at: float
    doing: str
    threads: tuple[Thread, ...] = ()
