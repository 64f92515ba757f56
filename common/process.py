"""What every long-running process of ours begins with: how it is told to stop, and what it may use."""

import asyncio
import os
import resource
import signal
import sys
from typing import Final

import structlog

log = structlog.get_logger(__name__)

_AHEAD: Final = -10
"""nice(2): well before what computes, and behind what keeps the machine alive."""
_TURN_SECONDS: Final = 0.0005
"""After that a thread that wants the interpreter gets it. Reading a list of mounts takes one turn for each page of it:
with Python's 5 ms a container would have begun to run by the end.
"""


class Stop(Exception):  # noqa: N818 - not an error: how a TaskGroup is told to end
    """Ends the TaskGroup that holds all parts."""


def stop_signal() -> asyncio.Event:
    """Return what SIGTERM and SIGINT set from now on, so that neither ends the process out of turn."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def go_first() -> None:
    """Have the kernel run this thread, and those that it starts, before others that want the processor.

    A hold is a race against a process that starts: on a node whose processors are all busy it would be lost to
    whoever waits less. Where that is not allowed (it takes CAP_SYS_NICE), all works as well as the load lets it.
    Among the threads of this process turns are kept short, for the same reason.
    """
    sys.setswitchinterval(_TURN_SECONDS)
    try:
        os.setpriority(os.PRIO_PROCESS, 0, _AHEAD)
    except PermissionError as error:
        log.info("process.not_first", error=error.strerror)


def helper_command(module: str, *arguments: str) -> list[str]:
    """Return the command line of a helper process of ours.

    ``-P``: modules are not looked for in the working directory. kubemend runs as root, and whoever owns the directory
    that it is started in would otherwise have their ``agent`` package run in place of ours.
    """
    return [sys.executable, "-P", "-m", module, *arguments]


def open_many_files() -> int:
    """Raise the limit of open files as far as this process may; return it. Some runtimes start us with 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    return most
