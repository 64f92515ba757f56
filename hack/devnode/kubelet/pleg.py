"""PLEG, kubelet's eyes: once a second it lists the runtime, and workers decide by what it saw last.

After ``pkg/kubelet/pleg/generic.go`` (1.36): a change of state makes it look at the pod closely and remember that;
CREATED is "unknown" to it and wakes nobody; a removal alone wakes nobody either; a worker that has done something
asks for its pod to be listed at once. Tests can hold the relist and place it exactly (``hold``, ``relist``,
``release``).
"""

import asyncio
import enum
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

import structlog

from agent.cri import errors
from common.pb.runtime.v1 import api_pb2 as cri
from hack.devnode.kubelet import config
from hack.devnode.kubelet.observed import Runtime
from hack.devnode.kubelet.runtime import CriRuntime

log = structlog.get_logger(__name__)


class _State(enum.Enum):
    RUNNING = "running"
    EXITED = "exited"
    UNKNOWN = "unknown"


_CONTAINER = {cri.CONTAINER_RUNNING: _State.RUNNING, cri.CONTAINER_EXITED: _State.EXITED}
_SANDBOX = {cri.SANDBOX_READY: _State.RUNNING, cri.SANDBOX_NOTREADY: _State.EXITED}

Listing = dict[str, dict[str, _State]]
"""Pod UID → id of a container or sandbox → its state."""


@dataclass(frozen=True, slots=True)
class Change:
    """A pod that changed, and the ids of the containers that died since the last look."""

    uid: str
    died: tuple[str, ...] = ()


@dataclass(slots=True)
class _Record:
    states: dict[str, _State] = field(default_factory=dict)
    runtime: Runtime = field(default_factory=Runtime)
    seen_at: float = float("-inf")


class Pleg:
    """Lists the runtime every ``period`` seconds and tells ``on_change`` which pods need a sync.

    It sees the pods that it ``owns`` (by UID) alone: other dev nodes may use the same runtime.
    """

    def __init__(
        self,
        runtime: CriRuntime,
        *,
        period: float,
        owns: Callable[[str], bool],
        on_change: Callable[[Change], None],
    ) -> None:
        self._runtime = runtime
        self._owns = owns
        self._period = period
        self._on_change = on_change
        self._records: dict[str, _Record] = {}
        self._seen_at = float("-inf")
        self._news = asyncio.Condition()
        self._turn = asyncio.Lock()
        self._free = asyncio.Event()
        self._free.set()
        self._asked: set[str] = set()
        self._poke = asyncio.Event()

    async def run(self) -> None:
        """Relist for ever. A runtime that is away is asked again at the next period."""
        due = 0.0
        while True:
            await self._free.wait()
            loop = asyncio.get_running_loop()
            if loop.time() >= due:
                await self._quietly(self.relist())
                due = loop.time() + self._period
            while self._asked and self._free.is_set():
                uid = self._asked.pop()
                await self._quietly(self._relist_pod(uid))
            self._poke.clear()
            try:
                async with asyncio.timeout_at(due):
                    await self._poke.wait()
            except TimeoutError:
                continue

    async def hold(self) -> None:
        """Stop looking until ``release``, and wait until a look that is under way is over; ``relist`` looks once."""
        self._free.clear()
        async with self._turn:
            return

    def release(self) -> None:
        """Go on as usual."""
        self._free.set()

    def ask(self, uid: str) -> None:
        """Ask for one pod to be listed soon (kubelet's ``RequestPodRelist``)."""
        self._asked.add(uid)
        self._poke.set()

    def pods(self) -> Iterable[str]:
        """UIDs of all pods that the runtime has shown at the last look."""
        return [uid for uid, record in self._records.items() if record.states]

    def last_seen(self, uid: str) -> Runtime:
        """Return what was seen of a pod at the last look, without waiting."""
        record = self._records.get(uid)
        return record.runtime if record is not None else Runtime()

    async def newer_than(self, uid: str, moment: float) -> Runtime:
        """Wait until the pod was looked at after ``moment`` (loop time), and return what was seen."""
        async with self._news:
            await self._news.wait_for(lambda: self.has_newer_than(uid, moment))
            return self._record(uid).runtime

    def has_newer_than(self, uid: str, moment: float) -> bool:
        """Whether ``newer_than`` would return at once."""
        return max(self._seen_at, self._record(uid).seen_at) > moment

    async def relist(self) -> None:
        """Look at everything once, now. Raises CriError when the runtime cannot be asked."""
        async with self._turn:
            moment = asyncio.get_running_loop().time()
            listing = await self._list()
            for uid in {*self._records, *listing}:
                await self._quietly(self._reconcile(uid, listing.get(uid, {}), moment=moment))
            self._seen_at = moment
            for uid in [uid for uid, record in self._records.items() if not record.states]:
                del self._records[uid]
        async with self._news:
            self._news.notify_all()

    async def _relist_pod(self, uid: str) -> None:
        async with self._turn:
            moment = asyncio.get_running_loop().time()
            await self._reconcile(uid, (await self._list()).get(uid, {}), moment=moment)
            self._records[uid].seen_at = moment
        async with self._news:
            self._news.notify_all()

    async def _reconcile(self, uid: str, states: dict[str, _State], *, moment: float) -> None:
        record = self._records.setdefault(uid, _Record())
        before = record.states
        changed = {id_ for id_ in {*before, *states} if before.get(id_) is not states.get(id_)}
        if not changed:
            return
        record.runtime = await self._runtime.inspect(uid)
        record.states, record.seen_at = states, moment
        died = tuple(sorted(id_ for id_ in changed if _died(before.get(id_), states.get(id_))))
        started = any(states.get(id_) is _State.RUNNING for id_ in changed)
        if died or started:
            self._on_change(Change(uid=uid, died=died))

    async def _list(self) -> Listing:
        """List what is ours: what carries the UID of a pod of ours, and whatever else lies in the sandbox of one."""
        listing: Listing = {}
        ours: set[str] = set()
        for sandbox in await self._runtime.list_sandboxes():
            if self._owns(uid := sandbox.labels[config.POD_UID]):
                ours.add(sandbox.id)
                listing.setdefault(uid, {})[sandbox.id] = _SANDBOX.get(sandbox.state, _State.UNKNOWN)
        for container in await self._runtime.list_containers():
            if self._owns(uid := container.labels[config.POD_UID]) or container.pod_sandbox_id in ours:
                listing.setdefault(uid, {})[container.id] = _CONTAINER.get(container.state, _State.UNKNOWN)
        return listing

    async def _quietly(self, look: Awaitable[None]) -> None:
        try:
            await look
        except errors.CriError as error:
            log.warning("pleg.relist_failed", error=str(error))

    def _record(self, uid: str) -> _Record:
        return self._records.get(uid) or _Record()


def _died(before: _State | None, after: _State | None) -> bool:
    """Kubelet says "died" of an exit, and of anything but an exited container that vanished."""
    if after is None:
        return before is not _State.EXITED
    return after is _State.EXITED
