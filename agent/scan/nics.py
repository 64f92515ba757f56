"""Check the NICs by sysfs and netlink: which are present, and which of their links are not up.

A single check cannot distinguish a link that broke from one that was never cabled, so it reports no link fault by
itself. Neither speeds nor counters are read: where a firmware forbids that, each read writes a line to the kernel log.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from kubemend.agent.model.nics import Nic
from kubemend.agent.scan.report import NicsFound, Unseen
from kubemend.agent.sources.network import component_status
from kubemend.agent.sources.network.netlink import ListingError
from kubemend.agent.sources.network.reader import Reader, Task
from kubemend.agent.sources.network.sysfs import Sysfs
from kubemend.agent.sources.network.view import View

PART = "network"

_TASKS = frozenset({Task.SCAN, Task.PORTS})
_RECEIVE_BUFFER = 1 << 16  # no socket is opened for listening


async def check(sysfs: Path, *, timeout: float) -> NicsFound:
    """Check once. It takes ``timeout`` seconds at most."""
    view = View(known=(), ignored=frozenset())
    reader = Reader(Sysfs(sysfs), netns=None, receive_buffer=_RECEIVE_BUFFER, deadline=timeout / 2)
    unseen: tuple[Unseen, ...] = ()
    try:
        view.update(await reader.read(_TASKS, (), up=frozenset()), at=time.monotonic())
        if view.nics:
            view.take_links(await reader.links())
    except ListingError as error:
        unseen = (_links_unseen(error),)
    except OSError as error:  # a TimeoutError is an OSError
        unseen = (_links_unseen(error) if view.nics else _sysfs_unseen(reader.at, error),)
    finally:
        reader.close()
    return NicsFound(nics=view.nics, silent=_silent(view), unseen=unseen)


def _silent(view: View) -> Mapping[Nic, tuple[str, ...]]:
    nics = {nic.pci: nic for nic in view.nics}
    silent = {
        nics[reading.pci]: tuple(sorted(link.name for link in reading.links if link.admin_up and not link.up))
        for reading in view.readings(nics)
    }
    return MappingProxyType(silent)


def _sysfs_unseen(path: Path, error: OSError) -> Unseen:
    what = f"{path} cannot be read: {component_status.reason(error)}; NICs are not checked"
    return Unseen(PART, what, "mount the machine's sysfs, or pass its path with --sysfs")


def _links_unseen(error: Exception) -> Unseen:
    what = f"netlink does not list the links: {component_status.reason(error)}"
    return Unseen(PART, what, "run it as root in the network namespace of the machine")
