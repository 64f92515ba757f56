"""What every long-running process of ours begins with: how it is told to stop, and what it counts of itself."""

import asyncio
import signal

from prometheus_client import CollectorRegistry
from prometheus_client.platform_collector import PlatformCollector
from prometheus_client.process_collector import ProcessCollector


class Stop(Exception):  # noqa: N818 - not an error: how a TaskGroup is told to end
    """Ends the TaskGroup that holds all parts."""


def stop_signal() -> asyncio.Event:
    """Return what SIGTERM and SIGINT set from now on, so that neither ends the process out of turn."""
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    return stop


def registry() -> CollectorRegistry:
    """Return a registry that has what the process itself costs."""
    made = CollectorRegistry()
    ProcessCollector(registry=made)
    PlatformCollector(registry=made)
    return made
