"""What a container's threads are doing, for people who want to know why it hangs. Reads /proc; nothing of it waits."""

import itertools
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from agent.model.hangs import Thread
from common import kernel_files

STOPPED = ("T", "t")
"""States of a thread that somebody has stopped by a signal, or holds in a debugger (proc_pid_stat(5))."""

_MOST_THREADS = 1024
_MOST_TELLING = 8
_FRAMES = 5
_TELLING = ("D", "R")
_USED = slice(14 - 4, 16 - 4)  # utime and stime: proc_pid_stat(5) counts from 1, and the rest begins with field 4
_NOWHERE = ("0", "")  # wchan of a thread that runs, or that we may not ask


def look(proc: Path, pids: Iterable[int]) -> tuple[Thread, ...]:
    """Return the threads of processes, each process's main thread first. Raises OSError."""
    threads = (thread for pid in sorted(pids) for thread in _threads(proc, pid))
    return tuple(itertools.islice(threads, _MOST_THREADS))


def in_full(proc: Path, pids: Iterable[int]) -> tuple[Thread, ...]:
    """Return the threads with the CPU time that they have used, and where those wait that cannot be killed.

    Two looks are the same when nothing has moved in between. Raises OSError.
    """
    threads = (thread for pid in sorted(pids) for thread in _threads(proc, pid, timed=True))
    found = tuple(itertools.islice(threads, _MOST_THREADS))
    return tuple(_with_place(proc, each) if each.state == _TELLING[0] else each for each in found)


def are_stopped(threads: Iterable[Thread]) -> bool:
    """Whether somebody has stopped any of them, or holds it in a debugger."""
    return any(thread.state in STOPPED for thread in threads)


def telling(proc: Path, threads: Sequence[Thread]) -> tuple[Thread, ...]:
    """Return the threads that say most about a hang, with where they wait: those that cannot be killed, those that run,
    then the main threads."""
    order = sorted(threads, key=lambda thread: (_rank(thread), thread.pid, thread.tid))
    return tuple(_with_place(proc, thread) for thread in order[:_MOST_TELLING])


def summary(threads: Sequence[Thread], most_telling: Sequence[Thread]) -> str:
    """Say in a few words what threads are doing."""
    if not threads:
        return "no process of it was found"
    counts = Counter(thread.state for thread in threads)
    states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    return f"threads: {states}" + (f"; {most_telling[0]}" if most_telling else "")


def _rank(thread: Thread) -> int:
    if thread.state in _TELLING:
        return _TELLING.index(thread.state)
    return len(_TELLING) + (thread.pid != thread.tid)


def _threads(proc: Path, pid: int, *, timed: bool = False) -> Iterator[Thread]:
    try:
        tids = sorted(int(task.name) for task in (proc / str(pid) / "task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return
    for tid in tids:
        if (said := kernel_files.read(proc / str(pid) / "task" / str(tid) / "stat")) is not None:
            stat = kernel_files.parse_stat(said)
            used = sum(map(int, stat.rest[_USED])) if timed else 0
            yield Thread(pid=pid, tid=tid, name=stat.name, state=stat.state, used=used)


def _with_place(proc: Path, thread: Thread) -> Thread:
    task = proc / str(thread.pid) / "task" / str(thread.tid)
    waits_in = _read(task / "wchan")
    # "[<0>] do_wait+0x53/0x120": proc_pid_stack(5)
    frames = (line.partition("] ")[2].partition("+")[0] for line in kernel_files.lines(_read(task / "stack"))[:_FRAMES])
    return Thread(
        pid=thread.pid,
        tid=thread.tid,
        name=thread.name,
        state=thread.state,
        used=thread.used,
        waits_in="" if waits_in in _NOWHERE else waits_in,
        stack=tuple(frame for frame in frames if frame),
    )


def _read(file: Path) -> str:
    try:
        return kernel_files.read(file) or ""
    except OSError:
        return ""  # the kernel does not have it, or does not tell us
