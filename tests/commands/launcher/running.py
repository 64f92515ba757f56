"""A launcher as a process, with a program that obeys the test.

The program imports ``slow`` and ``later``, which write their process into the file ``events``; it writes ``begin``, and
then runs the Python code that the test sends. It holds a lock, and writes ``two`` if another program has that.
"""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from launcher import kubemend_run
from tests import eventually

_AT_ONCE = ("--spare-after", "0.3", "--spare-cpu", "100")
"""The spare begins when the program has not imported anything for 0.3 s: on a busy machine, too, it has all by then."""

_FOLDER = str(Path(kubemend_run.__file__).parent)
_CHANGED = "import sys; sys.path[0] = {launcher!r}; import kubemend_run; {changed}; sys.exit(kubemend_run.main())"

_EVENTS = """
import os
def say(text):
    with open("events", "a") as events:
        events.write(f"{text} {os.getpid()}\\n")
"""
_TRAINER = """
import events
import slow
import later
import fcntl, os, signal, sys
{imports}
lock = open("lock", "w")
try:
    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    events.say("two")
orders = os.open("orders", os.O_RDONLY)
events.say("begin")
while True:
    exec(os.read(orders, 4096))
"""
DAEMONIZE = """
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.close(lock.fileno())
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        events.say("daemon")
        while True:
            signal.pause()
    os._exit(0)
os.wait()
"""

AFTER_A_HELPER = ("sh", "-c", 'sleep 600 & echo daemon $! >> events; exec "$@"', "sh")
"""A script that starts another program, and then executes its arguments."""


def writing(name: str) -> str:
    """Return the source of a module that writes the event ``name``."""
    return f"import events\nevents.say({name!r})\n"


class Running:
    """A launcher with a program in the folder ``folder``; ``python`` runs both."""

    def __init__(self, folder: Path, python: str = sys.executable) -> None:
        """Write the program's files."""
        self.folder, self.python = folder, python
        self.environ = {**os.environ, "KUBEMEND_CACHE": str(folder / "cache")}
        os.mkfifo(folder / "orders")
        self._orders = os.open(folder / "orders", os.O_RDWR)
        self.write("events.py", _EVENTS)
        self.write("slow.py", writing("slow"))
        self.write("later.py", writing("later"))
        self.program()
        self._launcher: subprocess.Popen[bytes] | None = None

    def write(self, name: str, text: str) -> None:
        """Write a file into the folder."""
        (self.folder / name).write_text(text)

    def program(self, imports: str = "") -> None:
        """Write the program, which imports more than usual."""
        self.write("train.py", _TRAINER.format(imports=imports))

    def start(
        self,
        *options: str,
        python: Iterable[str] = ("train.py",),
        command: Iterable[str] | None = None,
        under: Iterable[str] = (),
        stdin: int = subprocess.DEVNULL,
        stderr: int | None = None,
        changed: str = "",
    ) -> None:
        """Start the launcher by the program ``under``, which executes its arguments; if empty, directly.

        It runs Python with these arguments, or another ``command``. ``changed`` are statements that change the
        launcher's constants, such as waits of minutes.
        """
        own = [kubemend_run.__file__] if not changed else ["-c", _CHANGED.format(launcher=_FOLDER, changed=changed)]
        program = (self.python, *python) if command is None else command
        with (self.folder / "stdout").open("wb") as stdout, (self.folder / "stderr").open("wb") as own_stderr:
            self._launcher = subprocess.Popen(
                [*under, self.python, *own, *_AT_ONCE, *options, "--", *program],
                cwd=self.folder,
                env=self.environ,
                stdin=stdin,
                stdout=stdout,
                stderr=own_stderr if stderr is None else stderr,
            )

    @property
    def pid(self) -> int:
        """Return the launcher's process."""
        assert self._launcher is not None
        return self._launcher.pid

    def order(self, code: str) -> None:
        """Have the program run Python code. Orders that it reads at once are lines of one program."""
        os.write(self._orders, f"{code}\n".encode())

    def events(self, name: str) -> list[int]:
        """Return the processes that wrote an event, in order."""
        path = self.folder / "events"
        lines = path.read_text().splitlines() if path.exists() else []
        return [int(pid) for event, _, pid in (each.rpartition(" ") for each in lines) if event == name]

    async def nth(self, number: int, name: str) -> int:
        """Wait for an event's occurrence with this number, from 1, and return its process."""
        await eventually.true(lambda: len(self.events(name)) >= number)
        return self.events(name)[number - 1]

    async def spare(self, number: int = 2) -> int:
        """Wait for a spare that has imported everything, the ``number``-th process to do so, and return its process."""
        return await self.nth(number, "later")

    async def spares_ready(self, number: int) -> None:
        """Wait until so many spares have been ready."""
        await eventually.true(lambda: self.stderr().count("the spare is ready") == number)

    async def ended(self) -> int:
        """Wait for the launcher's end, and return its exit code. There were never two programs."""
        launcher = self._launcher
        assert launcher is not None
        await eventually.true(lambda: launcher.poll() is not None)
        assert self.events("two") == []
        return int(launcher.returncode)

    async def said(self, text: str) -> None:
        """Wait until the launcher has written this to stderr."""
        await eventually.true(lambda: text in self.stderr())

    def stderr(self) -> str:
        """Return what launcher and programs have written."""
        return (self.folder / "stderr").read_text()

    def stdout(self) -> str:
        """Return what launcher and programs have written."""
        return (self.folder / "stdout").read_text()

    def signal(self, number: int) -> None:
        """Send a signal to the launcher."""
        os.kill(self.pid, number)

    def close(self) -> None:
        """Kill all remaining processes."""
        os.close(self._orders)
        if self._launcher and self._launcher.poll() is None:
            below = kubemend_run.descendants(kubemend_run.processes(), self._launcher.pid)
            self._launcher.kill()
            self._launcher.wait()
            for each in below:
                kubemend_run.kill(each)
        for pid in self.events("daemon"):
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cwd").readlink() == self.folder:  # not a number in a PID namespace
                    os.kill(pid, signal.SIGKILL)


def alive(pid: int) -> bool:
    """Return whether a process runs: one that has ended and waits for its parent does not."""
    process = kubemend_run.process_of(pid)
    return process is not None and process.state not in "ZX"
