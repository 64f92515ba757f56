"""Have a successor keep paths of the old container's writable layer, between the end of the one and the other's start.

It is time-boxed. Failures are reported, and do not block the start.
"""

import asyncio
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol, TypeVar

import structlog

from kubemend.agent import ports
from kubemend.agent.actuator import layer_copies, layer_moves
from kubemend.agent.actuator.layer_moves import ABSENT, KEPT, Access
from kubemend.agent.clients.containerd.snapshots import SnapshotError
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.restart import keep
from kubemend.common import contained
from kubemend.common.side_process import Calls, ProcessEndedError

T = TypeVar("T")

log = structlog.get_logger(__name__)

_SECONDS: Final = 2.0
"""For all paths of one container. A rename takes microseconds; the runtime may still be unmounting the old root."""
_COPY_SECONDS: Final = 10.0
"""For all copies to one container, which waits until they are made."""
_LONGEST_NOTE: Final = 2000
"""Characters: a pod chooses the paths and where its volumes are mounted."""
_SLACK: Final = 0.5  # seconds after which a call that should have ended by itself is abandoned


class Snapshots(Protocol):
    """Shows the mounts of snapshots (``agent.clients.containerd.snapshots``). Raises SnapshotError."""

    async def mounts(self, snapshot: keep.Snapshot) -> Sequence[keep.Mount]: ...


class LayerKeeper:
    """Access to the writable layers of this node's containers. Without ``calls`` or ``snapshots`` nothing is kept.

    ``calls`` runs the moves in another process, because a file system may hang.
    """

    def __init__(
        self,
        socket_path: str = "",
        *,
        calls: Calls | None = None,
        snapshots: Snapshots | None = None,
        statuses: ports.ContainerStatuses | None = None,
        proc: Path = Path("/proc"),
        seconds: float = _SECONDS,
    ) -> None:
        self._access = Access(socket_path, proc)
        self._calls = calls
        self._snapshots = snapshots
        self._statuses = statuses
        self._seconds = seconds

    async def move(
        self, old: ContainerId, new: ContainerId, paths: Sequence[str], *, held: int | None = None
    ) -> Mapping[str, str] | keep.NotKept:
        """Move paths to a created container; return why each was not moved, ``KEPT`` if it was.

        The old container must have ended or never run, and the new one must not have been started. If it was, its
        process ``held`` is held at its first instruction. The paths are copied then, and where the runtime mounts the
        roots of containers that do not run (CRI-O).
        """
        with contained.within(contained.Part.CONTAINER, new) as work:
            return await self._in_time(old, new, paths, held)
        assert work.error is not None
        return keep.NotKept(contained.describe(work.error))

    async def _in_time(
        self, old: ContainerId, new: ContainerId, paths: Sequence[str], held: int | None
    ) -> Mapping[str, str] | keep.NotKept:
        seconds = self._seconds
        try:
            async with asyncio.timeout(seconds + _SLACK):
                layers = keep.pair(await self._layer(old), await self._layer(new))
            if isinstance(layers, keep.NotKept):
                return layers
            move: Callable[..., Mapping[str, str]] = layer_moves.move
            if held is not None or layers[1].mounted_at:
                seconds, move = _COPY_SECONDS, functools.partial(layer_copies.copy, held=held)
            until = time.monotonic() + seconds
            work = functools.partial(move, self._access, old=layers[0], new=layers[1], paths=tuple(paths), until=until)
            return await self._call(work, owner=f"layer {new}", timeout=seconds + _SLACK)
        except TimeoutError:
            return keep.NotKept(f"it took more than {seconds:g} s")
        except (SnapshotError, CriError, layer_moves.NotMovedError) as error:
            return keep.NotKept(str(error))
        except (ProcessEndedError, OSError) as error:
            return keep.NotKept(error.strerror or str(error))

    async def _layer(self, container: ContainerId) -> keep.Layer | keep.NotKept:
        if self._calls is None or self._snapshots is None or self._statuses is None:
            return keep.NotKept("this agent has no access to it")
        status = await self._statuses.container_status(container)
        if status.snapshot is not None:
            return keep.layer(await self._snapshots.mounts(status.snapshot))
        if status.root is None:
            return keep.NotKept(keep.NO_DIRECTORY)
        look = functools.partial(layer_copies.stored_layer, self._access, root=status.root)
        return await self._call(look, owner=f"layer {container}", timeout=self._seconds)

    async def _call(self, work: Callable[[], T], *, owner: str, timeout: float) -> T:
        assert self._calls is not None
        return await self._calls.call(work, owner=owner, timeout=timeout)


class LayerKeeping:
    """What one container's successor keeps in one restart, and what became of it."""

    def __init__(self, keeper: LayerKeeper, request: keep.Request) -> None:
        self._keeper = keeper
        self._request = request
        self._left: dict[str, str] | None = None
        self._parked: ContainerId | None = None
        self._moved_to: ContainerId | None = None

    @property
    def old(self) -> ContainerId:
        """Return the container whose paths are kept."""
        return self._request.old

    @property
    def is_refused(self) -> bool:
        """Return whether this restart keeps nothing."""
        return bool(self._request.refused)

    def refuse(self, reason: str) -> None:
        """Keep nothing, for this reason."""
        self._request = replace(self._request, refused=reason)

    async def park(self, at: ContainerId) -> None:
        """Move the paths to a container that never runs, until the successor is created. The old one must be dead."""
        await self._move(self._request.old, at)
        self._parked = at

    async def before_start(self, successor: ContainerId) -> None:
        """Move the paths. Call when the old container is dead, before its successor is started; again after a retry."""
        if not self.is_refused:
            await self._move(self._request.old if self._parked is None else self._parked, successor)

    async def before_release(self, successor: ContainerId, *, held: int | None) -> None:
        """Copy the paths to a successor that was started next to the old container. Call when that is dead.

        ``held`` is the successor's process at its first instruction; None: it was not held.
        """
        if not self.is_refused and held is None:
            self.refuse(keep.NOT_HELD)
        elif not self.is_refused and self._moved_to != successor:
            await self._move(self._request.old, successor, held=held)

    async def _move(self, old: ContainerId, new: ContainerId, *, held: int | None = None) -> None:
        request = self._request
        kept = [path for path, reason in (self._left or {}).items() if reason == KEPT]
        if request.mount_points is None:
            obstacles = dict.fromkeys(request.paths, "the runtime does not show the container's mounts")
        else:
            obstacles = {path: keep.obstacle(path, mount_points=request.mount_points) for path in request.paths}
        free = kept if self._parked is not None else [path for path, reason in obstacles.items() if not reason]
        if new == self._moved_to:  # again after a failed start: a path that was copied is there
            free = [path for path in free if path not in kept]
        self._left = {**obstacles, **(self._left or {}), **await self._moved(old, new, free, held=held)}
        self._moved_to = new
        about = {"container": request.container, "successor": new}
        if left := {path: reason for path, reason in self._left.items() if reason not in (KEPT, ABSENT)}:
            log.warning("keep.not_kept", **about, reason=left)
        log.info("keep.moved", **about, paths=[path for path, reason in self._left.items() if reason == KEPT])

    async def _moved(
        self, old: ContainerId, new: ContainerId, paths: Sequence[str], *, held: int | None = None
    ) -> Mapping[str, str]:
        moved = await self._keeper.move(old, new, paths, held=held) if paths else {}
        return dict.fromkeys(paths, moved.reason) if isinstance(moved, keep.NotKept) else moved

    def replaced_by(self, current: ContainerId | None) -> None:
        """Note which container runs; None: none yet. One of kubelet's does not have the paths."""
        if self._left is not None and current != self._moved_to:
            self._left = {path: keep.KUBELET if reason == KEPT else reason for path, reason in self._left.items()}

    @property
    def note(self) -> str:
        """Return which paths were kept and which were not, for people."""
        request = self._request
        if self._left is None:
            reason = request.refused or "this agent did not start the successor"
            return f"{request.container} keeps nothing of {', '.join(request.paths)}: {reason}"
        kept = [path for path, reason in self._left.items() if reason == KEPT]
        parts = [f"{request.container} keeps {', '.join(kept)}"] if kept else []
        parts += [
            f"{request.container} does not keep {path}: {reason}"
            for path, reason in self._left.items()
            if reason != KEPT
        ]
        return "; ".join(parts)[:_LONGEST_NOTE]
