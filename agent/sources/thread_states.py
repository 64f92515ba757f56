"""States of a container's threads, for the investigation of a hang. Reads /proc; only ``are_stopped`` takes time."""

import itertools
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kubemend.agent.model.hangs import Thread
from kubemend.common import kernel_files

STOPPED = ("T", "t")
"""States of a thread that is stopped by a signal or held by a debugger (proc_pid_stat(5))."""

_TRACED = "t"
_LOOKS, _LOOK_AGAIN = 20, 0.015  # the launcher's spare runs for 25 ms of each 100 ms at least, by default
_MOST_THREADS = 1024
_MOST_INFORMATIVE = 8
_FRAMES = 5
_INFORMATIVE = ("D", "R")
_USED = slice(14 - 4, 16 - 4)  # utime and stime: proc_pid_stat(5) counts from 1, and the rest begins with field 4
_NOWHERE = ("0", "")  # wchan of a running thread, or without permission


def read(proc: Path, pids: Iterable[int]) -> tuple[Thread, ...]:
    """Return the threads of processes, up to a limit: first the main threads of all. Raises OSError."""
    ordered = sorted(pids)
    main = (thread for pid in ordered for thread in _threads(proc, pid, tids=[pid]))
    others = (thread for pid in ordered for thread in _threads(proc, pid) if thread.tid != pid)
    return tuple(itertools.islice(itertools.chain(main, others), _MOST_THREADS))


def read_with_times(proc: Path, pids: Iterable[int]) -> tuple[Thread, ...]:
    """Return the threads with their CPU time, and the place where those in state D wait.

    Two results are equal when nothing has moved in between. Raises OSError.
    """
    threads = (thread for pid in sorted(pids) for thread in _threads(proc, pid, timed=True))
    found = tuple(itertools.islice(threads, _MOST_THREADS))
    return tuple(_with_place(proc, each) if each.state == _INFORMATIVE[0] else each for each in found)


def are_stopped(proc: Path, threads: Iterable[Thread]) -> bool:
    """Return, after 0.3 s at most, whether any of them is held by a debugger, or stopped by a signal all the time.

    The launcher stops its spare for a part of each 0.1 s while that imports, and the program may hang in that time.
    """
    stopped = [each for each in threads if each.state in STOPPED]
    if any(each.state == _TRACED for each in stopped):
        return True
    for _ in range(_LOOKS):
        if not stopped:
            break
        time.sleep(_LOOK_AGAIN)
        stopped = [each for each in stopped if _state(proc, each) in STOPPED]
    return bool(stopped)


def most_informative(proc: Path, threads: Sequence[Thread]) -> tuple[Thread, ...]:
    """Return the threads most informative about a hang, with the place where they wait.

    Those in state D come first, then running ones, then the main threads.
    """
    order = sorted(threads, key=lambda thread: (_rank(thread), thread.pid, thread.tid))
    return tuple(_with_place(proc, thread) for thread in order[:_MOST_INFORMATIVE])


def summary(threads: Sequence[Thread], most_informative: Sequence[Thread]) -> str:
    """Summarize thread states on one line."""
    if not threads:
        return "no process of it was found"
    counts = Counter(thread.state for thread in threads)
    states = ", ".join(f"{count} {state}" for state, count in sorted(counts.items()))
    return f"threads: {states}" + (f"; {most_informative[0]}" if most_informative else "")


def _rank(thread: Thread) -> int:
    if thread.state in _INFORMATIVE:
        return _INFORMATIVE.index(thread.state)
    return len(_INFORMATIVE) + (thread.pid != thread.tid)


def _threads(proc: Path, pid: int, *, tids: Sequence[int] | None = None, timed: bool = False) -> Iterator[Thread]:
    """Yield these threads of a process (None: all)."""
    try:
        found = tids if tids is not None else sorted(int(task.name) for task in (proc / str(pid) / "task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return
    for tid in found:
        if (text := kernel_files.read(proc / str(pid) / "task" / str(tid) / "stat")) is not None:
            stat = kernel_files.parse_stat(text)
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


def _state(proc: Path, thread: Thread) -> str:
    """Return a thread's state now; empty if it has ended."""
    text = kernel_files.read(proc / str(thread.pid) / "task" / str(thread.tid) / "stat")
    return kernel_files.parse_stat(text).state if text is not None else ""


def _read(file: Path) -> str:
    try:
        return kernel_files.read(file) or ""
    except OSError:
        return ""  # the kernel does not have it, or denies access
