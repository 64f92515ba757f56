"""Hold a container at its first opening of the GPU driver's libraries.

fanotify reports openings of regular files and directories only (``fanotify_group_event_mask`` in
fs/notify/fanotify/fanotify.c), so a device node cannot be held. But programs reach a GPU through the user-mode driver:
CUDA through ``libcuda.so``, which belongs to the kernel's driver and therefore comes from the host. The NVIDIA
container toolkit and CDI mount each of its libraries into the container. Such a mount is the container's own: a mark
for FAN_OPEN_PERM on it holds no process that opens the same file by another path, of the host or of another container.
Images may bring a compatible ``libcuda.so``, too (``/usr/local/cuda*/compat``), in an overlay that is the container's
own. A program that opens a device without these libraries is not held.

A process of the container waits until the group is closed, by the agent or by its death. The kernel then allows
everything, so such a hold can be lost, but never stays. Others can open the same files only through the container's
root (``/proc/<pid>/root``), and are allowed at once.
"""

import asyncio
import contextlib
import errno
import itertools
import os
import re
import stat
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import structlog

from kubemend.agent.actuator.hold import cgroups, fanotify
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart.overlap import Obstacle
from kubemend.common import kernel_files, openat2

log = structlog.get_logger(__name__)

MOST_LIBRARIES: Final = 64
"""Marks for one container. The toolkit mounts some 20 libraries."""

MOST_WAITING: Final = 64
"""Openings of one container that wait; each takes a descriptor of the agent. With one more the hold ends."""

_SECONDS: Final = 0.5
"""Within which the libraries are found and marked; it takes about a millisecond. A file system of the pod may hang."""
_MOST_THREADS: Final = 4  # those that hang are not available any more
_MOST_MOUNTS: Final = 4 << 20  # bytes of mountinfo
_MOST_ENTRIES: Final = 256  # of a directory
_LIBRARY: Final = re.compile(rb"lib[^/]*(?:cuda|nvidia|nvcuvid|nvoptix)[^/]*\.so[.0-9]*")
_DOOR: Final = re.compile(rb"libcuda\.so[.0-9]*")
"""Without this library no program uses CUDA."""
_LOCAL: Final = frozenset({b"btrfs", b"erofs", b"ext4", b"overlay", b"squashfs", b"tmpfs", b"xfs", b"zfs"})
"""File systems that do not hang. On another one a pod could have the agent wait for a server."""
_COMPATIBLE: Final = ("compat", "compat/lib", "compat/lib.real")
_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY


class NotHeldError(Exception):
    """The openings of a container's driver libraries cannot be held."""

    def __init__(self, obstacle: Obstacle, reason: str = "") -> None:
        super().__init__(reason or obstacle.text)
        self.obstacle = obstacle


class DriverHold:
    """The held openings of one container. It ends ``at_most`` seconds later by itself.

    ``process`` is the directory in /proc of one of its processes.
    """

    def __init__(
        self, group: int, *, container: ContainerId, process: Path, at_most: float, threads: ThreadPoolExecutor
    ) -> None:
        self._container = container
        self._process = process
        self._group: int | None = group
        self._waiting: list[fanotify.PermissionEvent] = []
        self._threads = threads
        self._loop = asyncio.get_running_loop()
        self._timer = self._loop.call_later(at_most, self.release)
        self._loop.add_reader(group, self._on_events, group)

    @property
    def is_waited_for(self) -> bool:
        """Return whether a process waits for a library."""
        return bool(self._waiting)

    def release(self) -> None:
        """Allow all openings. May be called again."""
        if self._group is None:
            return
        log.info("driver_hold.released", container=self._container, was_waited_for=self.is_waited_for)
        group, self._group = self._group, None
        waiting, self._waiting = self._waiting, []
        self._timer.cancel()
        self._loop.remove_reader(group)
        # Closing the group allows all at once, and then waits for the kernel.
        self._loop.run_in_executor(self._threads, _close, [group, *(each.file for each in waiting)])

    def _on_events(self, group: int) -> None:
        try:
            for asked in fanotify.permission_events(group):
                self._on_open(group, asked)
        except BlockingIOError:
            pass
        except OSError as error:  # no descriptor is free: the kernel would refuse further openings
            log.error("driver_hold.not_read", container=self._container, error=str(error))
            self.release()

    def _on_open(self, group: int, asked: fanotify.PermissionEvent) -> None:
        if self._group is None:  # released by an earlier opening of the same batch
            os.close(asked.file)
        elif not self._is_inside(asked):
            _allow(group, asked)
        else:
            self._waiting.append(asked)
            if len(self._waiting) > MOST_WAITING:
                self._forget_the_dead(group)
            if len(self._waiting) > MOST_WAITING:
                log.warning("driver_hold.too_many_wait", container=self._container)
                self.release()

    def _forget_the_dead(self, group: int) -> None:
        """Probes that use the driver time out, and are killed, again and again."""
        dead = [each for each in self._waiting if not self._is_inside(each)]
        self._waiting = [each for each in self._waiting if each not in dead]
        for each in dead:
            _allow(group, each)

    def _is_inside(self, asked: fanotify.PermissionEvent) -> bool:
        return cgroups.container_of(self._process.parent / str(asked.pid)) == self._container


class DriverHolds:
    """Hold containers at their driver libraries. ``threads`` close the groups, and must not hang."""

    def __init__(self, *, at_most: float, threads: ThreadPoolExecutor) -> None:
        self._at_most = at_most
        self._closing = threads
        self._finding = ThreadPoolExecutor(max_workers=_MOST_THREADS, thread_name_prefix="driver libraries")

    async def arm(self, process: Path, *, runtime: Path) -> DriverHold:
        """Hold all further openings in the container of a process (``mark_libraries``). Raises NotHeldError."""
        if (container := cgroups.container_of(process)) is None:
            raise NotHeldError(Obstacle.NOT_HELD)
        marking = asyncio.get_running_loop().run_in_executor(self._finding, mark_libraries, process, runtime)
        try:
            async with asyncio.timeout(_SECONDS):
                group = await asyncio.shield(marking)
        except TimeoutError:
            marking.add_done_callback(_close_late)
            raise NotHeldError(Obstacle.TIMED_OUT) from None
        except asyncio.CancelledError:
            marking.add_done_callback(_close_late)
            raise
        return DriverHold(group, container=container, process=process, at_most=self._at_most, threads=self._closing)


def mark_libraries(process: Path, runtime: Path) -> int:
    """Return a fanotify group that holds all further openings of a container's driver libraries. Raises NotHeldError.

    ``process`` is the directory in /proc of a process of the container that is held, so that its mounts do not change;
    ``runtime`` is the container runtime's, which has the mounts of the host.
    """
    with contextlib.ExitStack() as opened:
        try:
            group = fanotify.new_group()
            on_error = opened.enter_context(contextlib.ExitStack())
            on_error.callback(os.close, group)
            _mark_all(group, process, runtime, opened=opened)
        except OSError as error:
            raise NotHeldError(Obstacle.NOT_MARKED, str(error)) from error
        on_error.pop_all()
        return group


def _mark_all(group: int, process: Path, runtime: Path, *, opened: contextlib.ExitStack) -> None:
    if _mount_namespace(process) == _mount_namespace(runtime):
        raise NotHeldError(Obstacle.FOREIGN_DRIVER, "the container has the mounts of the host")
    mounts = kernel_files.read_bytes(process / "mountinfo", limit=_MOST_MOUNTS) or b""
    root = _kept(opened, os.open(process / "root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC))
    places = library_mounts(mounts)
    has_door = False
    for mount_id, place in places:
        directory, _, name = os.fsdecode(place).lstrip("/").rpartition("/")
        with _directory(root, directory or ".") as parent:
            if parent is None:
                continue  # another mount hides it
            library = _kept(opened, openat2.open_in_root(parent, name, flags=os.O_PATH))
        if _mount_id(library) == mount_id and stat.S_ISREG(os.fstat(library).st_mode):
            fanotify.hold_mount(group, library)
            has_door |= _DOOR.fullmatch(_name(place)) is not None
    if not has_door:
        raise NotHeldError(Obstacle.NO_DRIVER)
    for number, library in enumerate(_own_libraries(root), start=len(places) + 1):
        _kept(opened, library)
        if number > MOST_LIBRARIES:
            raise NotHeldError(Obstacle.TOO_MANY_LIBRARIES)
        fanotify.hold_file(group, library)


def library_mounts(mountinfo: bytes) -> list[tuple[int, bytes]]:
    """Return the mounts of single driver libraries, by id and place (proc_pid_mountinfo(5)). Raises NotHeldError."""
    found = []
    for line in mountinfo.split(b"\n"):
        mount, _, rest = line.partition(b" - ")
        fields = mount.split(b" ", 5)
        if len(fields) < 6 or not fields[0].isdigit() or not _LIBRARY.fullmatch(_name(fields[4])):
            continue
        if (kind := rest.partition(b" ")[0]) not in _LOCAL:
            raise NotHeldError(Obstacle.FOREIGN_DRIVER, f"a library lies on {kernel_files.text(kind)}")
        found.append((int(fields[0]), fields[4]))
        if len(found) > MOST_LIBRARIES:
            raise NotHeldError(Obstacle.TOO_MANY_LIBRARIES)
    return found


def _own_libraries(root: int) -> Iterator[int]:
    """Yield the compatible libraries of the image, opened by O_PATH; close each. Raises NotHeldError for a volume."""
    with _directory(root, "usr/local") as local:
        if local is None:
            return
        for name in _names(local):
            if not name.startswith("cuda"):
                continue
            for place in _COMPATIBLE:
                with _directory(local, f"{name}/{place}") as directory:
                    if directory is None:
                        continue
                    for each in _names(directory):
                        if _DOOR.fullmatch(os.fsencode(each)):
                            yield from _regular(directory, each)


@contextlib.contextmanager
def _directory(parent: int, path: str) -> Iterator[int | None]:
    """Open a directory of the container's root, through no link; None if there is none. Raises NotHeldError."""
    try:
        opened = openat2.open_beneath(parent, path, flags=_DIRECTORY)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise NotHeldError(Obstacle.FOREIGN_DRIVER, f"{path} is a mount") from error
        if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):  # what a link leads to is found by its name
            raise
        yield None
        return
    try:
        yield opened
    finally:
        os.close(opened)


def _names(directory: int) -> list[str]:
    """Return the names in a directory. Raises NotHeldError if there are too many."""
    with os.scandir(directory) as entries:
        found = [entry.name for entry in itertools.islice(entries, _MOST_ENTRIES + 1)]
    if len(found) > _MOST_ENTRIES:
        raise NotHeldError(Obstacle.TOO_MANY_LIBRARIES)
    return found


def _regular(directory: int, name: str) -> Iterator[int]:
    """Yield a regular file, opened by O_PATH; nothing for a link. Raises NotHeldError for a mount."""
    try:
        library = openat2.open_beneath(directory, name, flags=os.O_PATH | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno == errno.EXDEV:
            raise NotHeldError(Obstacle.FOREIGN_DRIVER, f"{name} is a mount") from error
        raise
    if stat.S_ISREG(os.fstat(library).st_mode):
        yield library
    else:
        os.close(library)


def _kept(opened: contextlib.ExitStack, descriptor: int) -> int:
    opened.callback(os.close, descriptor)
    return descriptor


def _name(place: bytes) -> bytes:
    return place.rpartition(b"/")[2]


def _mount_namespace(process: Path) -> tuple[int, int]:
    found = (process / "ns" / "mnt").stat()
    return found.st_dev, found.st_ino


def _mount_id(descriptor: int) -> int | None:
    """Return the id of the mount on which an open file lies (proc_pid_fdinfo(5))."""
    for line in kernel_files.lines(kernel_files.read(f"/proc/self/fdinfo/{descriptor}") or ""):
        name, _, value = line.partition(":")
        if name == "mnt_id":
            return int(value)
    return None


def _allow(group: int, asked: fanotify.PermissionEvent) -> None:
    with contextlib.suppress(FileNotFoundError):  # the process was killed in the meantime
        fanotify.allow(group, asked.file)


def _close(descriptors: Iterable[int]) -> None:
    for each in descriptors:
        os.close(each)


def _close_late(marking: "asyncio.Future[int]") -> None:
    if not marking.cancelled() and marking.exception() is None:
        os.close(marking.result())
