"""Which low-level runtimes can be worked with: those whose containers are processes of the node. Pure.

A sandboxed runtime has a kernel of its own (gVisor in user space, Kata in a virtual machine): the pids that kernel and
driver name are not those of the containers, what frees a device is the sandbox's end and not the container's, and
neither cgroup nor root show the program. Nothing of it was tried, so nothing of it is restarted.
"""

import re

_PROCESSES = ("io.containerd.runc.", "io.containerd.runtime.v1.linux")  # runc, and what is called as runc is: crun, …
_SANDBOXED = frozenset({"gvisor", "runsc", "kata", "firecracker", "peerpods"})
_WORD = re.compile(r"[a-z0-9]+")


def unsupported(*, runtime_type: str | None, handler: str) -> str | None:
    """Return why containers of a runtime are not restarted, for people; None when nothing is known against it.

    ``runtime_type`` is containerd's, such as ``io.containerd.runsc.v1``, None where it is not told (CRI-O). ``handler``
    is what the pod's RuntimeClass names, empty for the node's default: a name that people give, so that only words
    count that are the runtimes' own.
    """
    if runtime_type is not None and not runtime_type.startswith(_PROCESSES):
        return f"its runtime is {runtime_type}, not runc: only containers that are processes of the node are restarted"
    if words := _SANDBOXED.intersection(_WORD.findall(handler.lower())):
        (word, *_) = sorted(words)
        return f"its runtime handler {handler} is {word}: only containers that are processes of the node are restarted"
    return None
