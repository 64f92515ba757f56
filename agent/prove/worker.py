"""Prove GPUs in a process of its own: ``python -m agent.prove.worker gpu|peers UUIDS DEADLINE [CGROUPS]``.

``workers`` starts it; CUDA_VISIBLE_DEVICES names the same GPUs. It calls the driver once it has received a line on
stdin, so it can be started ahead of its work. It works like the NVML worker, for the same reasons: any call of the
driver can block indefinitely, and killing a process in the middle of one can wedge a GPU. So the main thread never
calls CUDA; it reports the hanging call, and ends the process when stdin is closed. Signals that a terminal sends to the
whole group are ignored.

With CGROUPS, where cgroups are mounted, it leaves its cgroup first: CUDA takes some hundred MiB of the host's memory,
which must not count for the agent, and a process that hangs in the driver would keep the agent's cgroup from being
removed.
"""

import os
import signal
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

from kubemend.agent.prove import measurements, measuring
from kubemend.agent.prove.cuda import Cuda, CudaError
from kubemend.agent.prove.measurements import CudaFailure, Hanging, Message, NoLibrary
from kubemend.agent.sources.nvml.calls import Calls
from kubemend.common import cgroupfs


def main(what: str, uuids: Sequence[str], deadline: float, cgroups: Path | None = None) -> None:
    """Wait for the request on stdin, prove once, and report on stdout. ``deadline`` of one CUDA call is in seconds."""
    if cgroups is not None:
        cgroupfs.leave(cgroups)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.excepthook = _die
    out = os.dup(1)
    os.dup2(2, 1)  # output printed by a library must not mix with messages
    running: list[Cuda] = []

    def emit(message: Message) -> None:
        line = memoryview(measurements.encode(message))
        while line:
            line = line[os.write(out, line) :]

    def announce(call: str | None) -> None:
        if call is not None:
            cuda = running[0]
            emit(Hanging(call=call, seconds=deadline, test=cuda.test, pair=cuda.pair))

    def prove() -> None:
        try:
            cuda = Cuda(calls)
        except (OSError, AttributeError) as error:
            emit(NoLibrary(str(error)))
            os._exit(0)
        running.append(cuda)
        try:
            if what == measurements.PEERS:
                measuring.peers(cuda, emit, count=len(uuids), plan=measuring.Plan())
            else:
                measuring.one_gpu(cuda, emit, plan=measuring.Plan(), uuid=uuids[0])
        except CudaError as error:
            emit(CudaFailure(call=error.call, code=error.code, name=error.name, test=cuda.test, pair=cuda.pair))
        os._exit(0)

    calls = Calls(deadline=deadline, announce=announce, came_back=lambda: None)
    if not os.read(0, 4096):
        os._exit(0)
    threading.Thread(target=prove, name="cuda", daemon=True).start()
    while True:
        if calls.readable(0) and not os.read(0, 4096):
            os._exit(0)  # skips a hanging call, which would block a normal exit indefinitely


def _die(failed: threading.ExceptHookArgs) -> None:
    """End the process when its thread fails: otherwise it would never end."""
    threading.__excepthook__(failed)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2].split(","), float(sys.argv[3]), *map(Path, sys.argv[4:]))
