"""Decide which OCI runtimes are supported, and read their programs from the verbose CRI ``Status``. Pure.

Supported are those whose containers are processes of the node. A sandboxed runtime has a kernel of its own (gVisor in
user space, Kata in a virtual machine): the pids from kernel and driver are not those of the containers, a device is
freed by the end of the sandbox and not of the container, and neither cgroup nor root show the program. No such runtime
was tested, so none is supported.

The answer's ``config`` is not specified: containerd and CRI-O (1.34) put their configuration there as JSON. A path
leads anywhere on the node, such as ``/opt/crun/bin/crun``; a name is looked up in the runtime's search path.
"""

import enum
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

MOST_TEXT: Final = 1 << 20
"""Maximum characters of the configuration; a node's has some thousand."""
MOST_RUNTIMES: Final = 32
"""Maximum runtimes of a node; a GPU node has some five."""
MOST_PATH: Final = 4095
"""Maximum bytes of a path (PATH_MAX without its zero byte)."""

_SHOWN: Final = 80
_CRIO_PROCESSES: Final = ("", "oci")  # of CRI-O's runtime types, those whose program is an OCI runtime
_CONTAINERD_PROCESSES: Final = ("io.containerd.runc.", "io.containerd.runtime.v1.linux")
"""Prefixes of containerd's runtime types: runc, and runtimes that are called like it, such as crun."""
_SANDBOXED: Final = frozenset({"gvisor", "runsc", "kata", "firecracker", "peerpods"})
_NAME_PART: Final = re.compile(r"[a-z0-9]+")


class Reason(enum.StrEnum):
    """Why the runtime's answer, or a part of it, is not used."""

    MISSING = "Missing"
    TOO_LONG = "TooLong"
    NOT_JSON = "NotJson"
    TOO_MANY = "TooManyRuntimes"
    NO_PROGRAM = "NoProgram"


@dataclass(frozen=True, slots=True)
class Problem:
    """A part of the answer that is not used, with one sentence for people."""

    reason: Reason
    what: str


@dataclass(frozen=True, slots=True)
class Named:
    """The programs that the runtime names, each once: absolute paths, and names without a slash.

    A runtime that leaves the choice to its search path names none, without a problem.
    """

    programs: tuple[str, ...] = ()
    problem: Problem | None = None


def unsupported(*, runtime_type: str | None, handler: str) -> str | None:
    """Return why containers of a runtime are not restarted, for people; None if no obstacle is known.

    ``runtime_type`` is containerd's, such as ``io.containerd.runsc.v1``, None if it is not reported (CRI-O).
    ``handler`` is the one in the pod's RuntimeClass, empty for the node's default: a user-defined name, so only parts
    that are the runtimes' own names count.
    """
    if runtime_type is not None and not runtime_type.startswith(_CONTAINERD_PROCESSES):
        return f"its runtime is {runtime_type}, not runc: only containers that are processes of the node are restarted"
    if names := _SANDBOXED.intersection(_NAME_PART.findall(handler.lower())):
        (name, *_) = sorted(names)
        return f"its runtime handler {handler} is {name}: only containers that are processes of the node are restarted"
    return None


def named(config: str) -> Named:
    """Return the programs in ``config`` of a verbose ``Status``. The first problem is returned with the usable rest."""
    if not config:
        return _unusable(Reason.MISSING, "the runtime does not report its configuration")
    if len(config) > MOST_TEXT:
        return _unusable(Reason.TOO_LONG, f"the runtime's configuration has more than {MOST_TEXT} characters")
    try:
        content = json.loads(config)
    except (ValueError, RecursionError):
        return _unusable(Reason.NOT_JSON, "the runtime's configuration is not JSON")
    found = [each for each in (_of_containerd(content), _of_crio(content)) if each is not None]
    if not found:
        return _unusable(Reason.MISSING, "the runtime's configuration lists no runtimes")
    (values, *_) = found
    if len(values) > MOST_RUNTIMES:
        return _unusable(Reason.TOO_MANY, f"the runtime's configuration has more than {MOST_RUNTIMES} runtimes")
    usable = dict.fromkeys(value for value in values.values() if _is_program(value))
    odd = [(name, value) for name, value in values.items() if value not in (None, "") and not _is_program(value)]
    if not odd:
        return Named(tuple(usable))
    name, value = odd[0]
    what = f"{_short(value)}, the program of the runtime {_short(name)}, is neither an absolute path nor a name"
    return Named(tuple(usable), Problem(Reason.NO_PROGRAM, what))


def _unusable(reason: Reason, what: str) -> Named:
    return Named(problem=Problem(reason, what))


def _of_containerd(content: object) -> Mapping[str, Any] | None:
    """Return the program of each runtime of containerd, None for the default; None if it is not containerd's."""
    return _programs(_at(content, "containerd", "runtimes"), kind="runtimeType", program=("options", "BinaryName"))


def _of_crio(content: object) -> Mapping[str, Any] | None:
    return _programs(_at(content, "crio", "Runtimes"), kind="RuntimeType", program=("RuntimePath",))


def _programs(found: object, *, kind: str, program: tuple[str, ...]) -> Mapping[str, Any] | None:
    if not isinstance(found, dict):
        return None
    supported = ((name, each) for name, each in found.items() if _runs_processes(name, _at(each, kind)))
    return {name: _at(each, *program) for name, each in supported}


def _runs_processes(name: str, kind: object) -> bool:
    """Return whether a runtime's containers are processes of the node, so that its program is an OCI runtime."""
    crios = kind is None or kind in _CRIO_PROCESSES
    runtime_type = None if crios or not isinstance(kind, str) else kind
    return unsupported(runtime_type=runtime_type, handler=name) is None


def _is_program(value: object) -> bool:
    """Return whether a value is an absolute path, or a name, that a file can have."""
    if not isinstance(value, str) or not value or not value.isprintable():
        return False
    *directories, name = value.split("/")
    if len(value.encode()) > MOST_PATH or name in ("", ".", ".."):
        return False
    return not directories or (value.startswith("/") and ".." not in directories)


def _at(content: object, *keys: str) -> Any:
    for key in keys:
        content = content.get(key) if isinstance(content, dict) else None
    return content


def _short(value: object) -> str:
    shown = ascii(value)
    return shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}…"
