"""The NVML worker process: ``python -m agent.sources.nvml.worker``, started and stopped by ``NvmlSource``.

It has three threads. The main one reads requests and sends beats. It never calls NVML, so it can always report a
hanging call and always end. One thread polls and answers queries, one waits for events. Closing stdin ends the process.
Signals that a terminal or a service manager sends to the whole group do not, because killing an NVML client in the
middle of a call can wedge a GPU. It imports only pynvml and small standard modules, because it runs next to every
workload.
"""

import argparse
import os
import queue
import signal
import threading
from dataclasses import fields

from kubemend.agent.sources.nvml import protocol, reader
from kubemend.agent.sources.nvml.calls import Calls
from kubemend.agent.sources.nvml.poller import Inbox, Poller, PollRequest, Stop

STOP_GRACE = 2.0  # seconds that an NVML call may still take after the stop request


class Outbox:
    """Messages to the agent. The worker ends when the agent is gone."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._lock = threading.Lock()

    def send(self, message: protocol.Message) -> None:
        """Write one complete message, from any thread."""
        line = memoryview(protocol.encode(message))
        with self._lock:
            try:
                while line:
                    line = line[os.write(self._fd, line) :]
            except BrokenPipeError:
                os._exit(0)


def main() -> None:
    """Run the worker on this process's stdin and stdout."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    threading.excepthook = _die
    options = _parse()
    outbox = Outbox(_take_stdout())
    outbox.send(protocol.Beat())
    import pynvml

    inbox: Inbox = queue.SimpleQueue()
    calls = Calls(
        deadline=options.hang_deadline,
        announce=lambda call: outbox.send(protocol.Beat(call=call)),
        came_back=lambda: inbox.put(PollRequest()),  # values from before the hang are outdated
    )
    nvml = reader.Reader(pynvml=pynvml, calls=calls)
    poller = Poller(nvml=nvml, inbox=inbox, send=outbox.send, options=options)
    thread = threading.Thread(target=_run_to_exit, args=(poller,), name="nvml-poller", daemon=True)
    thread.start()
    _serve_stdin(inbox=inbox, calls=calls)
    inbox.put(Stop())
    thread.join(STOP_GRACE)
    os._exit(0)  # skips a hanging call, which would block a normal exit indefinitely


def _run_to_exit(poller: Poller) -> None:
    """Run the poller and exit the process when it ends, even if the main thread is waiting."""
    poller.run()
    os._exit(0)


def _die(failed: threading.ExceptHookArgs) -> None:
    """End the process when a thread fails: a worker that runs without its threads would hide faults."""
    threading.__excepthook__(failed)
    os._exit(1)


def _serve_stdin(*, inbox: Inbox, calls: Calls) -> None:
    """Forward requests and send beats, until stdin is closed."""
    pending = b""
    while True:
        if not calls.readable(0):
            continue
        chunk = os.read(0, 65536)
        if not chunk:
            return
        *lines, pending = (pending + chunk).split(b"\n")
        for line in lines:
            message = protocol.decode(line)
            if isinstance(message, protocol.Query):
                inbox.put(message)


def _take_stdout() -> int:
    """Reserve stdout for messages: output printed by a library goes to stderr."""
    private = os.dup(1)
    os.dup2(2, 1)
    return private


def _parse() -> protocol.Options:
    parser = argparse.ArgumentParser(description="Internal: the NVML worker of the kubemend agent.")
    for option in fields(protocol.Options):
        parser.add_argument(f"--{option.name.replace('_', '-')}", type=float, required=True)
    return protocol.Options(**vars(parser.parse_args()))


if __name__ == "__main__":
    main()
