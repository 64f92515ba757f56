"""Decide which paths of a container's writable layer its successor keeps, and between which directories. Pure.

An overlay stores what a container wrote in its upper directory. Two containers of one image have the same lower
directories, so a part of one's upper directory means the same in the other's.
"""

import posixpath
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from kubemend.agent.model.workloads import ContainerId, ContainerRole

MOST_PATHS: Final = 16
DEEPEST: Final = 32
"""Components of a path."""
LONGEST_NAME: Final = 255
"""Bytes of a component, as Linux allows."""

FINAL_EXIT: Final = (
    "a rerun would let kubelet see the container's end, which could be final (restartPolicy Always changes that)"
)
INIT: Final = "an init container keeps nothing"
NOT_HELD: Final = "the new container was not held at its first instruction, and runs"
NOT_RESERVED: Final = "kubelet holds the name of the container in which the files would wait"
NO_DIRECTORY: Final = "the runtime does not show where the container's files are"
NO_OVERLAY: Final = "the runtime's store does not keep it in an overlay"
KUBELET: Final = "kubelet made the new container"

_USERXATTR: Final = "userxattr"
_MERGED: Final = "merged"
_ESCAPED: Final = " \t\n\\,:"
"""Characters that the kernel escapes, or that separate options: the directory could not be found among the mounts."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The snapshot that is a container's root, as the runtime names it."""

    snapshotter: str
    key: str


@dataclass(frozen=True, slots=True)
class Mount:
    """One mount of a snapshot: its type and its options."""

    type: str
    options: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Layer:
    """The directories of an overlay on the node: the writable one, and those below as the runtime lists them.

    ``mounted_at`` is where the overlay is mounted as long as the container exists; empty: it is only mounted while the
    container runs.
    """

    upper: str
    lower: str
    mounted_at: str = ""


@dataclass(frozen=True, slots=True)
class NotKept:
    """Why nothing is kept."""

    reason: str


@dataclass(frozen=True, slots=True)
class Request:
    """What the successor of the container ``old`` keeps: ``paths`` of its root.

    ``mount_points`` are the old container's; None: unknown. ``refused`` is why this restart keeps nothing.
    """

    container: str
    paths: tuple[str, ...]
    old: ContainerId
    mount_points: tuple[str, ...] | None
    refused: str = ""


def parse(text: str) -> tuple[str, ...]:
    """Return the paths of the annotation, in its order. Raises ValueError with a hint."""
    paths = tuple(dict.fromkeys(path.strip() for path in text.split(",") if path.strip()))
    if len(paths) > MOST_PATHS:
        raise ValueError(f"it may list at most {MOST_PATHS} paths")
    for path in paths:
        if not _is_plain(path):
            raise ValueError(f"{path!r} is not an absolute path without '..', '.' or repeated slashes")
        parts = path.split("/")[1:]
        if len(parts) > DEEPEST or any(len(part.encode(errors="replace")) > LONGEST_NAME for part in parts):
            raise ValueError(f"{path!r} has more than {DEEPEST} parts, or one of more than {LONGEST_NAME} bytes")
    for path in paths:
        if (other := next((each for each in paths if each != path and is_within(path, each)), None)) is not None:
            raise ValueError(f"{path!r} lies in {other!r}; list only one of them")
    return paths


def place(destination: str) -> str:
    """Return the path of a mount in the container: runc and crun clean it, and begin at the container's root."""
    return "/" + posixpath.normpath(f"/{destination}").lstrip("/")


def is_within(path: str, directory: str) -> bool:
    """Return whether a path is a directory, or lies in it."""
    return directory == "/" or path == directory or path.startswith(f"{directory}/")


def obstacle(path: str, *, mount_points: Iterable[str]) -> str:
    """Return why a path is not kept although it may exist; empty if there is no reason.

    A mount is no part of the writable layer. A path with a mount below stays as well, because the runtime
    mounts there again.
    """
    for point in mount_points:
        if point != "/" and is_within(path, point):
            return f"it belongs to the mount at {point}, not to the container's own files"
        if is_within(point, path):
            return f"something is mounted below it, at {point}"
    return ""


def layer(mounts: Sequence[Mount]) -> Layer | NotKept:
    """Return the overlay that a snapshot's mounts describe."""
    if len(mounts) != 1 or mounts[0].type != "overlay":
        kinds = ", ".join(mount.type for mount in mounts[:3]) or "nothing"
        return NotKept(f"the snapshotter's root is {kinds}, not an overlay")
    found = dict(option.split("=", 1) for option in mounts[0].options if "=" in option)
    upper, lower = found.get("upperdir", ""), found.get("lowerdir", "")
    if not (_is_plain(upper) and lower) or any(character in upper for character in _ESCAPED):
        return NotKept("the overlay has no writable layer of its own")
    if _USERXATTR in mounts[0].options:
        return NotKept("the runtime mounts overlays without privileges (userxattr)")
    return Layer(upper=upper, lower=lower)


def stored_layer(root: str, *, lower: str) -> Layer | NotKept:
    """Return the overlay of a container in containers/storage, CRI-O's store.

    ``root`` is where CRI-O has mounted it, from the container's creation to its removal. ``lower`` is the content of
    the file ``lower`` next to that directory (go.podman.io/storage drivers/overlay/overlay.go).
    """
    directory, name = posixpath.split(root)
    if name != _MERGED or not lower or not _is_plain(root) or any(character in root for character in _ESCAPED):
        return NotKept(NO_OVERLAY)
    return Layer(upper=posixpath.join(directory, "diff"), lower=lower, mounted_at=root)


def pair(old: Layer | NotKept, new: Layer | NotKept) -> tuple[Layer, Layer] | NotKept:
    """Return the overlays of both containers; NotKept if a path would mean something else in the other."""
    for each in (old, new):
        if isinstance(each, NotKept):
            return each
    assert isinstance(old, Layer)
    assert isinstance(new, Layer)
    if old.lower != new.lower:
        return NotKept("the new container has another image")
    if old.upper == new.upper:
        return NotKept("both containers have one writable layer")
    return old, new


def obstacle_of_rerun(*, role: ContainerRole, exit_is_restarted: bool) -> str:
    """Return why a rerun keeps nothing of a container; empty if it does.

    The old container is dead before it is removed: kubelet may list it so, which it cannot if it is removed at once.
    """
    if role is ContainerRole.INIT:
        return INIT
    return "" if exit_is_restarted else FINAL_EXIT


def _is_plain(path: str) -> bool:
    begins_with_one = path.startswith("/") and not path.startswith("//")
    return begins_with_one and posixpath.normpath(path) == path != "/" and "\0" not in path
