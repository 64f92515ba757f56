"""Measure the cost of a process and its children: CPU time and memory, as the kernel counts them (proc(5))."""

import os
import time
from dataclasses import dataclass
from pathlib import Path

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MIB = 1024 * 1024
_SCHEDULED = 2  # CPUCLOCK_SCHED of Linux: the time that the scheduler gave to a process, in nanoseconds


@dataclass(frozen=True, slots=True)
class Footprint:
    """Hold CPU seconds and bytes of memory of a tree of processes at one moment (``time.monotonic``).

    ``resident`` counts shared pages once for each process; ``shared_out`` is all of them together, each page counted by
    its part (PSS).
    """

    at: float
    cpu_seconds: float
    resident: dict[str, int]
    shared_out: int

    def since(self, earlier: "Footprint") -> dict[str, object]:
        """Return the cost since then: per cent of one core, and MiB by process now."""
        busy = self.cpu_seconds - earlier.cpu_seconds
        return {
            "seconds": round(self.at - earlier.at, 1),
            "cpu_percent_of_a_core": round(100 * busy / (self.at - earlier.at), 3),
            "rss_mib": {name: round(size / _MIB, 1) for name, size in self.resident.items()},
            "pss_mib_total": round(self.shared_out / _MIB, 1),
        }


def of(pid: int) -> Footprint:
    """Measure a process with all its descendants."""
    tree = [pid, *_descendants(pid)]
    cpu = sum(_cpu_seconds(each) for each in tree)
    resident = {_name(each): _resident(each) for each in tree}
    return Footprint(time.monotonic(), cpu, resident, shared_out=sum(map(_shared_out, tree)))


def _descendants(pid: int) -> list[int]:
    found = []
    for children in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, children.read_text().split()):
            found += [child, *_descendants(child)]
    return found


def _cpu_seconds(pid: int) -> float:
    """Return the CPU time of a process. /proc has it in steps of 10 ms, which is much for a process at rest."""
    return time.clock_gettime(~pid << 3 | _SCHEDULED)  # as clock_getcpuclockid(3) makes it


def _resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE


def _shared_out(pid: int) -> int:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024


def _name(pid: int) -> str:
    command = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
    module = command[command.index("-m") + 1] if "-m" in command else command[0]
    return f"{module} {pid}"
