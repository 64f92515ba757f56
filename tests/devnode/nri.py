"""Run a plugin of containerd's Node Resource Interface, which gives each new container a variable and a limit.

It is built once, from the Go module ``hack/nri``.
"""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Final

from hack.devnode import layout, processes
from hack.devnode.gobuild import GoModule
from hack.devnode.packages import CHECKOUT

VARIABLE: Final = "ADJUSTED_BY_NRI=yes"
OPEN_FILES: Final = 1234
REGISTERED: Final = "registered"
"""The line in the plugin's log that shows that it works."""

_CACHE: Final = CHECKOUT / ".dev" / "nri"
_STOP_SECONDS: Final = 5.0
_MODULE: Final = GoModule(
    name="the NRI plugin",
    root=CHECKOUT / "hack" / "nri",
    requires="github.com/containerd/nri",
    packages=(".",),
    hint="make the Go modules reachable",
    duration="some seconds",
)


def ensure() -> Path:
    """Return the plugin, after building it if necessary. Raises packages.PackagesError."""
    return _MODULE.ensure(_CACHE) / "nri"


@contextlib.asynccontextmanager
async def plugin(where: layout.NodeLayout) -> AsyncIterator[Path]:
    """Run the plugin on a node with NRI for the length of the block; the value is its log."""
    log = where.log_file("nri")
    child = processes.Child.start(
        [str(ensure()), str(where.nri_socket)], name="NRI plugin", log=log, pid_file=where.pid_file("nri")
    )
    try:
        yield log
    finally:
        await child.stop(grace=_STOP_SECONDS)
