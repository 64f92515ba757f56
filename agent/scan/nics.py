"""The NICs, by sysfs and netlink: which are there, and which of their links are silent.

A single look cannot tell a link that broke from one that was never cabled, so no link is at fault by it alone. Neither
speeds nor counters are read: where a firmware forbids that, each reading makes a line in the kernel log.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from agent.model.nics import Nic
from agent.scan.found import NicsFound
from agent.scan.report import Unseen
from agent.sources.network import statuses
from agent.sources.network.netlink import ListingError
from agent.sources.network.reader import Reader, Task
from agent.sources.network.sysfs import Sysfs
from agent.sources.network.view import View

PART = "network"

_TASKS = frozenset({Task.SCAN, Task.PORTS})
_RECEIVE_BUFFER = 1 << 16  # nothing is listened to


async def look(sysfs: Path, *, timeout: float) -> NicsFound:
    """Look once. It takes ``timeout`` seconds at most."""
    view = View(known=(), ignored=frozenset())
    reader = Reader(Sysfs(sysfs), netns=None, receive_buffer=_RECEIVE_BUFFER, deadline=timeout / 2)
    unseen: tuple[Unseen, ...] = ()
    try:
        view.take_look(await reader.look(_TASKS, (), up=frozenset()), at=time.monotonic())
        if view.nics:
            view.take_links(await reader.links())
    except ListingError as error:
        unseen = (_links_unseen(error),)
    except OSError as error:  # a TimeoutError is one
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
    what = f"{path} cannot be read: {statuses.reason(error)}; NICs are not seen there"
    return Unseen(PART, what, "mount the machine's sysfs, or name the right path by --sysfs")


def _links_unseen(error: Exception) -> Unseen:
    what = f"netlink does not list the links: {statuses.reason(error)}"
    return Unseen(PART, what, "run it as root in the network namespace of the machine")
