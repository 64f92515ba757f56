"""Manage processes of the dev node: recorded in pid files, distinguished from later ones, awaited through pidfds.

Not asyncio's subprocesses: those are bound to one event loop and die with it, while a node's processes outlive the loop
that started them (a pytest session runs one loop per test) and sometimes the program that did (a crashed run).
"""

import asyncio
import contextlib
import os
import pathlib
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

_PROC = pathlib.Path("/proc")
_SOURCES = pathlib.Path(__file__).resolve().parents[2]
_ENDED = "ZX"  # the states of a process that has ended, in /proc/<pid>/stat (proc(5))
_KILL_SECONDS = 30.0  # the time that the kernel may need to end a process after SIGKILL


class ProcessError(RuntimeError):
    """A process did not start or would not end. The message is one line for people."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    """Identify a process, distinct from a later one with the same pid.

    ``start_ticks`` is field 22 of /proc/<pid>/stat: clock ticks from boot to its start.
    """

    pid: int
    start_ticks: int

    @classmethod
    def of(cls, pid: int) -> "ProcessId | None":
        """Return the identity of a running process; None when there is none, or only its zombie."""
        fields = _stat_fields(pid)
        return cls(pid=pid, start_ticks=int(fields[19])) if fields is not None and fields[0] not in _ENDED else None

    def alive(self) -> bool:
        """Return whether this very process still runs."""
        return ProcessId.of(self.pid) == self

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; a process that has already ended is ignored."""
        with contextlib.suppress(ProcessLookupError), _pidfd(self) as descriptor:
            signal.pidfd_send_signal(descriptor, number)

    async def ended(self, *, timeout: float) -> bool:
        """Wait until it has ended; return False when it still runs after ``timeout`` seconds."""
        try:
            with _pidfd(self) as descriptor:
                await asyncio.wait_for(_readable(descriptor), timeout)
        except ProcessLookupError:
            return True
        except TimeoutError:
            return not self.alive()
        return True


class Child:
    """Manage a process that this program started. Create it with ``start``."""

    def __init__(self, *, name: str, process: subprocess.Popen[bytes], pid_file: pathlib.Path) -> None:
        self.name = name
        self._process = process
        self._pid_file = pid_file
        self._id = ProcessId.of(process.pid)

    @classmethod
    def start(
        cls,
        command: Sequence[str],
        *,
        name: str,
        log: pathlib.Path,
        pid_file: pathlib.Path,
        environment: Mapping[str, str] | None = None,
        dies_with_us: bool = True,
    ) -> "Child":
        """Start a program with its output appended to ``log`` and its identity written to ``pid_file``.

        ``dies_with_us`` has the kernel kill it when this program ends, even by SIGKILL. That is tied to the calling
        *thread* (PR_SET_PDEATHSIG in prctl(2)): call it from one that lives as long as the program. Raises ProcessError
        when the program cannot be started.
        """
        search_path = (os.environ if environment is None else environment).get("PATH")
        if shutil.which(command[0], path=search_path) is None:
            raise ProcessError(f"cannot start {name} ({command[0]}): no such program")
        # setpriv and not preexec_fn: Python must not run between fork and exec while gRPC's threads hold locks.
        wrapped = ["setpriv", "--pdeathsig", "KILL", "--", *command] if dies_with_us else list(command)
        for path in (log, pid_file):
            path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with log.open("ab") as output:
                process = subprocess.Popen(
                    wrapped,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=environment,
                    start_new_session=True,  # Ctrl-C is for this program, which stops the node in order
                )
        except OSError as error:
            raise ProcessError(f"cannot start {name} ({command[0]}): {error.strerror or error}") from error
        child = cls(name=name, process=process, pid_file=pid_file)
        write_pid_file(pid_file, child.pid)
        return child

    @property
    def pid(self) -> int:
        """Return its process id."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """Return its exit status (negative: the signal), or None while it runs."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        self._process.send_signal(number)

    def pause(self) -> None:
        """Send SIGSTOP and return once all its threads are stopped: the signal alone leaves them a moment to run."""
        self.signal(signal.SIGSTOP)
        if self.returncode is None:
            os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    async def wait(self, *, timeout: float) -> int:
        """Wait for its end and return the exit status. Raises ProcessError after ``timeout`` seconds."""
        if self._id is not None and not await self._id.ended(timeout=timeout):
            raise ProcessError(f"{self.name} (pid {self.pid}) still runs after {timeout:g} s")
        return self._process.wait(timeout=_KILL_SECONDS)

    async def stop(self, *, grace: float) -> int:
        """End it: SIGTERM, then SIGKILL after ``grace`` seconds; then remove its pid file. Return the exit status."""
        self.signal(signal.SIGCONT)  # a stopped process would not handle SIGTERM
        self.signal(signal.SIGTERM)
        if self._id is not None and not await self._id.ended(timeout=grace):
            self.signal(signal.SIGKILL)
        status = await self.wait(timeout=_KILL_SECONDS)
        self._pid_file.unlink(missing_ok=True)
        return status


def end_on_sigterm() -> None:
    """Have SIGTERM end this program as Ctrl-C does: with everything that it has started. Harmless when called again.

    A handler of the program's own stays. A shell that starts a program in the background has it ignore SIGINT, which
    would make SIGTERM have no effect: so SIGINT gets Python's own handler there.
    """
    if threading.current_thread() is not threading.main_thread():
        return  # only the main thread may change handlers (signal.signal)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))


def source_environment() -> dict[str, str]:
    """Return an environment in which ``python -m hack…`` works from any directory: hack is not installed."""
    path = (str(_SOURCES), *filter(None, [os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path)}


def write_pid_file(path: pathlib.Path, pid: int) -> None:
    """Record a running process. One that has already ended leaves no file."""
    if (identity := ProcessId.of(pid)) is not None:
        path.write_text(f"{identity.pid} {identity.start_ticks}\n", encoding="ascii")


def read_pid_file(path: pathlib.Path) -> ProcessId | None:
    """Return the process that a pid file names, or None when the file or the process does not exist."""
    try:
        pid, start_ticks = path.read_text(encoding="ascii").split()
    except (FileNotFoundError, ValueError):
        return None  # ValueError: cut short by a crash while it was written
    identity = ProcessId(pid=int(pid), start_ticks=int(start_ticks))
    return identity if identity.alive() else None


def running() -> Iterator[ProcessId]:
    """Yield every process of the machine that is not a zombie."""
    for entry in _PROC.iterdir():
        if entry.name.isdecimal() and (identity := ProcessId.of(int(entry.name))) is not None:
            yield identity


def children() -> Iterator[ProcessId]:
    """Yield this process's running children. It is cheap where there are none: the tests ask before and after each."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return
    for thread in (_PROC / "self" / "task").iterdir():
        for pid in _read(os.getpid(), f"task/{thread.name}/children").split():
            if (identity := ProcessId.of(int(pid))) is not None:
                yield identity


def command_line(pid: int) -> tuple[str, ...]:
    """Return the arguments of a process; empty when it has ended or is a kernel thread."""
    return tuple(part for part in _read(pid, "cmdline").split("\0") if part)


def cgroups(pid: int) -> tuple[str, ...]:
    """Return the cgroup paths of a process, one per hierarchy (cgroups(7), /proc/<pid>/cgroup)."""
    return tuple(line.split(":", 2)[2] for line in _read(pid, "cgroup").splitlines() if line.count(":") >= 2)


async def terminate(processes: Sequence[ProcessId], *, grace: float) -> None:
    """End all of them: SIGTERM, then SIGKILL after ``grace`` seconds for those that still run (0: SIGKILL at once).

    Raises ProcessError when the kernel does not end one.
    """
    deadline = time.monotonic() + grace
    if grace > 0:
        for process in processes:
            process.signal(signal.SIGTERM)
        await asyncio.gather(*(process.ended(timeout=deadline - time.monotonic()) for process in processes))
    for process in processes:
        process.signal(signal.SIGKILL)
    ended = await asyncio.gather(*(process.ended(timeout=_KILL_SECONDS) for process in processes))
    stuck = [process.pid for process, done in zip(processes, ended, strict=True) if not done]
    if stuck:
        raise ProcessError(f"processes {stuck} do not end after SIGKILL; look at /proc/<pid>/stack")


@contextlib.contextmanager
def _pidfd(process: ProcessId) -> Iterator[int]:
    """Open a pidfd; raise ProcessLookupError when the process has ended or another one has its pid."""
    descriptor = os.pidfd_open(process.pid)
    try:
        if not process.alive():  # checked after the opening, so that the pidfd is surely of this process
            raise ProcessLookupError
        yield descriptor
    finally:
        os.close(descriptor)


async def _readable(descriptor: int) -> None:
    """Wait until a descriptor is readable; a pidfd is once its process has ended (pidfd_open(2))."""
    loop = asyncio.get_running_loop()
    ready = asyncio.Event()
    loop.add_reader(descriptor, ready.set)
    try:
        await ready.wait()
    finally:
        loop.remove_reader(descriptor)


def _stat_fields(pid: int) -> list[str] | None:
    """Return /proc/<pid>/stat from field 3 (state) on; None when there is no such process."""
    text = _read(pid, "stat")
    # The command (field 2) may contain spaces and brackets: everything after the last bracket is plain.
    return text.rpartition(")")[2].split() if text else None


def _read(pid: int, name: str) -> str:
    try:
        return (_PROC / str(pid) / name).read_bytes().decode(errors="replace")
    except (FileNotFoundError, ProcessLookupError, NotADirectoryError):
        return ""  # it has ended in the meantime
