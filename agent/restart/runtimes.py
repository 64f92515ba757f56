"""Decide which low-level runtimes are supported: those whose containers are processes of the node. Pure.

A sandboxed runtime has a kernel of its own (gVisor in user space, Kata in a virtual machine): the pids from kernel and
driver are not those of the containers, a device is freed by the end of the sandbox and not of the container, and
neither cgroup nor root show the program. No such runtime was tested, so none is supported.
"""

import re

_PROCESSES = ("io.containerd.runc.", "io.containerd.runtime.v1.linux")  # runc, and runtimes called like it: crun, …
_SANDBOXED = frozenset({"gvisor", "runsc", "kata", "firecracker", "peerpods"})
_NAME_PART = re.compile(r"[a-z0-9]+")


def unsupported(*, runtime_type: str | None, handler: str) -> str | None:
    """Return why containers of a runtime are not restarted, for people; None if no obstacle is known.

    ``runtime_type`` is containerd's, such as ``io.containerd.runsc.v1``, None if it is not reported (CRI-O).
    ``handler`` is the one in the pod's RuntimeClass, empty for the node's default: a user-defined name, so only parts
    that are the runtimes' own names count.
    """
    if runtime_type is not None and not runtime_type.startswith(_PROCESSES):
        return f"its runtime is {runtime_type}, not runc: only containers that are processes of the node are restarted"
    if names := _SANDBOXED.intersection(_NAME_PART.findall(handler.lower())):
        (name, *_) = sorted(names)
        return f"its runtime handler {handler} is {name}: only containers that are processes of the node are restarted"
    return None
