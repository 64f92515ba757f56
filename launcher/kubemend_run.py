"""Run a program as a container's command, and restart it inside the container with a warm spare.

    kubemend_run.py --max-restarts 10 -- python train.py --lr 0.1

The launcher starts the program, passes signals to it, reaps orphans, and ends as the program ended. It restarts a
program that failed, up to ``--max-restarts`` times in an hour. Before that, it kills every process that the old run has
started, and waits until all are dead. Next to a Python program the launcher keeps a *spare*: an interpreter with the
program's own command line. The spare imports the program's modules, and waits before it runs the program.

The interpreter runs the program by its real command line, in the first run and in each restart. The launcher's own code
runs before that, in ``site``'s import of ``sitecustomize`` (see ``_start_up``). A running program finds no part of it
on the stack, in ``sys.argv`` or among its open files.

kubemend's agent, where there is one, orders restarts on a unix socket in the cache folder (see ``Control``).

This is one file without dependencies, for Python 3.8 to 3.14 on Linux.
"""

from __future__ import annotations

# The code between these marks, after the line above, is also the module sitecustomize of the program and its spares. It
# imports only modules that each interpreter loads anyway: a program must not find a module that it has not imported.
# --- begin of the bootstrap
import _weakref
import os
import sys

_PREFIX = "_KUBEMEND_RUN_"
"""Prefix of the variables that the launcher passes to its bootstrap, which removes them."""
_STARTUP = "sitecustomize"
_PREPARED = "kubemend_prepared"
"""The module in which a program whose spare has prepared finds the function's result, as ``value``."""
_COUNT_GPUS = "_cuda_getDeviceCount"
_SURROUNDINGS = {"a": "sys.argv", "f": "__main__.__file__", "c": "the working directory"}
_LONGEST_ERROR = 150  # of a prepare function, or of an import
_MOST_RECORDED = 20_000  # modules of one program: some import generated ones without end


class Changes:
    """Detect changes of ``os.environ``, ``sys.path`` and the surroundings, and make the same changes again.

    The surroundings are ``sys.argv``, ``__main__.__file__`` and the working directory.
    """

    def __init__(self) -> None:
        """Start from the present values."""
        self._environ, self._path, self._around = _environ(), _path(), _surroundings()
        self._made: dict[bytes, bytes | None] = {}
        self._appended: list[str] = []
        self._first_path = list(sys.path)

    def since_last(self) -> str:
        """Return records of the changes since the last call."""
        environ, path, lines = _environ(), _path(), ""
        if environ != self._environ:
            for key in sorted(environ.keys() | self._environ.keys()):
                value = environ.get(key)
                if value != self._environ.get(key):
                    lines += "e " + key.hex() + " " + ("-" if value is None else "=" + value.hex()) + "\n"
            self._environ = environ
        if path != self._path:
            lines += "p " + b"\0".join([os.fsencode(each) for each in path]).hex() + "\n"
            self._path = path
        around = _surroundings()
        for kind in around:
            if around[kind] != self._around.get(kind):
                lines += kind + " " + _hex(around[kind]) + "\n"
                self._around[kind] = around[kind]
        return lines

    def make(self, wanted: dict[bytes, bytes | None], path: list[str] | None, around: dict[str, str | None]) -> None:
        """Set the variables in ``wanted``, unless an import has set them already, ``sys.path`` and the surroundings.

        Raises OSError if the working directory cannot be changed, or not back.
        """
        if "c" in around and "c" not in self._around:
            raise FileNotFoundError("the launcher's does not exist")
        now = _environ()
        for key, value in wanted.items():
            if now.get(key) != value:
                self._made.setdefault(key, now.get(key))
                _set(key, value)
        if path is not None:
            sys.path[:] = path
        _surround(around)

    def load(self, name: str) -> tuple[str, BaseException | None]:
        """Import a module. Return what it changed that ``undo`` would lose, empty for nothing, and how it failed."""
        before, around, failure = list(sys.path), _surroundings(), None
        environ = _environ()
        try:
            __import__(name)
        except BaseException as error:  # noqa: BLE001 - also sys.exit
            failure = error
        self._appended += [each for each in sys.path[len(before) :] if each not in self._appended]
        if sys.path[: len(before)] != before:
            return "sys.path other than at its end", failure
        now, environ_now = _surroundings(), _environ()
        found = [_SURROUNDINGS[kind] for kind in around if now.get(kind) != around[kind]]
        keys = [os.fsdecode(key) for key in self._made if environ_now.get(key) != environ.get(key)]
        found += ["the variable " + each + ", which the program sets before" for each in keys]
        return "".join(found[:1]), failure

    def undo(self) -> None:
        """Undo the changes of ``make``, because the program makes them itself. Changes by modules stay.

        Raises OSError if the working directory does not exist.
        """
        for key, value in self._made.items():
            _set(key, value)
        self._made.clear()
        sys.path[:] = self._first_path + [each for each in self._appended if each not in self._first_path]
        _surround(self._around)


class Recorder:
    """Record the begin and the end of each module's import, with the changes (see ``Changes``) before it.

    It is a finder that finds nothing. An import has ended when the interpreter frees the module's lock. The log is
    opened for each record, because the program could close a file that stays open, and reuse its number. Forked
    children record nothing. ``failed`` are the modules whose import has not succeeded.
    """

    def __init__(self, log: str) -> None:
        """Write the records to the file ``log``."""
        self._log, self._pid = log, os.getpid()
        self.failed: list[str] = []
        self._seen: set[str] = set()
        self._locks: dict[str, object] = {}
        self._changes = Changes()
        self._write("h " + str(self._pid) + "\n")

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        """Record a module that is being imported, but not a mere check whether a module exists."""
        if name in self._seen or len(self._seen) >= _MOST_RECORDED or os.getpid() != self._pid:
            return
        try:
            caller = sys._getframe(2).f_code.co_name  # noqa: SLF001
        except ValueError:  # the program's own top level asks, not an import
            return
        if caller == "_find_and_load_unlocked":
            self._seen.add(name)
            self._write(self._changes.since_last() + "m " + name + "\n")
            self._await(name)

    def _await(self, name: str) -> None:
        find = getattr(sys.modules["_frozen_importlib"], "_module_locks", {}).get(name)
        lock = find and find()
        if lock:
            self._locks[name] = _weakref.ref(lock, lambda _: self._ended(name))

    def _ended(self, name: str) -> None:
        self._locks.pop(name, None)
        if os.getpid() != self._pid:
            return
        if name in sys.modules:
            self._write("d " + name + "\n")
        else:
            self.failed.append(name)

    def _write(self, lines: str) -> None:
        try:
            log = os.open(self._log, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            try:
                os.write(log, lines.encode("utf-8", "surrogateescape"))
            finally:
                os.close(log)
        except Exception:  # noqa: BLE001, S110 - the program has changed its user or root, or the interpreter ends
            pass


class GpuCount:
    """Answer PyTorch's question for the number of GPUs while a spare imports, by their device nodes.

    CUDA would open the devices for that, and torch._inductor asks at its import. It is a finder that finds nothing.
    """

    def __init__(self, devices: tuple[str, ...]) -> None:
        """Count the nodes that have a number after one of these prefixes of paths."""
        self._count = sum(_numbered(each) for each in devices)
        self._module: object = None

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        """Take PyTorch's function away as soon as there is one."""
        module = sys.modules.get("torch._C")
        if self._module is None and self._count and name.startswith("torch._") and hasattr(module, _COUNT_GPUS):
            self._module, self._function = module, getattr(module, _COUNT_GPUS)
            setattr(module, _COUNT_GPUS, lambda: _visible(self._count))

    def end(self) -> None:
        """Give the function back."""
        if self._module is not None:
            setattr(self._module, _COUNT_GPUS, self._function)
        self._module = None


class Warm:
    """The code in the spare: import, prepare, wait for the release, start. Without a release it ends this process.

    The launcher's orders are lines: ``more`` when it has added records to the list of modules, and ``go`` with the
    variables of the restart.
    """

    def __init__(self, given: dict[str, str], recorder: Recorder) -> None:
        """Read the launcher's variables, without their prefix, from ``given``; ``recorder`` is this process's own."""
        self._given, self._recorder = given, recorder
        self._succeeded: set[str] = set()
        self._status, self._release = int(given["STATUS"]), int(given["RELEASE"])
        self._devices = tuple(each for each in given["DEVICES"].split(":") if each)
        self._main = given.get("MAIN", "")
        self._prepare_by = given.get("PREPARE", "")
        self._changes = Changes()
        self._files: dict[str, tuple[int, int]] = {}
        self._stamped = 0
        self._rest = ""

    def run(self) -> None:
        """Return when the program may start; the variables of this restart are set then."""
        order = ""
        while not order:
            os.set_blocking(self._release, False)
            counter = GpuCount(self._devices)
            sys.meta_path.insert(0, counter)
            order = self._import_all(_read(self._given["NAMES"]).decode("utf-8", "surrogateescape").split("\n"))
            if self._prepare_by and not order:
                order = self._order() or self._prepare()
            sys.meta_path.remove(counter)
            counter.end()
            self._undo()
            if not order:
                self._stamped = 0
                self._stamp_new()
                self._report("ready")
                os.set_blocking(self._release, True)
                order = self._order()
        for path, stamp in self._files.items():
            if _stamp(path) != stamp:
                self._refuse("changed " + path)
        for pair in order.split("\0"):
            key, _, value = pair.partition("=")
            os.environ[key] = value
        self._report("go")
        os.close(self._status)
        os.close(self._release)

    def _import_all(self, records: list[str]) -> str:
        """Import the recorded modules; stop at the order to start and return its variables. Empty: all are imported."""
        wanted: dict[bytes, bytes | None] = {}
        path: list[str] | None = None
        around: dict[str, str | None] = {}
        for record in records:
            kind, _, name = record.partition(" ")
            if kind == "e":
                key, _, value = name.partition(" ")
                wanted[bytes.fromhex(key)] = None if value == "-" else bytes.fromhex(value[1:])
            elif kind == "p":
                path = [os.fsdecode(each) for each in bytes.fromhex(name).split(b"\0")]
            elif kind in _SURROUNDINGS:
                around[kind] = _unhex(name)
            elif kind == "d":
                self._succeeded.add(name)
            elif kind == "m" and name not in sys.modules:
                order = self._order()
                if order:
                    return order
                self._report("import " + name)
                self._make(wanted, path, around)
                wanted, path, around = {}, None, {}
                self._load(name)
        self._make(wanted, path, around)
        return ""

    def _make(self, wanted: dict[bytes, bytes | None], path: list[str] | None, around: dict[str, str | None]) -> None:
        try:
            self._changes.make(wanted, path, around)
        except OSError as error:
            self._refuse("folder " + _in_words(error))

    def _undo(self) -> None:
        try:
            self._changes.undo()
        except OSError as error:
            self._refuse("folder " + _in_words(error))

    def _prepare(self) -> str:
        """Call the program's function for spares, once. A failure ends this spare: half a state is worse than none."""
        where, _, function = self._prepare_by.rpartition(":")
        folder, _, name = where.rpartition("/")
        self._report("prepare")
        self._prepare_by = ""
        if folder not in sys.path:
            sys.path.insert(0, folder or "/")
        try:
            __import__(name)
            value = getattr(sys.modules[name], function)()
        except BaseException as error:  # noqa: BLE001 - also sys.exit; the launcher logs it, and this process ends
            self._refuse("unprepared " + _in_words(error))
        if hasattr(sys.modules.get(self._main), "__loader__") and not hasattr(sys.modules[self._main], "__path__"):
            self._refuse("unprepared it imports the program itself")
        device = _device(self._devices)
        if device:
            self._refuse("device " + device)
        prepared = type(sys)(_PREPARED)
        prepared.value = value  # type: ignore[attr-defined]
        sys.modules[_PREPARED] = prepared
        return ""

    def _load(self, name: str) -> None:
        changed, failure = self._changes.load(name)
        self._refuse_failure(name, failure)
        if changed:
            self._refuse("changes " + changed)
        self._stamp_new()
        device = _device(self._devices)
        if device:
            self._refuse("device " + device)
        if self._main in sys.modules and not self._main.startswith(name + "."):  # its parent does so anyway
            self._refuse("main " + name)

    def _refuse_failure(self, name: str, failure: BaseException | None) -> None:
        """End this spare if the import of ``name``, or one within it, failed that has succeeded in the program.

        The part of it that has run would stay. A module that does not exist leaves nothing; the program tries again.
        """
        is_missing = isinstance(failure, ModuleNotFoundError) and _is_in(name, failure.name or "")
        if failure is not None and not is_missing:
            self._refuse("failed " + name + " " + _in_words(failure))
        failed, self._recorder.failed = self._recorder.failed, []
        for each in failed:
            if each in self._succeeded and each != name:
                self._refuse("failed " + each)

    def _stamp_new(self) -> None:
        """Record the source files of the modules added to ``sys.modules``, which keeps the order of insertion."""
        for module in list(sys.modules.values())[self._stamped :]:
            path = _file_of(module)
            if isinstance(path, str) and module is not sys.modules.get("__main__"):  # the program has not been read
                path = os.path.abspath(path)  # the working directory may change
                self._files.setdefault(path, _stamp(path))
        self._stamped = len(sys.modules)

    def _order(self) -> str:
        """Return the variables of the order to start; empty if another order, or none, has arrived."""
        try:
            text = os.read(self._release, 65536)
        except BlockingIOError:
            return ""
        if not text:
            os._exit(1)  # the launcher has ended, or has dropped this spare
        lines = (self._rest + text.decode("utf-8", "surrogateescape")).split("\n")
        self._rest = lines.pop()
        return "".join([each[3:] for each in lines if each.startswith("go ")])

    def _report(self, text: str) -> None:
        os.write(self._status, (text + "\n").encode("utf-8", "surrogateescape"))

    def _refuse(self, message: str) -> None:
        self._report(message)
        os._exit(1)


def _in_words(error: BaseException) -> str:
    return (type(error).__name__ + ": " + str(error)).replace("\n", " ")[:_LONGEST_ERROR]


def _is_in(name: str, other: str) -> bool:
    """Return whether a module is ``other`` or one below it."""
    return name == other or name.startswith(other + ".")


def _environ() -> dict[bytes, bytes]:
    return dict(getattr(os.environ, "_data", None) or os.environb)  # the mapping itself decodes each value


def _path() -> list[str]:
    return [each for each in sys.path if isinstance(each, str)]


def _surroundings() -> dict[str, str | None]:
    """Return the values of the surroundings, by the kind of their record."""
    file = _variables_of_main().get("__file__")
    values: dict[str, str | None] = {"f": file if isinstance(file, str) else None}
    values["a"] = "\0".join([each for each in getattr(sys, "argv", ()) if isinstance(each, str)])
    try:  # noqa: SIM105 - contextlib is not imported here
        values["c"] = os.getcwd()
    except OSError:  # it has been deleted
        pass
    return values


def _surround(values: dict[str, str | None]) -> None:
    """Set those of the surroundings that have another value. Raises OSError."""
    now = _surroundings()
    for kind, value in values.items():
        if now.get(kind) == value:
            continue
        if kind == "a":
            sys.argv[:] = value.split("\0") if value else []
        elif kind == "c":
            os.chdir(value or "/")
        elif value is None:
            del _variables_of_main()["__file__"]
        else:
            _variables_of_main()["__file__"] = value


def _variables_of_main() -> dict[str, object]:
    return getattr(sys.modules.get("__main__"), "__dict__", {})


def _file_of(module: object) -> object:
    """Return a module's file, without the code with which a lazy module answers: that would import it."""
    try:
        return object.__getattribute__(module, "__dict__").get("__file__")
    except AttributeError:  # any object may be in sys.modules
        return None


def _hex(value: str | None) -> str:
    return "-" if value is None else "=" + value.encode("utf-8", "surrogatepass").hex()


def _unhex(text: str) -> str | None:
    return None if text == "-" else bytes.fromhex(text[1:]).decode("utf-8", "surrogatepass")


def _set(key: bytes, value: bytes | None) -> None:
    if value is None:
        os.environb.pop(key, None)
    else:
        os.environb[key] = value


def _read(path: str) -> bytes:
    with open(path, "rb") as file:
        return file.read()


def _device(prefixes: tuple[str, ...]) -> str:
    """Return the first open file of this process whose path has one of these prefixes; empty if none has."""
    for number in os.listdir("/proc/self/fd"):
        try:
            path = os.readlink("/proc/self/fd/" + number)
        except OSError:  # the folder itself
            continue
        if path.startswith(prefixes):
            return path
    return ""


def _visible(count: int) -> int:
    """Return how many of the GPUs CUDA shows the program: those in its variable, up to the first that is none."""
    names = os.environ.get("CUDA_VISIBLE_DEVICES")
    found = 0
    for name in (each.strip() for each in (names or "").split(",")):
        if not (name.startswith(("GPU-", "MIG-")) or (name.isdecimal() and int(name) < count)):
            break
        found += 1
    return count if names is None else found


def _numbered(prefix: str) -> int:
    """Return the number of paths that consist of this prefix and digits."""
    folder, _, name = prefix.rpartition("/")
    try:
        found = os.listdir(folder or "/")
    except OSError:
        return 0
    return sum(each.startswith(name) and each[len(name) :].isdigit() for each in found)


def _stamp(path: str) -> tuple[int, int]:
    try:
        found = os.stat(path)
    except OSError:
        return (0, 0)
    return (found.st_mtime_ns, found.st_size)


def _start_up() -> None:
    """Prepare this interpreter before its program begins; in a spare, wait for the launcher's release.

    ``site`` imports ``sitecustomize`` before the interpreter reads its program. This module imports a real one of that
    name in its place. Without a real one it raises the ImportError that ``site`` expects, so that no trace remains.

    Another interpreter may come first: a wrapper script, or a ``.pth`` file, asks it something. It is not the program.
    """
    given = {key[len(_PREFIX) :]: os.environ.pop(key) for key in list(os.environ) if key.startswith(_PREFIX)}
    if "PYTHONPATH" in given:
        os.environ["PYTHONPATH"] = given["PYTHONPATH"]
    else:
        os.environ.pop("PYTHONPATH", None)
    sys.path[:] = [each for each in sys.path if each != given["FOLDER"]]
    sys.path_importer_cache.pop(given["FOLDER"], None)
    ours = sys.modules.pop(_STARTUP)
    try:
        try:
            __import__(_STARTUP)
        finally:
            if given["PID"] == str(os.getpid()):
                recorder = Recorder(given["LOG"])
                sys.meta_path.insert(0, recorder)
                if "RELEASE" in given:
                    _warm_up(given, recorder)
    except BaseException:
        sys.modules[_STARTUP] = ours  # zipimport of Python 3.9 fails unless it can remove this itself
        raise


def _warm_up(given: dict[str, str], recorder: Recorder) -> None:
    """Return when the launcher releases this spare; in all other cases, end the process before its program."""
    try:
        Warm(given, recorder).run()
    except BaseException:  # noqa: BLE001
        os._exit(1)


if __name__ == _STARTUP:
    _start_up()
# --- end of the bootstrap

import argparse
import contextlib
import errno
import re
import select
import signal
import time
from typing import Callable, Iterable, NamedTuple, NoReturn, Sequence, TypeVar

NAME = "kubemend-run"
COUNT, REASON = "KUBEMEND_RESTART_COUNT", "KUBEMEND_RESTART_REASON"
CACHE, CACHE_FOLDER = "KUBEMEND_CACHE", "/var/cache/kubemend"
DEVICES = "/dev/nvidia:/dev/kfd:/dev/dri/:/dev/infiniband/"
_OWN = re.compile("SIG(KILL|STOP|CHLD|PIPE|XFSZ|XCPU|SEGV|BUS|ILL|FPE|TRAP|SYS|ABRT|TSTP|TTIN|TTOU|CONT)")
_NOT_FORWARDED = {each for each in signal.Signals if _OWN.fullmatch(each.name)}
FORWARDED = tuple(sorted(signal.valid_signals() - _NOT_FORWARDED))
"""All but those that cannot be caught, that a process causes itself, and those by which terminals stop processes."""
STOPS: frozenset[int] = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGQUIT})
"""Signals that stop a container, unless its image has another one: after one of them, the launcher starts nothing.

People send SIGINT and SIGQUIT to running programs, too: a program that has run on for ten minutes was not stopped,
unless the option names them.
"""

_INTERRUPTS = (signal.SIGINT, signal.SIGQUIT)
_INTERRUPT_LASTS = 600.0  # as an image's STOPSIGNAL; kubelet's SIGKILL follows after 30 s by default
_FREE, _LONGEST_WAIT = 3, 300.0  # the agent's backoff: agent/restart/budget.py
_FIRST_KILLED = b"1000"  # oom_score_adj of a spare
_PERIOD = 0.1  # of the spare's duty cycle
_COUNT_CHILDREN_EVERY = 10  # periods
_MOST_THREADS = 256  # of a spare, each of which is read in each period
_CONTENDED = 0.1  # of the time that a spare was running or waiting for a CPU
_RESCAN = 0.05
_LONGEST_POLL = 3600.0
_REPORT_UNKILLED = 30.0
_MOST_OTHERS = 32  # children of a shell script that has then executed the launcher
_MOST_REAPED = 1000  # children at a time
_LONGEST_CHASE = 2.0  # of processes that fork while they are killed
_MOST_ORPHANS, _MOST_SCANS = 256, 10  # for those of a spare that is dropped
_TRIES = 5  # spares for one run of the program
_MOST_FAILED_FROM_SPARE = 2  # programs in a row
_LONGEST_START = 60.0  # of the program's interpreter
_LONGEST_EXEC = 5.0  # that the launcher waits for: signals and the agent wait with it
_SHORTAGES = (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
_LONGEST_SHORTAGE, _RETRY = 60.0, 0.5  # of a restart, for which the container would end
_SETTLED = 1.0
_LEARN_EVERY = 10.0
_MOST_NAMES = _MOST_RECORDED
_LONGEST_STORE = 4 << 20
_LONGEST_MESSAGE = 65536  # of a spare, whose imports could write to its pipe
_LONGEST_REQUEST, _MOST_PEERS, _MOST_LEFTOVERS = 4096, 4, 64
_LONGEST_WHY = 200
_LONGEST_LINE, _LONGEST_SAY = 4000, 0.5  # bytes, all of which a pipe takes once it takes any, and seconds
_LONGEST_ENVIRON = 8 << 20  # more than the kernel passes to a program
_LONGEST_GRACE, _LONGEST_HOLD = 3600.0, 600.0
_EARLY_FAILURES = 2  # after which the agent empties the cache, too: agent/restart/cache.py
_LONGEST_EMPTYING, _DEEPEST, _MOST_ASIDE = 2.0, 32, 1000
_A_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_ASIDE = ".kubemend-emptied-"  # as in the agent: agent/actuator/cache_removal.py
_CACHE_VOLUME = "/volumes/kubernetes.io~empty-dir/kubemend-cache"  # the end of its path on the node
CACHES = {
    "CUDA_CACHE_PATH": "cuda",
    "JAX_COMPILATION_CACHE_DIR": "jax",
    "PYTHONPYCACHEPREFIX": "python",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "TORCH_EXTENSIONS_DIR": "torch-extensions",
    "TRITON_CACHE_DIR": "triton",
    "XDG_CACHE_HOME": "xdg",
}
"""The variables of the component ``caches``, and what each one's value ends with, after the container's name."""
_CONTAINER = re.compile("[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")  # its name
_SOCKET = re.compile(r"launcher-[0-9]{1,20}\.sock")
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER, _MFD_CLOEXEC = 1, 36, 1
_RECORD = re.compile(r"[md] [^\s\0]+|e [0-9a-f]+ (-|=[0-9a-f]*)|p [0-9a-f]*|[acf] (-|=[0-9a-f]*)")
_Value = TypeVar("_Value")


class LauncherError(Exception):
    """The launcher cannot run the command; the text is for people. ``code`` is the launcher's exit code."""

    def __init__(self, text: str, code: int = 2) -> None:
        """Create it; ``text`` has what failed and why."""
        super().__init__(text)
        self.code = code


class ShortageError(LauncherError):
    """A process cannot be started now, for lack of processes, files or memory, of which others may free some."""


# Pure: whether to restart a program that has ended.


class Policy(NamedTuple):
    """Which failures cause a restart: at most ``limit`` within ``window`` seconds, and none with a ``fatal`` code.

    A program that ran for ``healthy_after`` seconds or longer is restarted at once. After several shorter runs in a
    row a restart waits, the first time for ``initial_backoff`` seconds.
    """

    limit: int = 0
    window: float = 3600.0
    fatal: frozenset[int] = frozenset()
    healthy_after: float = 60.0
    initial_backoff: float = 10.0


class Past(NamedTuple):
    """Earlier restarts: their times, and how many runs of the program in a row ended early."""

    restarts: tuple[float, ...] = ()
    early: int = 0


class Decision(NamedTuple):
    """Restart after ``wait`` seconds; None: do not restart, because of ``reason``, which may be empty."""

    wait: float | None
    reason: str
    past: Past


def decide(policy: Policy, past: Past, code: int, ran: float, now: float, *, stopping: bool) -> Decision:
    """Decide whether to restart a program that ended with ``code`` (128 + n after signal n).

    The first three runs in a row that end early are restarted at once. From the fourth on, restarts wait: each time
    twice as long as before, 300 s at most.
    """
    if code == 0 or stopping or policy.limit == 0:
        return Decision(None, "", past)
    if code in policy.fatal:
        return Decision(None, f"exit code {code} is fatal", past)
    recent = tuple(each for each in past.restarts if now - each < policy.window)
    if len(recent) >= policy.limit:
        reason = f"{len(recent)} of {policy.limit} restarts within {policy.window:g} s are used"
        return Decision(None, reason, past)
    early = past.early + 1 if ran < policy.healthy_after else 0
    wait = min(policy.initial_backoff * 2.0 ** min(early - _FREE - 1, 30), _LONGEST_WAIT) if early > _FREE else 0.0
    return Decision(wait, "", Past((*recent, now), early))


def is_failure(policy: Policy, code: int, *, stopping: bool) -> bool:
    """Return whether the agent decides about a program's end, if it follows: neither success nor stop, nor fatal."""
    return code != 0 and not stopping and code not in policy.fatal


def empties_cache(past: Past, restarts: int) -> bool:
    """Return whether a broken cache may be why restarted programs end: a file in it would end each successor as well.

    That is if two of them in a row have ended early. The first run of the container, of ``restarts``, is no restart.
    """
    return min(past.early, restarts) >= _EARLY_FAILURES


def cache_of(environ: dict[str, str], mounts: str) -> str:
    """Return the name of this container's directory in the cache volume; empty if it has none that may be emptied.

    Only the pod's own emptyDir qualifies, as a whole, where the component ``caches`` mounts it: ``mounts`` is the text
    of /proc/self/mountinfo. The variables of that component have the container's name. A volume that is mounted in the
    directory must stay in its place, and so must the launcher's socket.
    """
    values = [environ.get(each, "").rpartition("/") for each in CACHES]
    folders = {folder for (folder, _, end), own in zip(values, CACHES.values()) if end == own}
    parents = {os.path.split(each) for each in folders}
    names = {name for parent, name in parents if parent == CACHE_FOLDER and _CONTAINER.fullmatch(name)}
    if len(names) != 1:
        return ""
    (name,) = names
    directory = f"{CACHE_FOLDER}/{name}"
    lines = [each.split(" ") for each in mounts.splitlines()]
    at = {each[4]: each[3] for each in lines if len(each) > 4}  # the last one on a folder is the one that is seen
    within = (*at, environ.get(CACHE, ""))
    is_in_use = any(os.path.normpath(each) == directory or each.startswith(directory + "/") for each in within)
    return name if at.get(CACHE_FOLDER, "").endswith(_CACHE_VOLUME) and not is_in_use else ""


def exit_code(status: int) -> int:
    """Return the exit code that a container reports for a status of wait: 128 + n after signal n."""
    return os.WEXITSTATUS(status) if os.WIFEXITED(status) else 128 + os.WTERMSIG(status)


# Pure: the command.


class Program(NamedTuple):
    """How a Python command runs its program. ``cold`` is why no spare is possible; empty if one is."""

    key: tuple[str, ...]
    main: str = ""
    cold: str = ""


_INTERPRETER = re.compile(r"python(3(\.\d+)?t?)?")
_WITH_VALUE = frozenset("WX")
_OPEN_FILES = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")
READ_ONCE = "its program comes from stdin or another pipe, where a second run would find the end"


def program_of(command: Sequence[str]) -> Program | None:
    """Return the program of a Python command line; None for any other command."""
    if not _INTERPRETER.fullmatch(os.path.basename(command[0])):
        return None
    words = list(command[1:])
    taken, cold = 1, ""
    while words and words[0].startswith("-") and words[0] != "-":
        word = words.pop(0)
        taken += 1
        if word == "--check-hash-based-pycs" and words:
            words.pop(0)
            taken += 1
        if word.startswith("--"):
            continue
        for position, letter in enumerate(word[1:], 1):
            rest = word[position + 1 :]
            if letter in "cm":
                name = rest or (words[0] if words else "")
                taken += 0 if rest else 1
                return Program(tuple(command[:taken]), name if letter == "m" else "", cold)
            if letter in "EIS":
                cold = f"python -{letter} reads no sitecustomize"
            if letter in _WITH_VALUE:
                if not rest and words:
                    words.pop(0)
                    taken += 1
                break
    is_pipe = words[:1] and words[0].startswith(_OPEN_FILES) and not os.path.isfile(words[0])
    if not words or words[0] == "-" or is_pipe:
        return Program(tuple(command[:taken]), cold=READ_ONCE)
    return Program(tuple(command[: taken + 1]), cold=cold)


# Pure: the modules that a spare imports.


class Known(NamedTuple):
    """The modules of a program: the ``names`` that an earlier run imported, in order, and those ``left_out``."""

    names: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()


def names_of(records: Iterable[str]) -> tuple[str, ...]:
    """Return the modules in a program's records whose import has succeeded, each once, in order."""
    begun, running = _imports(records)
    return tuple(each for each in begun if not _is_below(each, running))[:_MOST_NAMES]


def _imports(records: Iterable[str]) -> tuple[list[str], set[str]]:
    """Return the modules whose import began, and those of them whose import has not succeeded.

    An import that has not ended may be the program itself, as in ``python -c 'import train'``. The submodules of such a
    module cannot be imported without it.
    """
    lines = list(records)
    begun = list(dict.fromkeys(each[2:] for each in lines if each.startswith("m ")))
    ended = {each[2:] for each in lines if each.startswith("d ")}
    return begun, {each for each in begun if each not in ended}


def plan(records: Sequence[str], known: Known, main: str, skipped: Sequence[str] = ()) -> list[str]:
    """Return a spare's records in order: the program's own, then the modules that only an earlier run imported.

    The program itself is excluded, and with their submodules the modules that are left out or still being imported.
    """
    valid = [each for each in records if _RECORD.fullmatch(each)]
    names = set(names_of(valid))
    leave = {*known.left_out, *skipped, *_imports(valid)[1]}
    program = {"__main__", "__mp_main__", _STARTUP, "usercustomize", main + ".__main__"}
    if not any(each.startswith(main + ".") for each in names):  # a package is imported before its __main__
        program.add(main)
    extra = ["m " + each for each in known.names if each not in names]
    todo = [each for each in (*valid, *extra) if not each.startswith("d ")]
    return [each for each in todo if each[:2] != "m " or not (each[2:] in program or _is_below(each[2:], leave))]


def succeeded(records: Sequence[str], known: Known) -> list[str]:
    """Return the records of the modules whose import must not fail in a spare: it has succeeded in the program.

    For one that this run has imported, only its own attempt counts.
    """
    valid = [each for each in records if _RECORD.fullmatch(each)]
    begun = {each[2:] for each in valid if each.startswith("m ")}
    earlier = [each for each in known.names if each not in begun]
    return ["d " + each for each in (*names_of(valid), *earlier)]


def _is_below(name: str, leave: set[str]) -> bool:
    """Return whether a module is one of these or below one. Its parents are looked up: there may be 20,000 of each."""
    while name and name not in leave:
        name = name.rpartition(".")[0]
    return bool(name)


def stored(known: Known) -> str:
    """Return the text of a module list's file."""
    return "".join([f"! {each}\n" for each in known.left_out] + [f"{each}\n" for each in known.names])


def read_stored(text: str) -> Known:
    """Return the modules of a file's text; lines that are not a module's name are ignored."""
    left_out: list[str] = []
    names: list[str] = []
    for line in text.splitlines()[:_MOST_NAMES]:
        name = line[2:] if line.startswith("! ") else line
        if all(part.isidentifier() for part in name.split(".")):
            (left_out if line.startswith("! ") else names).append(name)
    return Known(tuple(dict.fromkeys(names)), tuple(dict.fromkeys(left_out)))


# Pure: the time in which a spare imports.


class Scheduled(NamedTuple):
    """For how many seconds a thread has run, and has waited for a CPU."""

    ran: float
    waited: float


def takes_from_others(before: Scheduled | None, now: Scheduled | None) -> bool:
    """Return whether threads competed for their CPUs between two moments; True if that is unknown.

    A thread that never waits for a CPU uses only those that are idle. That a cgroup's quota is used up counts as
    waiting, too.
    """
    if before is None or now is None:
        return True
    waited = now.waited - before.waited
    return waited > _CONTENDED * (waited + now.ran - before.ran)


# Pure: values of options.

_FUNCTION = re.compile(r"[^\W\d]\w*")
_SIZE = re.compile(r"([0-9]{1,18}(?:\.[0-9]{1,18})?)(Ki|Mi|Gi|Ti|k|M|G|T)?")
_UNITS = {None: 1, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
_DURATION = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h)?")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, None: 1.0}
_HIGHEST_CODE, _LONGEST_NUMBER = 255, 9


def size(text: str) -> int:
    """Return the bytes of a quantity such as ``2Gi`` or ``500M``. Raises ValueError."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size; write bytes, such as 2Gi")
    return int(float(found.group(1)) * _UNITS[found.group(2)])


def seconds(text: str) -> float:
    """Return the seconds of a duration such as ``90s``, ``5m`` or ``90``. Raises ValueError."""
    found = _DURATION.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a duration; write seconds, such as 90s")
    return float(found.group(1)) * _SECONDS[found.group(2)]


def codes(text: str) -> frozenset[int]:
    """Return the exit codes of a list such as ``42, 64-78``. Raises ValueError."""
    found: set[int] = set()
    for item in filter(None, (each.strip() for each in text.split(","))):
        first, _, last = item.partition("-")
        low, high = (_natural(each.strip()) for each in (first, last or first))
        if not 1 <= low <= high <= _HIGHEST_CODE:
            raise ValueError("list exit codes from 1 to 255, such as 42, 64-78")
        found.update(range(low, high + 1))
    return frozenset(found)


def stop_signals(text: str) -> frozenset[int]:
    """Return the signals of a list such as ``TERM,SIGUSR1,37``, by name or number. Raises ValueError."""
    found: set[int] = set()
    for name in filter(None, (each.strip().upper() for each in text.split(","))):
        known = getattr(signal, name if name.startswith("SIG") else "SIG" + name, None)
        number = int(known) if isinstance(known, signal.Signals) else _natural(name)
        if number not in signal.valid_signals() or number in (signal.SIGKILL, signal.SIGSTOP, signal.SIGCHLD):
            raise ValueError(
                f"{name!r} is not a signal that can stop the program; write names or numbers, such as TERM,USR1"
            )
        found.add(number)
    if not found:
        raise ValueError("name at least one signal, or the launcher would restart a program that SIGTERM has ended")
    return frozenset(found)


def _natural(text: str) -> int:
    """Return the number that a text is, of nine digits at most; 0 for any other text."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= _LONGEST_NUMBER else 0


def prepare_function(text: str) -> str:
    """Return the ``module:function`` or ``file.py:function`` that it must be. Raises ValueError."""
    where, _, function = text.rpartition(":")
    is_file = where.endswith(".py")
    parts = [os.path.basename(where)[:-3]] if is_file else where.split(".")
    if not all(_FUNCTION.fullmatch(each) for each in (*parts, function)) or "\0" in text:
        raise ValueError(
            f"{text!r} is not a function; write module:function or file.py:function, such as model:prepare"
        )
    return text


def memory_limit(asked: int, cgroup_limit: int | None) -> int | None:
    """Return the most bytes that a spare may have: ``asked``, or a quarter of the cgroup's limit. None: no limit."""
    if asked:
        return asked
    return cgroup_limit // 4 if cgroup_limit else None


# Pure: the agent's requests.

DEVICE_OPENED, TOO_MUCH_MEMORY, TOO_SLOW, KILLED = "DeviceOpened", "TooMuchMemory", "TooSlow", "Killed"
ENDED, NOT_IMPORTABLE, MODULE_CHANGED = "Ended", "NotImportable", "ModuleChanged"
DISABLED, NOT_PYTHON, UNSUPPORTED = "Disabled", "NotPython", "Unsupported"
"""Why there is no spare, for programs: as in the agent (``agent.restart.process.NoSpare``)."""

RUNNING, STOPPING, HELD, FAILED, RESTARTING, ENDING = "running", "stopping", "held", "failed", "restarting", "ending"
"""The states of the launcher. ``held``: the program is dead, and the agent decides when the next one begins.

``failed``: the program has ended by itself, and the launcher does nothing until the agent has decided, for a time.
"""


class Order(NamedTuple):
    """The agent's order ``name``: kill the program with this number, and start the next one when the agent releases it.

    The program gets ``grace`` seconds after SIGTERM; 0: it is killed at once. Without a release within ``hold`` seconds
    after the order, or its repetition, the launcher starts the next program. ``reason`` is for that program.
    """

    name: str
    program: int
    grace: float
    hold: float
    reason: str


class Follow(NamedTuple):
    """The peer is sent every change of the state from now on, that of the spare included.

    If the program fails within ``lease`` seconds, the launcher waits ``hold`` seconds for the agent's decision; 0: it
    decides by itself.
    """

    hold: float
    lease: float


class Verdict(NamedTuple):
    """The agent's decision about the failure of this ``program``: the launcher decides, or ``ends`` the container."""

    program: int
    ends: bool


class Request(NamedTuple):
    """A request of the agent, one of these, or none: a question.

    ``release`` is the name of the order whose next program begins, ``discard`` that of one whose next program must not
    begin: the container ends.
    """

    order: Order | None = None
    release: str = ""
    discard: str = ""
    follow: Follow | None = None
    verdict: Verdict | None = None


def request_of(line: bytes) -> Request | None:
    """Return the request in a line; None if it is not valid."""
    import json

    try:
        given = json.loads(line.decode())
        what = given["do"]
        if what == "status":
            return Request()
        if what == "follow":
            hold, lease = (_between(given[each], _LONGEST_HOLD) for each in ("hold", "lease"))
            return Request(follow=Follow(hold, lease))
        if what in ("leave", "end"):
            return Request(verdict=Verdict(_integer(given["program"]), what == "end"))
        name = _identifier(given["order"])
        if what == "release":
            return Request(release=name)
        if what == "discard":
            return Request(discard=name)
        if what != "stop":
            return None
        grace, hold = (
            _between(given[each], most) for each, most in (("grace", _LONGEST_GRACE), ("hold", _LONGEST_HOLD))
        )
        return Request(Order(name, _integer(given["program"]), grace, hold, _identifier(given["reason"])))
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _identifier(text: object) -> str:
    if not (isinstance(text, str) and re.fullmatch(r"[!-~]{1,128}", text)):
        raise ValueError("not an identifier")
    return text


def _printable(text: str) -> str:
    """Return a reason as the agent accepts it: printable, and not too long. It may contain any path."""
    return "".join(each if each.isprintable() else "?" for each in text[:_LONGEST_WHY])


def _integer(value: object) -> int:
    if not isinstance(value, int):
        raise TypeError("not an integer")
    return value


def _between(value: object, most: float) -> float:
    if not (isinstance(value, (int, float)) and 0.0 <= value <= most):
        raise ValueError("not in the range")
    return float(value)


# /proc and cgroups.


class Process(NamedTuple):
    """A process. ``started`` (clock ticks since boot) distinguishes it from a later one with the same PID."""

    pid: int
    parent: int
    state: str
    started: int


def processes(proc: str = "/proc") -> dict[int, Process]:
    """Return all visible processes by PID. Raises OSError as ``process_of`` does."""
    found = {}
    for name in os.listdir(proc):
        if name.isdecimal():
            process = process_of(int(name), proc)
            if process is not None:
                found[process.pid] = process
    return found


def process_of(pid: int, proc: str = "/proc") -> Process | None:
    """Return the process with this PID; None if it does not exist, or if /proc hides it (``hidepid``).

    Raises OSError if the kernel cannot tell, without a free file or memory: the process may live.
    """
    try:
        fields = _read(f"{proc}/{pid}/stat").rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    state = fields[0].decode()
    if state == "Z" and int(fields[17]) > 1:
        state = "S"  # its first thread has ended, but others live on
    return Process(pid, int(fields[1]), state, int(fields[19]))


def descendants(found: dict[int, Process], root: int, without: Iterable[int] = ()) -> list[Process]:
    """Return the living descendants of ``root``, parents first, except for ``without`` and their descendants."""
    children: dict[int, list[Process]] = {}
    for process in found.values():
        children.setdefault(process.parent, []).append(process)
    result, left, without = [], [root], frozenset(without)
    while left:
        for child in children.get(left.pop(0), ()):
            if child.pid not in without:
                left.append(child.pid)
                result.append(child)
    return [each for each in result if each.state not in "ZX"]


def kill(process: Process, number: int = signal.SIGKILL) -> None:
    """Kill this process, or send it another signal, but never a later one with the same PID. Raises OSError."""
    with contextlib.suppress(ProcessLookupError):
        try:
            handle = os.pidfd_open(process.pid)
        except (AttributeError, OSError):  # Python 3.8, a kernel before 5.3, or a filter of system calls
            if _is_same(process):
                os.kill(process.pid, number)
            return
        try:
            if _is_same(process):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def _is_same(process: Process) -> bool:
    now = process_of(process.pid)
    return now is not None and now.started == process.started


def scheduled(pid: int, threads: Iterable[str] = ()) -> Scheduled | None:
    """Return what the kernel has recorded of a process's first thread, or of these together; None if it does not."""
    try:
        folders = [f"/proc/{pid}/task/{each}" for each in threads] or [f"/proc/{pid}"]
        read = [_read(folder + "/schedstat").split() for folder in folders]
        return Scheduled(sum(int(each[0]) for each in read) * 1e-9, sum(int(each[1]) for each in read) * 1e-9)
    except (OSError, ValueError, IndexError):
        return None


def scheduled_together(pid: int) -> Scheduled | None:
    """Return the same of all its threads, which compile together; None if one has just ended, or it has too many."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return None
    return scheduled(pid, threads) if len(threads) <= _MOST_THREADS else None


def resident(pid: int) -> int:
    """Return the resident bytes of a process; 0 if it has ended."""
    try:
        return int(_read(f"/proc/{pid}/statm").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def open_files(pid: int) -> list[str]:
    """Return the paths of a process's open files, such as ``/dev/null`` and ``pipe:[123]``; none if it has ended."""
    paths = []
    with contextlib.suppress(OSError):
        for number in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                paths.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return paths


def variables_at_start(pid: int) -> list[bytes]:
    """Return the variables (``K=V``) with which a process's program began; none if it has ended.

    A process that is forked has those of its parent, whatever either has set or removed since.
    """
    with contextlib.suppress(OSError), open(f"/proc/{pid}/environ", "rb") as file:
        return file.read(_LONGEST_ENVIRON).split(b"\0")
    return []


def environ_at_start() -> dict[str, str]:
    """Return the environment with which this process was started, which is the container's.

    A ``sitecustomize`` of the image may have changed ``os.environ`` since: a tracer removes itself from PYTHONPATH, and
    would not be in the program.
    """
    pairs = [each.partition(b"=") for each in variables_at_start(os.getpid()) if each]
    if not pairs or not all(separator for _, separator, _ in pairs):  # without /proc, or a process title is there
        return dict(os.environ)
    return {os.fsdecode(key): os.fsdecode(value) for key, _, value in reversed(pairs)}  # the first of a name counts


def device_of(pid: int, prefixes: tuple[str, ...]) -> str:
    """Return a device that a process has open or mapped, by path prefix; empty if it has none."""
    paths = open_files(pid)
    with contextlib.suppress(OSError):
        for line in _read(f"/proc/{pid}/maps").splitlines():
            paths += [os.fsdecode(each) for each in line.split(None, 5)[5:]]
    return next((each for each in paths if each.startswith(prefixes)), "")


def cgroup_limit(groups: str, root: str = "/sys/fs/cgroup") -> int | None:
    """Return the lowest memory limit of the cgroups in ``groups`` (/proc/self/cgroup) and of their parents."""
    limits = []
    for line in groups.splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        folder, name = (root + "/memory", "memory.limit_in_bytes") if controllers else (root, "memory.max")
        parts = [each for each in path.split("/") if each]
        for depth in range(len(parts) + 1):
            with contextlib.suppress(OSError, ValueError):
                limits.append(int(_read("/".join([folder, *parts[:depth], name]))))
    lowest = min(limits, default=0)
    return lowest if 0 < lowest < 1 << 60 else None  # v1 reports "no limit" as the highest multiple of a page


# Starting processes.


def prctl(option: int, value: int) -> bool:
    """Set an attribute of this process; return whether that was possible."""
    try:
        import ctypes

        return bool(ctypes.CDLL(None).prctl(option, value, 0, 0, 0) == 0)
    except (ImportError, OSError, AttributeError):
        return False


class Start(NamedTuple):
    """How to start a program.

    - ``ignored``: signals that it ignores
    - ``inherited``: files that it inherits in addition to the standard ones
    - ``foreground``: whether it gets the terminal
    """

    command: Sequence[str]
    environ: dict[str, str]
    ignored: Sequence[int] = ()
    inherited: Sequence[int] = ()
    foreground: bool = False


def spawn(start: Start) -> int:
    """Start a program in a process group of its own, which the kernel kills when this process ends; return its pid.

    A program whose file has not been read after five seconds, as on a file system that hangs, counts as started: a
    signal ends it, and an error is exit code 127. Raises LauncherError, and ShortageError where that is why.
    """
    files: tuple[int, ...] = ()
    try:
        reader, writer = files = os.pipe()
        launcher, pid = os.getpid(), os.fork()
    except OSError as error:
        for each in files:
            os.close(each)
        raise ShortageError(f"cannot start a process: {error.strerror}", 126) from None
    if pid == 0:
        _become(start, launcher, errors=writer)
    os.close(writer)
    with contextlib.suppress(OSError):  # the child does this, too, and may have been faster
        os.setpgid(pid, pid)
    waiting = select.poll()
    waiting.register(reader, select.POLLIN)
    failed = os.read(reader, 16) if waiting.poll(_LONGEST_EXEC * 1000.0) else b""
    os.close(reader)
    if failed:
        os.waitpid(pid, 0)
        number = int(failed)
        code = 127 if number == errno.ENOENT else 126  # as in shells
        kind = ShortageError if number in _SHORTAGES else LauncherError
        raise kind(f"cannot run {start.command[0]}: {os.strerror(number)}", code)
    return pid


def _become(start: Start, launcher: int, errors: int) -> NoReturn:
    """Turn this child of the launcher into the program; write the errno of a failure to ``errors``."""
    try:
        signal.set_wakeup_fd(-1)
        os.setpgid(0, 0)
        prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:
            os._exit(1)
        if start.foreground:
            _give_terminal(os.getpid())
        for each in (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGTTOU):  # Python ignores two, the launcher one
            signal.signal(each, signal.SIG_DFL)
        for each in signal.valid_signals():  # the handler would take a signal that comes before the program
            if signal.getsignal(each) is _note:
                signal.signal(each, signal.SIG_DFL)
        for number in start.ignored:
            signal.signal(number, signal.SIG_IGN)
        for file in start.inherited:
            os.set_inheritable(file, True)  # noqa: FBT003
        if _PREFIX + "LOG" in start.environ:
            start.environ[_PREFIX + "PID"] = str(os.getpid())
        os.execvpe(start.command[0], list(start.command), start.environ)
    except OSError as error:
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)  # the launcher may wait no more
        os.write(errors, str(error.errno).encode())
    finally:
        os._exit(127)


def memory_file(name: str, content: bytes = b"") -> int:
    """Return a file in memory. Raises OSError, and AttributeError or ImportError where there is no such call.

    The Pythons of conda and uv do not have it: they are built for older C libraries than those with which they run.
    """
    if hasattr(os, "memfd_create"):
        try:
            file = os.memfd_create(name)
        except OSError as error:
            raise OSError(error.errno, error.strerror, "memfd_create") from None
    else:
        import ctypes

        file = int(ctypes.CDLL(None, use_errno=True).memfd_create(name.encode(), _MFD_CLOEXEC))
        if file < 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), "memfd_create")
    os.write(file, content)
    return file


def _write_list(file: int, records: Sequence[str]) -> None:
    """Replace the content of a file in memory by records. Raises OSError."""
    os.ftruncate(file, 0)
    os.pwrite(file, "\n".join(records).encode("utf-8", "surrogateescape"), 0)


def bootstrap() -> bytes:
    """Return a zip file with the module ``sitecustomize``: the marked part of this file."""
    import io
    import zipfile

    begin, end = (f"# --- {each} of the bootstrap\n" for each in ("begin", "end"))
    with open(__file__, encoding="utf-8") as file:  # also one that a Windows machine has checked out
        source = file.read().partition(begin)[2].partition(end)[0]
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as archive:
        archive.writestr(zipfile.ZipInfo(_STARTUP + ".py"), "from __future__ import annotations\n" + source)
    return content.getvalue()


def empty_directory(volume: str, name: str, until: float) -> bool:
    """Move an entry of a folder aside, and remove what can be removed before a monotonic time; False: there was none.

    The rename takes one call: however much it contains, nothing is in its place after that. What remains is removed
    with the next one, or with the pod. Raises OSError.
    """
    folder = os.open(volume, _A_FOLDER)
    try:
        os.rename(name, _ASIDE + os.urandom(8).hex(), src_dir_fd=folder, dst_dir_fd=folder)
        tried: set[str] = set()
        while True:
            left = _moved_aside(folder) - tried
            tried |= left
            if not left:
                break
            for each in left:
                with contextlib.suppress(OSError):  # another container's launcher, or the agent, removes it as well
                    _remove(folder, each, folder, until, _DEEPEST)
    except FileNotFoundError:
        return False
    finally:
        os.close(folder)
    return True


def _moved_aside(volume: int) -> set[str]:
    """Return the names of entries that were moved aside, a bounded number. Raises OSError."""
    with os.scandir(volume) as entries:
        found = (each.name for each in entries if each.name.startswith(_ASIDE))
        return {name for name, _ in zip(found, range(_MOST_ASIDE))}


def _remove(parent: int, name: str, volume: int, until: float, deepest: int) -> None:
    """Remove an entry of a folder and what is below it, but nothing behind a link. Raises OSError.

    A directory that is too deep is moved to the top of the volume, aside, as another tree.
    """
    if time.monotonic() >= until:
        return
    with contextlib.suppress(IsADirectoryError):
        os.unlink(name, dir_fd=parent)
        return
    if not deepest:
        os.rename(name, _ASIDE + os.urandom(8).hex(), src_dir_fd=parent, dst_dir_fd=volume)
        return
    folder = os.open(name, _A_FOLDER, dir_fd=parent)
    try:
        with os.scandir(folder) as entries:
            for each in entries:
                if time.monotonic() >= until:
                    return
                with contextlib.suppress(OSError):
                    _remove(folder, each.name, volume, until, deepest - 1)
    finally:
        os.close(folder)
    os.rmdir(name, dir_fd=parent)


def say(text: str) -> None:
    """Write one line for people to stderr. If that is a pipe that stays full, the line is lost.

    While the container runtime is away, it reads no pipe, and signals and orders must not wait for it.
    """
    line = f"{NAME}: {text}".encode("utf-8", "backslashreplace")[:_LONGEST_LINE] + b"\n"
    waiting = select.poll()
    waiting.register(2, select.POLLOUT)
    with contextlib.suppress(OSError):
        if waiting.poll(_LONGEST_SAY * 1000.0):
            os.write(2, line)


def _note(_number: int, _frame: object) -> None:
    """Do nothing: the signal's number is in the wakeup pipe, where the launcher reads it."""


def _pipe_name(file: int) -> str:
    """Return a pipe's path among the open files of a process."""
    return f"pipe:[{os.fstat(file).st_ino}]"


def _file_path(file: int) -> str:
    return f"/proc/{os.getpid()}/fd/{file}"


def _set_oom(pid: int, adjustment: bytes) -> None:
    """Set how likely the kernel kills a process when memory is short; the process may have ended."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/oom_score_adj", "wb") as file:
        file.write(adjustment)


def _oom_of(pid: int) -> bytes:
    """Return the same of a process; empty if it has ended."""
    try:
        return _read(f"/proc/{pid}/oom_score_adj").strip()
    except OSError:
        return b""


def _has_terminal() -> bool:
    """Return whether this process is in the foreground of a terminal on stdin."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _give_terminal(group: int) -> None:
    """Put a process group into the foreground of the terminal on stdin."""
    with contextlib.suppress(OSError):
        os.tcsetpgrp(0, group)


def _program_key(program: Program) -> tuple[str, ...]:
    """Return the key of a program in the cache: its command, its folder, and its script's time and size."""
    stamp = () if program.main else _stamp(program.key[-1])
    try:
        folder = os.getcwd()
    except OSError as error:
        raise OSError(error.errno, error.strerror, "the working directory") from None
    return (*program.key, folder, *(str(each) for each in stamp))


def _found_in(prepare: str, program: Program) -> str:
    """Return a prepare function as the folder that its module is in, ``/``, the module, ``:`` and the function.

    A file's module has the file's name. Other modules are in the program's folder, or where it finds them.
    """
    where, _, function = prepare.rpartition(":")
    if where.endswith(".py"):
        folder, name = os.path.split(os.path.realpath(where))
        return f"{folder}/{name[:-3]}:{function}"
    script = os.path.realpath(program.key[-1])
    folder = os.path.dirname(script) if not program.main and os.path.isfile(script) else os.getcwd()
    return f"{folder}/{where}:{function}"


class Store:
    """The module list of a program, in memory, and in the cache folder where that is writable."""

    def __init__(self, key: Sequence[str], folder: str) -> None:
        """Store the list of the program with this ``key`` below ``folder``."""
        import hashlib

        name = hashlib.sha256("\0".join(key).encode("utf-8", "surrogateescape")).hexdigest()[:16]
        self._path = os.path.join(folder, "modules", name)
        self.known = self._load()

    def keep(self, known: Known) -> None:
        """Store these modules. Readers and the next launcher see either the old list or the new one."""
        self.known = known
        # Another container of the pod may write the same program's list, and also be process 1.
        new = f"{self._path}.{os.urandom(8).hex()}"
        # Without such a volume, or if it is read-only or full, only this launcher has the list, in memory.
        with contextlib.suppress(OSError, ValueError):
            content = stored(known).encode()
            os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
            file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                if os.write(file, content) == len(content):  # or a name that is cut off could be another module's
                    os.replace(new, self._path)
            finally:
                os.close(file)
                os.unlink(new)  # it still exists if the volume is full

    def _load(self) -> Known:
        try:
            file = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return Known()
        try:
            if os.fstat(file).st_uid != os.geteuid():  # another user's list: its imports would run as this user
                return Known()
            text = os.read(file, _LONGEST_STORE).decode("utf-8", "replace")
            return read_stored(text.rpartition("\n")[0])  # a longer file's last name would be cut off
        except OSError:
            return Known()
        finally:
            os.close(file)


class Control:
    """The socket on which the agent sends requests, each a JSON object in a line; each change of state is an answer.

    The launcher listens in the cache folder, where the agent finds the file by the number of the mount namespace. It
    obeys only processes outside its PID namespace, whose PID the kernel reports as 0: no process of the container.
    """

    def __init__(self, folder: str) -> None:
        """Listen in ``folder``. Raises OSError."""
        import socket

        self._peers: dict[int, tuple[socket.socket, bytearray]] = {}
        self._followers: set[int] = set()
        os.makedirs(folder, exist_ok=True)
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        self._name = f"launcher-{os.stat('/proc/self/ns/mnt').st_ino}.sock"
        for name in [each for each in os.listdir(self._folder) if _SOCKET.fullmatch(each)][:_MOST_LEFTOVERS]:
            self._remove_leftover(name)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.settimeout(0)
        mask = os.umask(0o077)
        try:
            self._listener.bind(self._path(self._name))
        finally:
            os.umask(mask)
        self._listener.listen(_MOST_PEERS)

    def register(self, waiting: select.poll) -> None:
        """Wait for requests, too."""
        for file in (self._listener.fileno(), *self._peers):
            waiting.register(file, select.POLLIN)

    def requests(self, events: dict[int, int]) -> list[tuple[int, Request]]:
        """Return the requests that have arrived, with the number of the peer."""
        found = []
        for number in [each for each in self._peers if each in events]:
            for line in self._lines(number):
                request = request_of(line)
                if request is None:
                    self._drop(number)
                    break
                if request.follow:
                    self._followers.add(number)
                found.append((number, request))
        if self._listener.fileno() in events:
            self._accept()
        return found

    def send(self, state: dict[str, object], numbers: Iterable[int]) -> None:
        """Send the state to these peers; drop those that do not read."""
        import json

        line = json.dumps(state).encode() + b"\n"
        for each in [*numbers]:
            peer = self._peers.get(each)
            try:
                if peer and peer[0].send(line) < len(line):
                    self._drop(each)
            except OSError:
                self._drop(each)

    @property
    def peers(self) -> frozenset[int]:
        """Return the numbers of all peers."""
        return frozenset(self._peers)

    @property
    def followers(self) -> frozenset[int]:
        """Return the numbers of the peers that follow all changes."""
        return frozenset(self._followers)

    def close(self) -> None:
        """Remove the socket."""
        with contextlib.suppress(OSError):
            os.unlink(self._name, dir_fd=self._folder)

    def _path(self, name: str) -> str:
        return f"/proc/self/fd/{self._folder}/{name}"  # the path of a socket may have only 107 bytes

    def _remove_leftover(self, name: str) -> None:
        """Remove the socket of an earlier launcher, on which nothing listens any more. Its name may be this one's."""
        import socket

        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as trial:
            trial.settimeout(0)
            if trial.connect_ex(self._path(name)) == errno.ECONNREFUSED:
                os.unlink(name, dir_fd=self._folder)

    def _accept(self) -> None:
        import socket
        import struct

        with contextlib.suppress(OSError):
            peer, _ = self._listener.accept()
            pid, _, _ = struct.unpack("3i", peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
            if pid != 0:
                peer.close()
                return
            peer.settimeout(0)
            if len(self._peers) >= _MOST_PEERS:
                self._drop(next(iter(self._peers)))
            self._peers[peer.fileno()] = peer, bytearray()

    def _lines(self, number: int) -> list[bytes]:
        peer, text = self._peers[number]
        try:
            received = peer.recv(_LONGEST_REQUEST)
        except BlockingIOError:
            return []
        except OSError:
            received = b""
        *lines, rest = bytes(text + received).split(b"\n")
        text[:] = rest
        if not received or len(rest) >= _LONGEST_REQUEST:
            self._drop(number)
        return lines

    def _drop(self, number: int) -> None:
        peer = self._peers.pop(number, None)
        self._followers.discard(number)
        if peer:
            peer[0].close()


class Missing(NamedTuple):
    """Why there is no spare, for programs and for people; empty if none is due yet."""

    reason: str = ""
    message: str = ""


class Spare:
    """The launcher's view of a spare. ``ready``: its imports are done. ``released``: its program runs.

    ``message`` is why it must be dropped (empty: it need not), ``reason`` the same for programs. ``guilty``: it is
    the import of ``module``, and of ``failed`` within that, if this is not empty. ``memory`` are the resident bytes at
    the last check, children included where it counted them.
    ``hopeless``: the next spare would fail in the same way. ``prepares`` is the function that it calls after its
    imports, empty for none, ``preparing``: it runs now. ``unprepared``: this function is why it is dropped.
    ``was_ready``: that has been logged. ``todo`` are the
    records of what it imports. ``below`` are the processes that it had started at the last check. ``closed``: it has
    closed its end of ``pipe``, the one of ``status``, so it cannot be released.
    """

    def __init__(
        self, pid: int, status: int, release: int, log: int, names: int, todo: Sequence[str], prepares: str = ""
    ) -> None:
        """Follow the process ``pid``, which writes to ``status`` and reads from ``release``, ``log`` and ``names``."""
        self.pid, self.status, self.release, self.log, self._names = pid, status, release, log, names
        self.todo, self.learn_at = list(todo), 0.0
        self.module, self.failed, self.message, self.reason, self.memory = "", "", "", "", 0
        self.guilty = self.hopeless = False
        self.prepares, self.preparing, self.prepared, self.unprepared = prepares, False, False, False
        self.ready = self.was_ready = self.released = self.examined = self.closed = False
        self.pipe = _pipe_name(status)
        self.ended: int | None = None
        self.paused, self.free = False, False
        self.toggle_at = time.monotonic()
        self.ran, self.periods = 0.0, 0
        self.below: Sequence[Process] = ()
        self._scheduled: Scheduled | None = None
        self._together: Scheduled | None = None
        self._text = b""

    def read(self) -> None:
        """Read and handle its messages."""
        try:
            text = os.read(self.status, 65536)
        except BlockingIOError:
            return
        self.closed = self.closed or not text
        *lines, rest = (self._text + text).split(b"\n")
        self._text = rest[:_LONGEST_MESSAGE]
        for line in lines:
            self._receive(*line.decode("utf-8", "surrogateescape").partition(" ")[::2])

    def _receive(self, topic: str, value: str) -> None:
        if topic == "import":
            self.module, self.ran = value, 0.0
        elif topic == "prepare":
            self.module, self.ran, self.preparing = "", 0.0, True
        elif topic == "ready":
            self.prepared, self.preparing = self.prepared or self.preparing, False
            self.ready = True
        elif topic == "unprepared":
            self.fail(ENDED, value)
        elif topic == "go":
            self.released = True
        elif topic == "changed":
            self.fail(MODULE_CHANGED, f"{value} has changed")
        elif topic == "device":
            self.fail(DEVICE_OPENED, f"it holds {value} open", guilty=True)
        elif topic == "changes":
            self.fail(NOT_IMPORTABLE, f"the module changes {value}", guilty=True)
        elif topic == "folder":
            self.fail(NOT_IMPORTABLE, f"it cannot change its working directory: {value}", hopeless=True)
        elif topic == "failed":
            self.failed, _, why = value.partition(" ")
            what = f"the import of {self.failed}" if self.failed != self.module else "the import"
            message = f"{what} fails in the spare" + (f": {why}" if why else ", but not in the program")
            self.fail(NOT_IMPORTABLE, message, guilty=True)
        elif topic == "main":
            self.fail(NOT_IMPORTABLE, "the module imports the program itself", guilty=True)

    def announce(self) -> None:
        """Log that it is ready, once: its processes have been counted, and none gives a reason to drop it."""
        if not (self.was_ready or self.message):
            self.was_ready = True
            called = f", and has called {self.prepares}" if self.prepared else ""
            say(f"the spare is ready: it has imported {sum(each[:2] == 'm ' for each in self.todo)} modules{called}")

    def end(self, status: int) -> None:
        """Record its end with this status of wait."""
        self.read()
        self.ended = status
        if os.WIFSIGNALED(status):  # SIGKILL may come from the kernel's OOM killer: no import is the cause
            number = os.WTERMSIG(status)
            killed = number == signal.SIGKILL
            self.fail(KILLED if killed else ENDED, f"signal {number} killed it", guilty=not killed, hopeless=killed)
        else:
            self.fail(ENDED, f"it ended with exit code {exit_code(status)}", guilty=True)

    def fail(self, reason: str, message: str, *, guilty: bool = False, hopeless: bool = False) -> None:
        """Record why it must be dropped; the first reason counts."""
        if not self.message:
            self.reason, self.message = reason, message
            self.guilty, self.hopeless = guilty and not self.ready and self.module != "", hopeless
            blames_prepared = self.prepared and not self.guilty
            self.unprepared = (self.preparing or blames_prepared) and reason not in (KILLED, MODULE_CHANGED)
            self.hopeless = hopeless and not self.unprepared

    def dismiss(self, reason: str, message: str) -> None:
        """Record why it must be dropped, although neither an import nor the function is the cause."""
        self.module = ""
        self.fail(reason, message)
        self.unprepared = False

    def send(self, number: int) -> None:
        """Send a signal to it and the processes in its group."""
        with contextlib.suppress(OSError):
            os.killpg(self.pid, number)

    def pause(self, *, paused: bool) -> None:
        """Pause it, or resume it."""
        if paused != self.paused:
            self.send(signal.SIGSTOP if paused else signal.SIGCONT)
            self.paused = paused

    def run_freely(self) -> None:
        """Resume it, and pause it no more."""
        self.free = True
        self.pause(paused=False)

    def toggle(self, now: float, share: float) -> None:
        """Resume it for its share of the next period, or pause it for the rest if it competes for the CPUs.

        A lower priority instead would stay with the program: a container may not raise it again. The time in which it
        waited for a CPU does not count as time that its import has taken.
        """
        before, self._scheduled = self._scheduled, scheduled(self.pid)
        if before and self._scheduled:
            self.ran = max(0.0, self.ran - (self._scheduled.waited - before.waited))
        together, self._together = self._together, scheduled_together(self.pid)
        takes = takes_from_others(together, self._together)
        runs = self.paused or self.free or share >= 1.0 or not takes
        self.pause(paused=not runs)
        self.toggle_at = now + _PERIOD * (share if runs else 1.0 - share)
        self.periods += 1

    def extend(self, todo: Sequence[str], succeeded: Sequence[str]) -> None:
        """Have a spare that is ready import what the records ``todo`` add to its own. Raises OSError."""
        self.todo, self.module, self.ran = list(todo), "", 0.0
        self.ready = self.examined = self.free = False
        self.toggle_at = time.monotonic()
        _write_list(self._names, [*succeeded, *todo])
        self.order("more")

    def order(self, words: str) -> None:
        """Write an order; a spare that has ended is reported elsewhere."""
        with contextlib.suppress(OSError):
            os.write(self.release, (words + "\n").encode())

    def close(self) -> None:
        """Close the launcher's ends of its pipes, and the file with its module names."""
        for file in (self.status, self.release, self._names):
            os.close(file)


class Launcher:
    """Runs the program, again after each failure, with a spare next to it."""

    def __init__(self, options: argparse.Namespace, command: Sequence[str]) -> None:
        """Prepare to run ``command``."""
        self._options, self._command = options, command
        self._prepare: str = options.prepare or ""
        self._policy = Policy(
            options.max_restarts,
            options.restart_window,
            options.fatal_exit_codes,
            options.healthy_after,
            options.initial_backoff,
        )
        self._past = Past()
        self._environ = environ_at_start()
        count = self._environ.get(COUNT, "")
        self._restarts = _natural(count)
        self._stopping, self._stopping_until = 0, 0.0
        self._forwarded = (*FORWARDED, *sorted(options.stop_signals.difference(FORWARDED)))
        self._pid, self._status, self._began = 0, None, 0.0  # type: int, int | None, float
        self._spare: Spare | None = None
        self._tries, self._spare_at, self._no_spare = 0, 0.0, Missing()
        self._from_spare, self._failed_from_spare, self._cold = False, 0, Missing()
        self._log = -1
        self._ignored: list[int] = []
        self._number, self._reaps_on = 0, False
        self._phase, self._error = RUNNING, ""
        self._order: Order | None = None
        self._order_name, self._released, self._discarded, self._hold_until = "", False, False, 0.0
        self._followed, self._followed_until = Follow(0.0, 0.0), 0.0
        self._verdict: Verdict | None = None
        self._learn_every = min(_LEARN_EVERY, max(_SETTLED, options.spare_after))
        self._reported_spare: tuple[object, ...] = ()
        self._wakeup = self._catch_signals()
        self._has_terminal = _has_terminal()
        if self._has_terminal:  # the key stops a program that nothing resumes; process 1 would ignore it
            self._ignored.append(signal.SIGTSTP)
        self._others = [each for each in processes().values() if each.parent == os.getpid()][:_MOST_OTHERS]
        self._control = self._open_control()
        self._prepare_restarts()
        self._program = self._prepare_spares()

    def run(self) -> int:
        """Run the program, restart it after failures, and return the wait status of the last one."""
        self._start_cold()
        while True:
            while self._status is None and self._order is None:
                self._turn(None)
            ended = self._obey(self._order) if self._order is not None else self._after_end()
            if ended is not None:
                return self._end(ended)

    def _after_end(self) -> int | None:
        """Start the next program after one that has ended by itself; return the status to end with instead.

        None without a new start: an order has arrived, and has not been obeyed yet.
        """
        assert self._status is not None
        status, now = self._status, time.monotonic()
        decision = self._decide(status, now)
        if is_failure(self._policy, exit_code(status), stopping=self._is_stopped(status)):
            self._judge_spare(now - self._began, failed=True, waits=bool(decision.wait))
            self._await_verdict(status)
            if self._order is not None:
                return None
            if self._verdict and self._verdict.ends:
                say("kubemend's agent ends the container: the program is not restarted")
                return status
        self._enter(RESTARTING)
        if decision.reason:
            say(f"the program ended with exit code {exit_code(status)}; not restarted: {decision.reason}")
        if decision.wait is None:
            return status
        self._past = decision.past
        try:
            if now - self._began >= self._options.spare_after:
                self._learn(())
            broken = self._broken_cache()
            self._clear()
            self._empty(broken)
            self._wait(decision.wait)
            started = self._start_again(f"Exit{exit_code(status)}")
        except PermissionError as error:
            say(f"not restarted: cannot kill what the program has started: {error}")
            return status
        return None if started else self._stopping

    def _broken_cache(self) -> str:
        """Return the name of the cache that is emptied before the next start; empty for none.

        The spare may have read it, so it is dropped.
        """
        if self._options.keep_cache or not empties_cache(self._past, self._restarts):
            return ""
        try:
            name = cache_of(self._environ, _read("/proc/self/mountinfo").decode("utf-8", "replace"))
        except OSError:
            return ""
        if name and self._spare:
            self._spare.dismiss(MODULE_CHANGED, "the cache, which it may have read, is emptied")
            self._drop()
        return name

    def _empty(self, name: str) -> None:
        """Empty the cache of this name. A failure does not delay the restart."""
        if not name or self._stopping:
            return
        after = f"after {min(self._past.early, self._restarts)} early failures"
        try:
            if empty_directory(CACHE_FOLDER, name, time.monotonic() + _LONGEST_EMPTYING):
                say(f"the cache {CACHE_FOLDER}/{name} is emptied {after}")
        except OSError as error:
            say(f"the cache {CACHE_FOLDER}/{name} cannot be emptied {after}: {error.strerror}")

    def _judge_spare(self, ran: float, *, failed: bool, waits: bool = False) -> None:
        """Start the program cold if this run began from a spare and failed early, as one without its state may.

        That is before its own spare was ready, or ``waits``: it failed after less than a minute for the fourth time.
        The next spare then waits until a run that began cold has lasted a minute. After the second such failure
        in a row there is none.
        """
        if not self._from_spare:
            return
        if ran >= self._policy.healthy_after:
            self._failed_from_spare = 0
            return
        spare = self._spare
        if not failed or (spare and spare.ready and not waits):
            return
        self._failed_from_spare += 1
        often = self._failed_from_spare >= _MOST_FAILED_FROM_SPARE
        cold = f"none until a cold start has run {self._policy.healthy_after:g} s"
        then = "this launcher starts no more" if often else cold
        what = f"the program failed {ran:.0f} s after it began from a spare; {then}"
        self._cold = Missing(ENDED, what + ". If a module needs what the program sets, name it by --spare-skip")
        if spare:
            spare.dismiss(self._cold.reason, self._cold.message)
            self._drop()
        else:
            say(f"no spare: {self._cold.message}")

    def _await_verdict(self, status: int) -> None:
        """Report the failure to an agent that follows; return at its order or verdict, a stop, or after the hold."""
        now = time.monotonic()
        if not self._followed.hold or now >= self._followed_until:
            return
        self._verdict, self._hold_until = None, now + self._followed.hold
        self._enter(FAILED)
        if self._spare:
            self._spare.run_freely()
        while not (self._order or self._verdict or self._stopping) and time.monotonic() < self._hold_until:
            self._turn(self._hold_until)
        if not (self._order or self._verdict or self._stopping):
            say(f"the program ended with exit code {exit_code(status)}; the agent has not decided in time")

    def _decide(self, status: int, now: float) -> Decision:
        stopping = self._is_stopped(status)
        return decide(self._policy, self._past, exit_code(status), now - self._began, now, stopping=stopping)

    def _is_stopped(self, status: int) -> bool:
        by_key = self._has_terminal and os.WIFSIGNALED(status) and os.WTERMSIG(status) in _INTERRUPTS
        return bool(self._stopping) or by_key  # a terminal sends them to the program only

    def _wait(self, wait: float) -> None:
        until = time.monotonic() + wait
        if wait:
            say(f"restart in {wait:g} s: {self._past.early} runs in a row ended early")
        while not self._stopping and time.monotonic() < until:
            self._turn(until)

    def _end(self, status: int) -> int:
        if self._control:
            self._control.close()
        if self._spare:
            self._spare.send(signal.SIGKILL)
        if self._has_terminal:
            _give_terminal(os.getpgrp())
        return status

    # The agent's orders.

    def _obey(self, order: Order) -> int | None:
        """Kill the program, and start the next one when the agent releases it; return the status to end with instead.

        A program that has completed in the same moment, or has ended with a fatal code, must not run again.
        """
        had_ended = False
        try:
            ran = time.monotonic() - self._began
            if self._status is None and ran >= self._policy.healthy_after:
                self._past = self._past._replace(early=0)
            if ran >= self._options.spare_after:
                self._learn(())
            self._reap()
            had_ended = self._status is not None
            if not had_ended:
                self._judge_spare(ran, failed=False)
            self._terminate(order.grace)
            if not self._stopping:
                self._clear()
        except PermissionError as error:
            return self._refuse(order, error, had_ended=had_ended)
        status = self._status
        if self._stopping or status is None:  # the stop ends the program, or it has been killed
            self._order = None
            return None
        was_killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        by_itself = not was_killed and (had_ended or not order.grace)
        if by_itself and not is_failure(self._policy, exit_code(status), stopping=self._is_stopped(status)):
            return status
        self._enter(HELD)
        while not (self._released or self._discarded or self._stopping) and time.monotonic() < self._hold_until:
            self._turn(self._hold_until)
        if self._discarded and not self._stopping:
            say("kubemend's agent ends the container: nothing may start on its devices")
            return signal.SIGKILL  # also if the program has exited with 0 at SIGTERM: it has not completed
        if not (self._released or self._stopping):
            say("the agent has not released the next program in time; it is started now")
        order, self._order = self._order or order, None
        try:
            return None if self._start_again(order.reason) else self._stopping
        except PermissionError as error:
            return self._refuse(order, error, had_ended=had_ended)

    def _refuse(self, order: Order, error: PermissionError, *, had_ended: bool) -> int | None:
        """Report that processes cannot be killed; return the status to end with, None if the program runs on.

        A program that has ended at the order's SIGTERM counts as killed: with 0, too, it has not completed.
        """
        say(f"not restarted: cannot kill what the program has started: {error}")
        self._order, self._error = None, str(error)
        self._enter(RUNNING)
        ended_at_order = self._status is not None and order.grace and not had_ended
        return signal.SIGKILL if ended_at_order else self._status

    def _terminate(self, grace: float) -> None:
        """Send SIGTERM to the program, and return when it has ended, after ``grace`` seconds, or at a stop."""
        until = time.monotonic() + grace
        if grace and self._status is None:
            os.kill(self._pid, signal.SIGTERM)
        while self._status is None and not self._stopping and time.monotonic() < until:
            self._turn(until)

    def _handle(self, request: Request) -> None:
        """Accept an order for the program that runs now, repeat one, or release or discard the next program.

        Ignore all others.
        """
        order, busy = request.order, self._phase in (STOPPING, HELD)
        if request.follow is not None:
            self._followed, self._followed_until = request.follow, time.monotonic() + request.follow.lease
        elif request.verdict is not None:
            if self._phase == FAILED and request.verdict.program == self._number:
                self._verdict = request.verdict
        elif order is not None and order.program == self._number and not self._stopping:
            again = order.name == self._order_name
            waits = self._phase == FAILED or (self._phase == RUNNING and self._status is None)
            if busy or (waits and not again):
                self._order, self._order_name, self._error = order, order.name, ""
                self._hold_until = time.monotonic() + order.hold
                self._released, self._discarded = self._released and again, self._discarded and again
                self._phase = HELD if self._phase == HELD else STOPPING
        elif busy and request.release == self._order_name:
            self._released = True
        elif busy and request.discard == self._order_name:
            self._discarded = True

    def _enter(self, phase: str) -> None:
        self._phase = phase
        if self._control:
            self._control.send(self._state(), self._control.peers)

    def _state(self) -> dict[str, object]:
        """Return the state for the agent. ``spare`` is the spare's start (``Process.started``), 0 if there is none.

        ``others`` are those of children that were there before the launcher, and that no restart kills.
        ``no_spare`` is why there is none, or why the last one was dropped, and ``spare_reason`` the same for programs;
        empty if none is due yet. ``spare_memory``: bytes, 0 if they have not been checked yet.
        """
        spare = None
        with contextlib.suppress(OSError):  # without its start the agent takes it for a process of the program
            spare = process_of(self._spare.pid) if self._spare else None
        return {
            "kubemend-run": 1,
            "state": ENDING if self._stopping else self._phase,
            "error": _printable(self._error),
            "order": self._order_name,
            "program": self._number,
            "code": exit_code(self._status) if self._status is not None else 0,
            "age": time.monotonic() - self._began,
            "restarts": self._restarts,
            "spare": spare.started if spare else 0,
            "others": [each.started for each in self._others],
            "ready": bool(self._spare and self._spare.ready),
            "spare_memory": self._spare.memory if self._spare else 0,
            "spare_reason": self._no_spare.reason,
            "no_spare": _printable(self._no_spare.message),
        }

    # Preparation.

    def _open_control(self) -> Control | None:
        try:
            return Control(self._environ.get(CACHE) or CACHE_FOLDER)
        except OSError:  # no such volume, or it is read-only or full, or another launcher of this container listens
            return None

    def _catch_signals(self) -> int:
        """Have signals written into a pipe, and return its reading end. Ignored signals stay ignored."""
        reader, writer = os.pipe()
        os.set_blocking(reader, False)
        os.set_blocking(writer, False)
        signal.set_wakeup_fd(writer, warn_on_full_buffer=False)
        for number in self._forwarded:
            if signal.getsignal(number) == signal.SIG_IGN:
                self._ignored.append(number)
            else:
                signal.signal(number, _note)
        signal.signal(signal.SIGCHLD, _note)
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)  # sent to a background process that gives away the terminal
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {*self._forwarded, signal.SIGCHLD})
        return reader

    def _prepare_restarts(self) -> None:
        """Make orphans of the program children of this process: otherwise a restart could leave some of them alive.

        An interpreter without a program ends with 0, as if the program had completed: no restart is better.
        """
        program = program_of(self._command)
        why = program.cold if program and program.cold == READ_ONCE else ""
        if not (self._policy.limit or self._control):
            return
        if not why and not prctl(_PR_SET_CHILD_SUBREAPER, 1) and os.getpid() != 1:
            why = "this is not process 1, and cannot adopt the orphans of the program"
        if why:
            say(f"no restarts: {why}")
            self._policy = self._policy._replace(limit=0)
            if self._control:
                self._control.close()
                self._control = None

    def _prepare_spares(self) -> Program | None:
        """Prepare for spares; return the program that they run, or None if spares are not possible."""
        program = program_of(self._command)
        if self._options.no_spare or not (self._policy.limit or self._control):
            self._no_spare = Missing(DISABLED, "--no-spare")
            return None
        if program is None:
            self._give_up(f"the command is {self._command[0]}, not python itself", NOT_PYTHON)
            return None
        if program.cold:
            self._give_up(program.cold)
            return None
        if program.main and self._prepare.rpartition(":")[0] == program.main:
            raise LauncherError(f"--prepare {self._prepare} is in the program itself; move it to another module")
        try:
            self._folder, self._log = memory_file("kubemend", bootstrap()), memory_file("kubemend-log")
            self._oom = _read("/proc/self/oom_score_adj")
            self._store = Store(_program_key(program), self._environ.get(CACHE) or CACHE_FOLDER)
            limit = cgroup_limit(_read("/proc/self/cgroup").decode("utf-8", "replace"))
        except UnicodeDecodeError:
            self._give_up(f"{__file__} is not the launcher's source")
            return None
        except (OSError, AttributeError, ImportError) as error:
            self._give_up(str(error))
            return None
        self._memory = memory_limit(self._options.spare_memory, limit)
        return program

    # Signals, children, time.

    def _turn(self, until: float | None) -> None:
        """Wait for a signal, a message of the spare, or the time ``until``, and handle it."""
        began = time.monotonic()
        longest = 0.0 if self._reaps_on else _LONGEST_POLL
        survived = self._stopping_until if self._stopping and self._status is None else None
        due = (until, self._spare_due(), survived, began + longest)
        deadline = min(each for each in due if each is not None)
        waiting = select.poll()
        waiting.register(self._wakeup, select.POLLIN)
        if self._spare and not self._spare.closed:
            waiting.register(self._spare.status, select.POLLIN)
        if self._control:
            self._control.register(waiting)
        events = dict(waiting.poll(max(0.0, deadline - began) * 1000.0))
        for number in os.read(self._wakeup, 4096) if self._wakeup in events else b"":
            if number in self._forwarded:
                self._signalled(number)
        self._reap()
        self._survive()
        if self._spare and self._spare.status in events:
            self._spare.read()
            if self._spare.closed and not self._spare.released:  # it ends, or an import has closed its files
                self._kill(self._spare)
        if self._spare and not self._spare.paused:  # in a longer turn both could not run: the container was frozen
            self._spare.ran += min(time.monotonic() - began, 2 * _PERIOD)
        self._tend()
        for peer, request in self._control.requests(events) if self._control else ():
            self._handle(request)
            assert self._control is not None
            self._control.send(self._state(), [peer])
        self._report_spare()

    def _report_spare(self) -> None:
        """Send the state to all followers if that of the spare has changed."""
        now = (self._spare and self._spare.pid, bool(self._spare and self._spare.ready), self._no_spare)
        if now != self._reported_spare:
            self._reported_spare = now
            if self._control:
                self._control.send(self._state(), self._control.followers)

    def _signalled(self, number: int) -> None:
        if number in self._options.stop_signals:
            is_default = self._options.stop_signals is STOPS
            lasts = _INTERRUPT_LASTS if number in _INTERRUPTS and is_default else float("inf")
            self._stopping, self._stopping_until = number, max(self._stopping_until, time.monotonic() + lasts)
        if self._status is None:  # not reaped yet: no other process has its PID
            with contextlib.suppress(PermissionError):
                os.kill(self._pid, number)

    def _survive(self) -> None:
        """Forget the stop if the program has survived it."""
        if self._stopping and self._status is None and time.monotonic() >= self._stopping_until:
            say(f"the program has survived signal {self._stopping} for {_INTERRUPT_LASTS:g} s: failures are restarted")
            self._stopping, self._stopping_until = 0, 0.0
            self._enter(RUNNING)

    def _reap(self) -> int:
        """Reap children that have ended; return their number. A program could start them faster: the rest is next."""
        self._reaps_on = False
        for count in range(_MOST_REAPED):
            try:
                pid, status = self._wait_for_one()
            except ChildProcessError:
                return count
            if pid == 0:
                return count
            if pid == self._pid and self._status is None:
                self._status = status
            elif self._spare and pid == self._spare.pid:
                self._spare.end(status)
        self._reaps_on = True
        return _MOST_REAPED

    def _wait_for_one(self) -> tuple[int, int]:
        """Reap a child that has ended, and return its PID and status; (0, 0) if there is none.

        A spare's group is killed before that: until then no other can have its number.
        """
        spare = self._spare
        if spare is None:
            return os.waitpid(-1, os.WNOHANG)
        found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT | os.WNOHANG)
        if found is None:
            return 0, 0
        if found.si_pid == spare.pid:
            spare.read()
            if not spare.released:
                spare.send(signal.SIGKILL)
        return os.waitpid(found.si_pid, 0)

    # The program.

    def _start_cold(self) -> None:
        environ = dict(self._environ)
        if self._program:
            os.ftruncate(self._log, 0)  # a new file could be refused; all that wrote to this one are dead
            environ = self._bootstrapped(environ, self._log)
        start = Start(self._command, environ, self._ignored, foreground=self._has_terminal)
        self._from_spare = False
        self._begin(spawn(start), None)

    def _bootstrapped(self, environ: dict[str, str], log: int) -> dict[str, str]:
        path = environ.get("PYTHONPATH")
        ours = {"FOLDER": _file_path(self._folder), "LOG": _file_path(log)}
        if path is not None:
            ours["PYTHONPATH"] = path
        added = {_PREFIX + key: value for key, value in ours.items()}
        return {**environ, **added, "PYTHONPATH": ours["FOLDER"] + (os.pathsep + path if path else "")}

    def _begin(self, pid: int, status: int | None) -> None:
        self._pid, self._status, self._began = pid, status, time.monotonic()
        self._tries, self._spare_at = 0, self._began + self._options.spare_after
        self._no_spare = self._cold if self._program else self._no_spare
        if self._cold.message:
            self._tries = _TRIES if self._failed_from_spare >= _MOST_FAILED_FROM_SPARE else 0
            self._spare_at = self._began + max(self._options.spare_after, self._policy.healthy_after)
        self._number += 1
        self._order = None  # any that has come since the release is for the program before
        self._released = self._discarded = False

    def _start_again(self, reason: str) -> bool:
        """Start the next program; return False if a stop came first."""
        variables = {COUNT: str(self._restarts + 1), REASON: reason}
        self._environ.update(variables)
        if self._stopping:
            return False
        if not self._release(variables) and not self._start_soon():
            return False
        self._restarts += 1
        self._enter(RUNNING)
        return True

    def _start_soon(self) -> bool:
        """Start the program cold, as soon as there is room for its process; return False if a stop came first."""
        until, reported = time.monotonic() + _LONGEST_SHORTAGE, False
        while not self._stopping:
            shortage = self._shortage_at_start()
            if shortage is None:
                return True
            if time.monotonic() >= until:
                raise shortage
            if not reported:
                say(f"{shortage}; tried again for {_LONGEST_SHORTAGE:g} s")
            reported = True
            self._turn(time.monotonic() + _RETRY)
        return False

    def _shortage_at_start(self) -> ShortageError | None:
        try:
            self._start_cold()
        except ShortageError as error:
            return error
        return None

    def _release(self, variables: dict[str, str]) -> bool:
        """Release the spare; return whether it is the program now. If not, it is dead."""
        spare, limit = self._spare, self._options.spare_timeout
        if spare is None:
            return False
        spare.run_freely()
        if self._has_terminal:
            _give_terminal(spare.pid)
        self._protect(spare)
        spare.order("go " + "\0".join("=".join(each) for each in variables.items()))
        until = time.monotonic() + limit
        while self._awaits(spare) and time.monotonic() < until:
            self._turn(until)
        if not spare.released:
            if self._spare is spare and spare.preparing:  # a cold start may be faster than the rest of it
                spare.dismiss(TOO_SLOW, f"the restart does not wait for {spare.prepares}")
                self._drop()
            elif self._spare is spare:
                spare.fail(TOO_SLOW, f"it did not start the program within {limit:g} s", guilty=not self._stopping)
                self._drop()
            self._clear()
            return False
        self._spare = None
        spare.close()
        os.close(self._log)
        self._log = spare.log
        self._from_spare = True
        self._begin(spare.pid, spare.ended)
        if self._stopping and self._status is None:  # the stop came in the same moment
            self._signalled(self._stopping)
        return True

    def _protect(self, spare: Spare) -> None:
        """Make the kernel kill a spare and what its imports have started no sooner than a program.

        What it has started before has the spare's value. The second scan finds what these have started in between.
        """
        _set_oom(spare.pid, self._oom)
        with contextlib.suppress(OSError):
            for _ in range(2):
                for each in descendants(processes(), spare.pid):
                    if _oom_of(each.pid) == _FIRST_KILLED:
                        _set_oom(each.pid, self._oom)

    def _awaits(self, spare: Spare) -> bool:
        """Return whether a spare that has the order to start may still do so at once."""
        return self._spare is spare and not (spare.released or spare.preparing or self._stopping)

    def _clear(self) -> None:
        """Kill all remaining processes of the program; return when they are dead, or at a stop. Raises PermissionError.

        A scan without results proves this only if no child ended during it: the scan could have missed its children.
        What cannot be read for lack of files or memory may live; it is scanned again.
        If there are new ones for too long, all processes of the container are killed in one call, which none survives
        by forking: the spare, and commands that were executed in it, too.
        """
        if self._spare:
            self._spare.run_freely()  # no program runs that it could slow down
        began, reported = time.monotonic(), False
        killed: set[tuple[int, int]] = set()
        while not self._stopping:
            alive, unread = [], ""  # type: list[Process], str
            try:
                alive = self._alive()
                if not self._reap() and not alive:
                    return
                for process in alive:
                    kill(process)
            except PermissionError:
                raise
            except OSError as error:
                unread = f"reading /proc: {error.strerror}"
            lasted, found = time.monotonic() - began, {(each.pid, each.started) for each in alive}
            if lasted > _LONGEST_CHASE and found - killed and os.getpid() == 1:
                say("the program starts processes faster than they are killed: all of the container are killed")
                with contextlib.suppress(ProcessLookupError):
                    os.kill(-1, signal.SIGKILL)
            killed = found
            if (alive or unread) and not reported and lasted > _REPORT_UNKILLED:
                reported = True
                say("waiting for " + (unread or f"process {alive[0].pid} to die (state {alive[0].state})"))
            if alive or unread:
                self._turn(time.monotonic() + _RESCAN)

    def _alive(self) -> list[Process]:
        """Return the living processes that the program has started."""
        found = processes()
        without = [each.pid for each in self._others if each.pid in found and found[each.pid].started == each.started]
        return descendants(found, os.getpid(), [*without, self._spare.pid] if self._spare else without)

    # The spare.

    def _records(self) -> list[str]:
        length = os.fstat(self._log).st_size
        return os.pread(self._log, length, 0).decode("utf-8", "surrogateescape").split("\n")

    def _learn(self, more: Iterable[str]) -> None:
        """Store the names of the modules that the program has imported, and ``more``."""
        if self._program:
            names = tuple(dict.fromkeys((*names_of(self._records()), *more)))[:_MOST_NAMES]
            if names != self._store.known.names:
                self._store.keep(self._store.known._replace(names=names))

    def _spare_due(self) -> float | None:
        """Return the time of the next action for the spare; None if only an event can require one."""
        if self._spare and not self._spare.ready:
            return self._spare.toggle_at
        if self._spare:
            return self._spare.learn_at if self._status is None else None
        if self._program and self._status is None and self._tries < _TRIES and not self._stopping:
            return self._spare_at
        return None

    def _tend(self) -> None:
        spare, now = self._spare, time.monotonic()
        if spare is None:
            due = self._spare_due()
            if due is not None and due <= now:
                self._start_spare()
        elif not spare.released:
            try:
                self._check(spare, now)
            except OSError as error:
                spare.dismiss(UNSUPPORTED, f"its processes cannot be read: {error.strerror}")
            if spare.message:
                self._drop()

    def _check(self, spare: Spare, now: float) -> None:
        """Do what is due for a spare. Raises OSError."""
        if spare.ready and not spare.examined:
            spare.run_freely()
            self._examine(spare)
            spare.announce()
            spare.learn_at = now + self._learn_every
        elif spare.ready and spare.learn_at <= now and self._status is None:
            self._examine(spare)  # threads and processes that its imports have started may work on
            self._extend(spare, now)
        elif not spare.ready and spare.toggle_at <= now:
            spare.toggle(now, self._options.spare_cpu / 100.0)
            self._watch(spare)

    def _extend(self, spare: Spare, now: float) -> None:
        """Have the spare import what the program has imported since the spare began."""
        spare.learn_at = now + self._learn_every
        records = self._records()
        todo = self._plan(records)
        if set(spare.todo) >= set(todo) or self._settles_in(records) > 0.0:
            return
        self._learn(self._store.known.names)
        try:
            spare.extend(todo, succeeded(records, self._store.known))
        except OSError as error:
            spare.fail(UNSUPPORTED, f"its list of modules cannot be written: {error}")

    def _watch(self, spare: Spare) -> None:
        """Check the time and the memory of a spare that is importing."""
        limit = self._options.prepare_timeout if spare.preparing else self._options.spare_timeout
        if spare.ran > limit:
            what = "the function" if spare.preparing else "the import"
            spare.fail(TOO_SLOW, f"{what} has not ended within {limit:g} s", guilty=True)
        counts_children = spare.periods % _COUNT_CHILDREN_EVERY == 0
        if counts_children and spare.preparing:
            self._examine(spare)
        else:
            self._check_memory(spare, descendants(processes(), spare.pid) if counts_children else ())

    def _examine(self, spare: Spare) -> None:
        """Check devices and memory of a spare whose imports are done, and of the processes that it has started."""
        spare.examined = spare.ready
        below = [each for each in self._processes_of(spare) if each.pid != spare.pid]
        prefixes = tuple(each for each in self._options.spare_devices.split(":") if each)
        for pid in (spare.pid, *(each.pid for each in below)):
            device = device_of(pid, prefixes)
            if device:
                spare.fail(DEVICE_OPENED, f"it uses {device}", hopeless=True)
        self._check_memory(spare, below)

    def _check_memory(self, spare: Spare, below: Sequence[Process]) -> None:
        spare.below = below or spare.below
        used = spare.memory = resident(spare.pid) + sum(resident(each.pid) for each in below)
        if self._memory is not None and used > self._memory:
            message = f"it has {used >> 20} MiB, more than the {self._memory >> 20} MiB of --spare-memory"
            spare.fail(TOO_MUCH_MEMORY, message, hopeless=True)

    def _start_spare(self) -> None:
        records = self._records()
        settles_in = self._settles_in(records)
        if settles_in > 0.0:
            self._spare_at = time.monotonic() + settles_in
            return
        if f"h {self._pid}" not in records:  # without the bootstrap, a spare could run the program at once
            self._await_interpreter()
            return
        self._tries += 1
        self._cold = Missing()
        self._learn(self._store.known.names)
        try:
            self._spare, self._no_spare = self._spawn_spare(records), Missing()
        except (LauncherError, OSError) as error:
            tries = self._tries
            self._give_up(str(error))
            if isinstance(error, ShortageError) or getattr(error, "errno", None) in _SHORTAGES:
                self._tries, self._spare_at = tries, time.monotonic() + _LONGEST_SHORTAGE

    def _settles_in(self, records: Sequence[str]) -> float:
        """Return after how many seconds without a record the program's imports count as done; 0: they are done.

        An import that takes as long as ``--spare-after`` may be the program itself. If it is not, the spare imports it
        later.
        """
        after = float(self._options.spare_after)
        age = time.time() - os.fstat(self._log).st_mtime
        settled = after if _imports(records)[1] else min(_SETTLED, after)
        return settled - age if 0.0 <= age < settled else 0.0  # below 0 the clock was set back

    def _plan(self, records: Sequence[str]) -> list[str]:
        main = self._program.main if self._program else ""
        return plan(records, self._store.known, main, self._options.spare_skip)

    def _await_interpreter(self) -> None:
        """Check again later whether the program's interpreter has loaded the bootstrap. A busy node takes long."""
        now = time.monotonic()
        self._spare_at = now + max(_SETTLED, self._options.spare_after)
        if now - self._began >= _LONGEST_START:
            self._give_up("the program's interpreter has not loaded sitecustomize in its own process")

    def _spawn_spare(self, records: Sequence[str]) -> Spare:
        main = self._program.main if self._program else ""
        todo = self._plan(records)
        with contextlib.ExitStack() as its, contextlib.ExitStack() as ours:  # ours stay open if the spare begins
            names = memory_file("kubemend-names")
            ours.callback(os.close, names)
            _write_list(names, [*succeeded(records, self._store.known), *todo])
            log = memory_file("kubemend-log")
            ours.callback(os.close, log)
            status, report = os.pipe()
            ours.callback(os.close, status)
            its.callback(os.close, report)
            order, release = os.pipe()
            ours.callback(os.close, release)
            its.callback(os.close, order)
            os.set_blocking(status, False)
            given = {"STATUS": str(report), "RELEASE": str(order), "NAMES": _file_path(names), "MAIN": main}
            given["DEVICES"], given["PIPE"] = self._options.spare_devices, _pipe_name(status)
            if self._prepare and self._program:
                given["PREPARE"] = _found_in(self._prepare, self._program)
            environ = self._bootstrapped(self._environ, log)
            environ.update({_PREFIX + key: value for key, value in given.items()})
            pid = spawn(Start(self._command, environ, self._ignored, (report, order)))
            ours.pop_all()
        _set_oom(pid, _FIRST_KILLED)
        return Spare(pid, status, release, log, names, todo, self._prepare)

    def _give_up(self, message: str, reason: str = UNSUPPORTED) -> None:
        """Log why, and start no further spare for this run of the program."""
        self._tries, self._no_spare = _TRIES, Missing(reason, message)
        say(f"no spare: {message}")

    def _drop(self) -> None:
        """Kill the spare and log why. The next spare leaves out the import that caused it."""
        spare, self._spare = self._spare, None
        if spare is None:
            return
        self._kill(spare)
        spare.close()
        os.close(spare.log)
        if spare.hopeless:
            self._tries = _TRIES
        if spare.unprepared:
            self._prepare = ""
        if spare.guilty:
            known = self._store.known
            guilty = (each for each in (spare.module, spare.failed) if each)
            self._store.keep(known._replace(left_out=tuple(dict.fromkeys((*known.left_out, *guilty)))))
        after = f", after the import of {spare.module}" if spare.module and not spare.ready else ""
        after = f", in {spare.prepares}; the next spare only imports" if spare.unprepared else after
        self._no_spare = Missing(spare.reason, spare.message + after)
        say(f"the spare is dropped: {self._no_spare.message}")

    def _kill(self, spare: Spare) -> None:
        """Kill a spare and the processes that it has started, those in a group of their own, too.

        They are stopped before, so that none starts another one between the last scan and its end. Those that cannot
        be read are left to the next restart.
        """
        found = {(each.pid, each.started): each for each in spare.below}
        with contextlib.suppress(OSError):
            for _ in range(_MOST_SCANS):
                more = [each for each in self._processes_of(spare) if (each.pid, each.started) not in found]
                found.update({(each.pid, each.started): each for each in more})
                for each in more:
                    with contextlib.suppress(PermissionError):
                        kill(each, signal.SIGSTOP)
                if not more:
                    break
        for each in found.values():
            with contextlib.suppress(OSError):
                kill(each)
        if spare.ended is None:
            spare.send(signal.SIGKILL)

    def _processes_of(self, spare: Spare) -> list[Process]:
        """Return a spare's processes: itself, those below it, and its orphans, with those below.

        Orphans are children of this process, as those of the program are. Those of the spare have its pipe open, or
        began with its variables: daemons close all files. A daemon that has executed another program has neither.
        """
        found = processes()
        known = {self._pid, spare.pid, *(each.pid for each in self._others)}
        orphans = [each.pid for each in found.values() if each.parent == os.getpid() and each.pid not in known]
        mark = f"{_PREFIX}PIPE={spare.pipe}".encode()
        roots = [
            each
            for each in orphans[:_MOST_ORPHANS]
            if spare.pipe in open_files(each) or mark in variables_at_start(each)
        ]
        if spare.ended is None:
            roots.append(spare.pid)
        below = [each for root in roots for each in descendants(found, root)]
        return [*(found[each] for each in roots if each in found), *below]


# The command line.

_EXAMPLE = """
example:
  kubemend_run.py --max-restarts 10 --fatal-exit-codes 42 -- python train.py --lr 0.1

Exit code: that of the program's last run, 128 + n after signal n; 2: usage; 126, 127: the program could not be started.
"""


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options."""
    result = argparse.ArgumentParser(
        prog="kubemend_run.py",
        usage="%(prog)s [options] -- PROGRAM [ARGUMENT ...]",
        description="Run a program as a container's command, and restart it inside the container with a warm spare.",
        epilog=_EXAMPLE,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    _add_restarts(result.add_argument_group("restarts"))
    spare = result.add_argument_group("the spare")
    _add_spares(spare)
    _add_prepare(spare)
    return result


def _add_restarts(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--max-restarts",
        type=_number,
        default=10,
        metavar="N",
        help="restarts within the window (default 10); 0: only those that kubemend's agent orders",
    )
    add(
        "--restart-window",
        type=_of(seconds),
        default=3600.0,
        metavar="TIME",
        help="the window (default 1h): 90, 90s, 5m; 0: any number of restarts",
    )
    add(
        "--fatal-exit-codes",
        type=_of(codes),
        default=frozenset(),
        metavar="CODES",
        help="exit codes without a restart, such as 42,64-78; 128 + n is signal n",
    )
    add(
        "--stop-signals",
        type=_of(stop_signals),
        default=STOPS,
        metavar="SIGNALS",
        help="signals that stop the container (default TERM, and for ten minutes INT,QUIT); add its image's STOPSIGNAL",
    )
    add(
        "--healthy-after",
        type=_of(seconds),
        default=60.0,
        metavar="TIME",
        help="a program that ran this long is restarted at once (default 60s), others only three times in a row",
    )
    add(
        "--initial-backoff",
        type=_of(seconds),
        default=10.0,
        metavar="TIME",
        help="the backoff after that (default 10s), doubled each time up to 300 s",
    )
    add(
        "--keep-cache",
        action="store_true",
        help="never empty the container's compile cache after early failures (component caches)",
    )


def _add_spares(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--no-spare", action="store_true", help="keep no spare: every restart is cold")
    add(
        "--spare-memory",
        type=_of(size),
        default=0,
        metavar="SIZE",
        help="resident memory that a spare may have, such as 2Gi (default: a quarter of the container's limit)",
    )
    add(
        "--spare-after",
        type=_of(seconds),
        default=10.0,
        metavar="TIME",
        help="start a spare when the program has run this long (default 10s)",
    )
    add(
        "--spare-cpu",
        type=_percent,
        default=25,
        metavar="PERCENT",
        help="share of the time in which a spare imports while no CPU is idle (default 25)",
    )
    add(
        "--spare-timeout",
        type=_of(seconds),
        default=60.0,
        metavar="TIME",
        help="drop a spare if one import takes longer, or if the program does not start in this time (default 60s)",
    )
    add(
        "--spare-skip",
        action="append",
        default=[],
        metavar="MODULE",
        help="a module that a spare must not import, nor its submodules (may be repeated)",
    )
    add(
        "--spare-devices",
        default=DEVICES,
        metavar="PATHS",
        help="drop a spare that opens a path with one of these prefixes (default %(default)s)",
    )


def _add_prepare(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add(
        "--prepare",
        type=_of(prepare_function),
        metavar="MODULE:FUNCTION",
        help="have the spare call this function after its imports; also FILE.py:FUNCTION",
    )
    add(
        "--prepare-timeout",
        type=_of(seconds),
        default=600.0,
        metavar="TIME",
        help="drop a spare if the function takes longer (default 10m)",
    )


def _of(read: Callable[[str], _Value]) -> Callable[[str], _Value]:
    """Return an argparse type that parses with ``read`` and reports its errors."""

    def of(text: str) -> _Value:
        try:
            return read(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return of


def _number(text: str) -> int:
    if not (text.isascii() and text.isdecimal()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number")
    return int(text)


def _percent(text: str) -> int:
    number = _number(text)
    if not 1 <= number <= 100:
        raise argparse.ArgumentTypeError("write a percentage from 1 to 100")
    return number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the program of the command line; return the launcher's exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    own, command = (words[: words.index("--")], words[words.index("--") + 1 :]) if "--" in words else (words, [])
    options = parser().parse_args(own)
    if not command:
        say("write -- and the program after the options; --help has an example")
        return 2
    try:
        return exit_code(Launcher(options, command).run())
    except LauncherError as error:
        say(str(error))
        return error.code


def _hold_standard_files() -> None:
    """Open what a script has closed (``2>&-``), for this process only: a log line would go into one of its pipes."""
    file = 0
    with contextlib.suppress(OSError):  # without /dev/null they stay closed
        while file < 3:
            file = os.open(os.devnull, os.O_RDWR)
        os.close(file)


def command() -> NoReturn:
    """Run ``main``, and end at once: a sitecustomize of the image may have started threads in this process, too."""
    code: object = 1
    try:
        _hold_standard_files()
        code = main()
    except SystemExit as end:  # of argparse, which has written why
        code = end.code
    except BaseException:  # noqa: BLE001 - its traceback is written, and the exit code is 1
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError, AttributeError):  # it is None if it was closed before
            sys.stdout.flush()
        os._exit(code if isinstance(code, int) else 1)


if __name__ == "__main__":
    command()
