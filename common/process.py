"""Set up a long-running process: how it stops, its priority, its helper processes and its open files."""

import asyncio
import contextlib
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from typing import Final

import structlog

log = structlog.get_logger(__name__)

_AHEAD: Final = -10
"""nice(2): well ahead of computing processes, and behind those that keep the machine alive."""
_TURN_SECONDS: Final = 0.0005
"""Interval after which the interpreter switches to a waiting thread.

Reading a list of mounts takes one turn for each page of it: with Python's 5 ms a container would have begun to run by
the end.
"""


class Stop(Exception):  # noqa: N818 - not an error: it ends a TaskGroup
    """Ends the TaskGroup that holds all components."""


def stop_signal() -> asyncio.Event:
    """Return the event that SIGTERM and SIGINT set from now on, so that neither ends the process abruptly."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


@contextlib.contextmanager
def raised_priority() -> Iterator[None]:
    """Raise the scheduling priority of this thread, and of threads and processes that it starts, in this context.

    A hold is a race against a starting process: on a node whose processors are all busy it would be lost to processes
    that wait less. Without permission (CAP_SYS_NICE), everything works as well as the load allows. Turns among the
    threads of this process are kept short, for the same reason.
    """
    before, turn = os.getpriority(os.PRIO_PROCESS, 0), sys.getswitchinterval()
    sys.setswitchinterval(_TURN_SECONDS)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _AHEAD)
    except PermissionError as error:
        log.info("process.priority_unavailable", error=error.strerror)
    try:
        yield
    finally:
        os.setpriority(os.PRIO_PROCESS, 0, before)
        sys.setswitchinterval(turn)


def wake_first() -> None:
    """Have the calling thread run as soon as it is woken, before all threads that are not real-time (sched(7)).

    For a thread that does little at a time and that would otherwise lose its race against a short-lived process: nice
    values count only within a cgroup or session. Without permission (CAP_SYS_NICE; on cgroup v1 with real-time groups
    also a share of ``cpu.rt_runtime_us``), nothing changes.
    """
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(1))
    except PermissionError as error:
        log.info("process.real_time_unavailable", thread=threading.current_thread().name, error=error.strerror)


def helper_command(module: str, *arguments: str) -> list[str]:
    """Return the command line of a helper process.

    ``-P``: modules are not searched in the working directory. kubemend runs as root, and the owner of the working
    directory could otherwise have their ``agent`` package run instead.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def open_many_files() -> int:
    """Raise the limit of open files as far as permitted; return it. Some runtimes start the process with 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
