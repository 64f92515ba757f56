"""Build a runc that can run pods in user namespaces, once, from its Go module.

That needs runc 1.2, for mounts with mapped ids (kubernetes.io, "Use a User Namespace With a Pod"); Debian 12 has 1.1.5.
"""

import pathlib
from typing import Final

from hack.devnode import packages
from hack.devnode.gobuild import GoModule
from hack.devnode.packages import CHECKOUT

_CACHE: Final = CHECKOUT / ".dev" / "runc"
_PACKAGE: Final = "github.com/opencontainers/runc"
_HOST_PACKAGES: Final = ("gcc", "libc6-dev", "libseccomp-dev", "pkg-config")
_MODULE: Final = GoModule(
    name="runc",
    root=CHECKOUT / "hack" / "runc",
    requires=_PACKAGE,
    packages=(_PACKAGE,),
    hint="make the Go modules reachable",
    duration="about a minute on two cores",
    tags=("seccomp",),
    cgo=True,
)


def ensure() -> pathlib.Path:
    """Return the program, after building it if necessary. Raises packages.PackagesError."""
    packages.ensure_host_packages(_HOST_PACKAGES)
    return _MODULE.ensure(_CACHE) / "runc"
