"""What /proc says about a process: which container it runs in, since when, on which CPUs, and when it ends."""

import asyncio
import os
from dataclasses import dataclass
from pathlib import Path

from agent.health import cgroup_paths
from agent.model.workloads import ContainerId
from agent.sources import thread_states
from common import root_mounts

_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
_START_TIME_FIELD = 22  # proc_pid_stat(5), counted from 1


@dataclass(frozen=True, slots=True)
class ProcessFacts:
    """``container`` is None for a process outside all containers; ``started`` is in seconds since boot."""

    pid: int
    container: ContainerId | None
    started: float


@dataclass(frozen=True, slots=True)
class ProcFs:
    """Reads the host's /proc (the agent runs with hostPID)."""

    root: Path = Path("/proc")
    cgroup_root: Path = Path("/sys/fs/cgroup")

    def look(self, pid: int) -> ProcessFacts | None:
        """Return the facts about a process, or None when there is no such process (any more)."""
        try:
            cgroup = (self.root / str(pid) / "cgroup").read_text()
            stat = (self.root / str(pid) / "stat").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return None
        after_name = stat[stat.rindex(")") + 2 :].split()  # the name may hold blanks and brackets
        ticks = int(after_name[_START_TIME_FIELD - 3])
        return ProcessFacts(pid=pid, container=cgroup_paths.container_id(cgroup), started=ticks / _TICKS_PER_SECOND)

    def root_kind(self, pid: int) -> str | None:
        """Return the kind of file system, such as ``overlay``, that the process's root is; None: it cannot be told."""
        return root_mounts.kind(pid, proc=self.root)

    def cpuset(self, pid: int) -> str | None:
        """Return the CPUs that the process's cgroup allows, as the kernel lists them; None when it cannot be told."""
        try:
            lines = (self.root / str(pid) / "cgroup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return None
        for line in lines:
            hierarchy, controllers, path = line.split(":", 2)
            relative = path.lstrip("/")
            if "cpuset" in controllers.split(","):
                file = self.cgroup_root / "cpuset" / relative / "cpuset.cpus"
            elif hierarchy == "0" and not controllers:
                file = self.cgroup_root / relative / "cpuset.cpus"
            else:
                continue
            try:
                if text := file.read_text().strip():
                    return text
            except OSError:
                continue
        return None

    def is_stuck(self, pid: int) -> bool:
        """Whether any of its threads is in uninterruptible sleep (state D): then no signal reaches it.

        Each thread is looked at: of a process that is being killed the first one may be a zombie already.
        """
        return any(thread.state == "D" for thread in thread_states.look(self.root, [pid]))

    async def ended(self, pid: int) -> None:
        """Wait until the process has ended; return at once when there is none. Needs no polling (pidfd)."""
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        loop = asyncio.get_running_loop()
        end = asyncio.Event()
        loop.add_reader(descriptor, end.set)
        try:
            await end.wait()
        finally:
            loop.remove_reader(descriptor)
            os.close(descriptor)
