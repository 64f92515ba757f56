"""Every member of every gang, from the API server: which pods exist, on which nodes, and in which phase.

A label selector has no "or", so there are four watches. Each pod that is in a gang matches exactly one. Finished pods
are members as well: a failed one must be recreated, and its annotations are the gang's.
"""

import asyncio
import contextlib
import enum
from collections.abc import AsyncIterator, Callable, Collection, Hashable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Final, TypeVar

import structlog

from kubemend.common import aio, contained, gangs
from kubemend.common.components import ComponentStatus, JointComponent
from kubemend.common.gangs import GangKey
from kubemend.common.kube import client, errors, informer, paths, shares
from kubemend.common.kube.changes import ChangeKind
from kubemend.controller.gangs import members
from kubemend.controller.model.members import Member, NodeName, PodUid
from kubemend.controller.watches.evictions import Target

log = structlog.get_logger(__name__)

SELECTORS: Final = (
    f"{gangs.GANG},{gangs.GANG}!={gangs.ALONE}",
    f"!{gangs.GANG},{gangs.JOBSET_NAME}",
    f"!{gangs.GANG},!{gangs.JOBSET_NAME},{gangs.JOB_INDEX}",
    f"!{gangs.GANG},!{gangs.JOBSET_NAME},!{gangs.JOB_INDEX},{gangs.LWS_NAME},{gangs.LWS_GROUP}",
)
"""Pods by their label, those of JobSets, of Indexed Jobs, of LeaderWorkerSets: the order of ``common.gangs.key``."""


class MemberChangeKind(enum.Enum):
    """The change of a member.

    ``GONE``: the API server no longer has the pod. ``LEFT``: it exists, but in no gang: nothing has ended.
    """

    APPEARED = "appeared"
    CHANGED = "changed"
    GONE = "gone"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class MemberChange:
    """One change; ``member`` is its current or last state."""

    kind: MemberChangeKind
    member: Member


_Key = TypeVar("_Key", bound=Hashable)
_NONE: Final[Mapping[PodUid, Member]] = MappingProxyType({})


class _Followed:
    """A single pod that is polled: whether its state is known, and the gang that it is in instead."""

    def __init__(self) -> None:
        self.was_read = asyncio.Event()
        self.gang: GangKey | None = None


class Members:
    """Keep the view of members. ``run`` does the work; all other calls are valid at any time."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        report: Callable[[ComponentStatus], None],
        backoff: Callable[[], aio.Backoff] = lambda: aio.Backoff(first=0.2, limit=10.0),
        parallel: int = 8,
        bare: Callable[[int], None] = lambda _: None,
        following: Callable[[], aio.Backoff] = lambda: aio.Backoff(first=0.5, limit=15.0),
        eviction_requested: Callable[[Target], bool] = lambda _: False,
    ) -> None:
        """Create it; ``parallel`` is how many pods are read at once if it is not clear whether they were deleted.

        ``bare`` is called with the number of members of which only the identity is kept (``members.bare``).
        ``following`` returns the backoff between two reads of a single pod. ``eviction_requested`` returns whether a
        pod's eviction is requested; at a change of it call ``eviction_changed``.
        """
        self._api = api
        part = JointComponent(report)
        not_kept = dict.fromkeys(SELECTORS, 0)

        def bounds(selector: str) -> shares.Bounds[Member]:
            def count_bare(count: int) -> None:
                not_kept[selector] = count
                bare(sum(not_kept.values()))

            return shares.Bounds(
                members.bare,
                one=members.MOST_OF_A_MEMBER,
                namespace=members.MOST_OF_A_NAMESPACE,
                total=members.MOST_OF_A_WATCH,
                on_bare_count=count_bare,
            )

        self._slots = asyncio.Semaphore(parallel)
        self._backoff = backoff
        self._following = following
        self._eviction_requested = eviction_requested
        self._watches = [
            informer.Informer(
                api=api,
                path=paths.PODS,
                params={"labelSelector": selector},
                reduce=members.member,
                report=part.reporter(),
                backoff=backoff(),
                bounds=bounds(selector),
            )
            for selector in SELECTORS
        ]
        self._by_uid: dict[PodUid, Member] = {}
        self._by_gang: dict[GangKey, dict[PodUid, Member]] = {}
        self._by_node: dict[NodeName, dict[PodUid, Member]] = {}
        self._listeners: list[Callable[[MemberChange], None]] = []
        self._vanished: asyncio.Queue[PodUid] = asyncio.Queue()
        self._vanished_by_name: dict[tuple[str, str], PodUid] = {}  # by namespace and name
        for watch in self._watches:
            watch.subscribe(self._apply)

    @contextlib.asynccontextmanager
    async def following(self, pod: GangKey) -> AsyncIterator[Callable[[], GangKey | None]]:
        """Watch a pod that is in no gang for the length of the block, which begins when its state is known.

        ``pod`` is of kind Pod. The yielded function returns the gang in which the pod was found instead; None: in none.
        One block for a pod at a time. Waits as long as the API server is unavailable.

        The pod is polled, at growing intervals, because a watch for each would take a connection for each. Its agent
        reports a deleted pod, too.
        """
        followed = _Followed()
        try:
            async with asyncio.TaskGroup() as tasks:
                reading = tasks.create_task(self._follow(pod, followed), name=f"pod {pod}")
                await followed.was_read.wait()
                yield lambda: followed.gang
                reading.cancel()
        finally:
            for member in [*self.of_gang(pod).values()]:
                self._drop(member, MemberChangeKind.LEFT)

    async def _follow(self, pod: GangKey, followed: _Followed) -> None:
        backoff = self._following()
        while True:
            if await self._read(pod, followed):
                followed.was_read.set()
            await backoff.wait()

    async def _read(self, pod: GangKey, followed: _Followed) -> bool:
        """Read a pod once; return whether its state is known now."""
        try:
            async with self._slots:
                found: Mapping[str, Any] | None = await self._api.get(paths.pod(pod.namespace, pod.name))
        except errors.NotFoundError:
            found = None
        except errors.KubeError as error:
            log.warning("members.node_unknown", pod=str(pod), error=str(error))
            return False
        member = members.single(found) if found is not None else None
        followed.gang = members.gang_of(found) if found is not None else None
        uid = PodUid(found["metadata"]["uid"]) if found is not None else None
        for before in [*self.of_gang(pod).values()]:
            if before.pod.uid != uid:
                self._drop(before, MemberChangeKind.GONE)
            elif member is None:
                self._drop(before, MemberChangeKind.LEFT)
        if member is not None and not self._is_watched(member.pod.uid):
            self._put(member)
        return True

    @property
    def synced(self) -> bool:
        """Return whether all have been listed since ``run`` began: before, a missing member has no meaning."""
        return all(watch.synced for watch in self._watches)

    async def wait_synced(self) -> None:
        """Wait until all have been listed."""
        for watch in self._watches:
            await watch.wait_synced()

    def by_uid(self, uid: PodUid) -> Member | None:
        """Return a member, or None."""
        return self._by_uid.get(uid)

    def node_of(self, uid: PodUid) -> NodeName | None:
        """Return the node that a member is bound to; None if it is not bound or does not exist."""
        member = self._by_uid.get(uid)
        return member.node if member is not None and member.node else None

    def of_gang(self, key: GangKey) -> Mapping[PodUid, Member]:
        """Return the members of a gang: a live, read-only view, valid until the next change."""
        return MappingProxyType(self._by_gang.get(key, _NONE))

    def on_node(self, node: NodeName) -> Mapping[PodUid, Member]:
        """Return the members on a node: a live, read-only view, valid until the next change."""
        return MappingProxyType(self._by_node.get(node, _NONE))

    def gangs(self) -> Collection[GangKey]:
        """Return the gangs that have members."""
        return self._by_gang.keys()

    def eviction_changed(self, pod: Target) -> None:
        """Note that the eviction of a pod is requested, or no longer."""
        if (member := self._by_uid.get(pod.uid)) is not None:
            self._put(member)

    def subscribe(self, listener: Callable[[MemberChange], None]) -> Callable[[], None]:
        """Call ``listener`` at each change, in order; it must not block. Returns the function that unsubscribes."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def run(self) -> None:
        """Keep the view current indefinitely."""
        async with asyncio.TaskGroup() as group:
            for selector, watch in zip(SELECTORS, self._watches, strict=True):
                aio.spawn_eternal(group, watch.run(), name=f"pods {selector}")
            while True:
                uid = await self._vanished.get()
                group.create_task(self._resolve_vanished(uid), name=f"resolve {uid}")

    def _apply(self, change: informer.Change[Member]) -> None:
        member = change.value
        if change.kind is not ChangeKind.GONE:
            self._resolve_by(member)
            self._put(member)
        elif self._is_watched(member.pod.uid):
            pass  # with other labels another watch has it now
        elif member.is_over or not member.node:
            self._drop(member, MemberChangeKind.GONE)  # none of its containers runs, for any reason
        else:
            self._vanished_by_name[(member.pod.namespace, member.pod.name)] = member.pod.uid
            self._vanished.put_nowait(member.pod.uid)

    def _resolve_by(self, newer: Member) -> None:
        """Drop the previous pod of a name that has been reused: the API server no longer has it."""
        former = self._by_uid.get(self._vanished_by_name.get((newer.pod.namespace, newer.pod.name), PodUid("")))
        if former is not None and former.pod.uid != newer.pod.uid:
            self._drop(former, MemberChangeKind.GONE)

    async def _resolve_vanished(self, uid: PodUid) -> None:
        """Find out whether a pod that disappeared from its watch was deleted, or had its labels changed.

        A watch reports both the same way. If a changed label counted as an end, successors would run next to containers
        that still run.
        """
        backoff = self._backoff()
        while (member := self._by_uid.get(uid)) is not None and not self._is_watched(uid):
            with contained.within(contained.Part.MEMBER, member.pod):
                if await self._try_resolve(member):
                    return
            await backoff.wait()

    async def _try_resolve(self, member: Member) -> bool:
        """Check once; return whether it is known now."""
        uid = member.pod.uid
        try:
            async with self._slots:
                found = await self._api.get(paths.pod(member.pod.namespace, member.pod.name))
        except errors.NotFoundError:
            found = {}
        except errors.KubeError as error:
            log.warning("members.node_unknown", pod=str(member.pod), error=str(error))
            return False
        if not self._is_watched(uid):
            there = (found.get("metadata") or {}).get("uid") == uid
            self._drop(member, MemberChangeKind.LEFT if there else MemberChangeKind.GONE)
        return True

    def _is_watched(self, uid: PodUid) -> bool:
        return any(uid in watch.items() for watch in self._watches)

    def _put(self, member: Member) -> None:
        requested = self._eviction_requested(Target(member.pod.namespace, member.pod.uid))
        if requested is not member.eviction_requested:
            member = replace(member, eviction_requested=requested)
        before = self._by_uid.get(member.pod.uid)
        if before == member:
            return
        if before is not None and before.gang != member.gang:
            self._drop(before, MemberChangeKind.LEFT)
            before = None
        if before is not None:
            self._remove(before)
        self._by_uid[member.pod.uid] = member
        self._by_gang.setdefault(member.gang, {})[member.pod.uid] = member
        if member.node:
            self._by_node.setdefault(member.node, {})[member.pod.uid] = member
        kind = MemberChangeKind.APPEARED if before is None else MemberChangeKind.CHANGED
        self._notify(MemberChange(kind, member))

    def _drop(self, member: Member, kind: MemberChangeKind) -> None:
        if (before := self._by_uid.get(member.pod.uid)) is not None:
            self._remove(before)
            self._notify(MemberChange(kind, member))

    def _remove(self, member: Member) -> None:
        uid = member.pod.uid
        del self._by_uid[uid]
        if self._vanished_by_name.get((member.pod.namespace, member.pod.name)) == uid:
            del self._vanished_by_name[(member.pod.namespace, member.pod.name)]
        _remove_from(self._by_gang, member.gang, uid)
        if member.node:
            _remove_from(self._by_node, member.node, uid)

    def _notify(self, change: MemberChange) -> None:
        for listener in tuple(self._listeners):
            with contained.within(contained.Part.LISTENER, change.member.pod):
                listener(change)


def _remove_from(index: dict[_Key, dict[PodUid, Member]], key: _Key, uid: PodUid) -> None:
    """Remove a member from an index that keeps no empty entries."""
    del index[key][uid]
    if not index[key]:
        del index[key]
