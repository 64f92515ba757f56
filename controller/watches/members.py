"""Every member of every gang, as the API server tells: which pods there are, where, and what became of them.

A label selector knows no "or", so there are three watches, of which each pod that is in a gang matches exactly one.
"""

import asyncio
import enum
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final, TypeVar

import structlog

from common import aio, contained, gangs, joint_part
from common.gangs import GangKey
from common.kube import client, errors, mirror, paths, shares
from common.parts import PartStatus
from controller.gangs import members
from controller.model.members import Member, NodeName, PodUid

log = structlog.get_logger(__name__)

SELECTORS: Final = (
    f"{gangs.GANG},{gangs.GANG}!={gangs.ALONE}",
    f"!{gangs.GANG},{gangs.JOBSET_NAME}",
    f"!{gangs.GANG},!{gangs.JOBSET_NAME},{gangs.JOB_INDEX}",
)
"""Pods by their label, those of JobSets, those of Indexed Jobs: the order in which ``common.gangs.key`` asks."""


class MemberChangeKind(enum.Enum):
    """What happened to a member.

    ``GONE``: the API server has no such pod any more. ``LEFT``: it is there, but in no gang: nothing has ended.
    """

    APPEARED = "appeared"
    CHANGED = "changed"
    GONE = "gone"
    LEFT = "left"


@dataclass(frozen=True, slots=True)
class MemberChange:
    """One change; ``member`` is how it is now, or how it was last."""

    kind: MemberChangeKind
    member: Member


_Key = TypeVar("_Key", bound=Hashable)
_NONE: Final[Mapping[PodUid, Member]] = MappingProxyType({})


class Members:
    """Keeps the view. ``run`` does the work; everything else can be asked at any time."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        report: Callable[[PartStatus], None],
        backoff: Callable[[], aio.Backoff] = lambda: aio.Backoff(first=0.2, limit=10.0),
        parallel: int = 8,
        bare: Callable[[int], None] = lambda _: None,
    ) -> None:
        """Create it; ``parallel`` is how many pods are asked about at once when it is not clear what became of them.

        ``bare`` hears of how many members no more is kept than who they are (``members.bare``).
        """
        self._api = api
        part = joint_part.JointPart(report)
        not_kept = dict.fromkeys(SELECTORS, 0)

        def bounds(selector: str) -> shares.Bounds[Member]:
            def told(count: int) -> None:
                not_kept[selector] = count
                bare(sum(not_kept.values()))

            return shares.Bounds(
                members.bare, one=members.MOST_OF_A_MEMBER, namespace=members.MOST_OF_A_NAMESPACE, told=told
            )

        self._slots = asyncio.Semaphore(parallel)
        self._backoff = backoff
        self._watches = [
            mirror.Mirror(
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
        self._doubtful: asyncio.Queue[PodUid] = asyncio.Queue()
        self._doubted: dict[tuple[str, str], PodUid] = {}  # by namespace and name
        for watch in self._watches:
            watch.subscribe(self._take)

    @property
    def synced(self) -> bool:
        """Whether all have been listed since ``run`` began: before, a missing member means nothing."""
        return all(watch.synced for watch in self._watches)

    async def wait_synced(self) -> None:
        """Wait until they have."""
        for watch in self._watches:
            await watch.wait_synced()

    def by_uid(self, uid: PodUid) -> Member | None:
        """Return a member, or None."""
        return self._by_uid.get(uid)

    def node_of(self, uid: PodUid) -> NodeName | None:
        """Return the node that a member is bound to; None while it is to none, or there is no such member."""
        member = self._by_uid.get(uid)
        return member.node if member is not None and member.node else None

    def of_gang(self, key: GangKey) -> Mapping[PodUid, Member]:
        """Return the members of a gang: a live, read-only view, good until the next change."""
        return MappingProxyType(self._by_gang.get(key, _NONE))

    def on_node(self, node: NodeName) -> Mapping[PodUid, Member]:
        """Return the members on a node: a live, read-only view, good until the next change."""
        return MappingProxyType(self._by_node.get(node, _NONE))

    def gangs(self) -> Collection[GangKey]:
        """Return the gangs that have members."""
        return self._by_gang.keys()

    def subscribe(self, listener: Callable[[MemberChange], None]) -> Callable[[], None]:
        """Call ``listener`` at each change, in order; it must not block. Returns the function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def run(self) -> None:
        """Keep the view current for ever."""
        async with asyncio.TaskGroup() as group:
            for selector, watch in zip(SELECTORS, self._watches, strict=True):
                aio.spawn_eternal(group, watch.run(), name=f"pods {selector}")
            while True:
                uid = await self._doubtful.get()
                group.create_task(self._clear_up(uid), name=f"whereabouts of {uid}")

    def _take(self, change: mirror.Change[Member]) -> None:
        member = change.value
        if change.kind is not mirror.ChangeKind.GONE:
            self._resolve_by(member)
            self._put(member)
        elif self._is_watched(member.pod.uid):
            pass  # other labels, so another watch has it now
        elif member.is_over or not member.node:
            self._drop(member, MemberChangeKind.GONE)  # nothing of it runs, wherever it is
        else:
            self._doubted[(member.pod.namespace, member.pod.name)] = member.pod.uid
            self._doubtful.put_nowait(member.pod.uid)

    def _resolve_by(self, newer: Member) -> None:
        """Where a name is taken anew, the API server has the former pod of that name no more."""
        former = self._by_uid.get(self._doubted.get((newer.pod.namespace, newer.pod.name), PodUid("")))
        if former is not None and former.pod.uid != newer.pod.uid:
            self._drop(former, MemberChangeKind.GONE)

    async def _clear_up(self, uid: PodUid) -> None:
        """Find out about a pod that vanished from its watch without a word: is it gone, or were its labels changed?

        A watch tells both alike. To take a changed label for an end would let successors run beside what still runs.
        """
        backoff = self._backoff()
        while (member := self._by_uid.get(uid)) is not None and not self._is_watched(uid):
            with contained.within(contained.Part.MEMBER, member.pod):
                if await self._is_cleared_up(member):
                    return
            await backoff.wait()

    async def _is_cleared_up(self, member: Member) -> bool:
        """Ask once; whether it is known now."""
        uid = member.pod.uid
        try:
            async with self._slots:
                found = await self._api.get(paths.pod(member.pod.namespace, member.pod.name))
        except errors.NotFoundError:
            found = {}
        except errors.KubeError as error:
            log.warning("members.whereabouts_unknown", pod=str(member.pod), error=str(error))
            return False
        if not self._is_watched(uid):
            there = (found.get("metadata") or {}).get("uid") == uid
            self._drop(member, MemberChangeKind.LEFT if there else MemberChangeKind.GONE)
        return True

    def _is_watched(self, uid: PodUid) -> bool:
        return any(uid in watch.items() for watch in self._watches)

    def _put(self, member: Member) -> None:
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
        self._tell(MemberChange(kind, member))

    def _drop(self, member: Member, kind: MemberChangeKind) -> None:
        if (before := self._by_uid.get(member.pod.uid)) is not None:
            self._remove(before)
            self._tell(MemberChange(kind, member))

    def _remove(self, member: Member) -> None:
        uid = member.pod.uid
        del self._by_uid[uid]
        if self._doubted.get((member.pod.namespace, member.pod.name)) == uid:
            del self._doubted[(member.pod.namespace, member.pod.name)]
        _remove_from(self._by_gang, member.gang, uid)
        if member.node:
            _remove_from(self._by_node, member.node, uid)

    def _tell(self, change: MemberChange) -> None:
        for listener in tuple(self._listeners):
            with contained.within(contained.Part.LISTENER, change.member.pod):
                listener(change)


def _remove_from(index: dict[_Key, dict[PodUid, Member]], key: _Key, uid: PodUid) -> None:
    """Take a member out of an index that keeps no empty entries."""
    del index[key][uid]
    if not index[key]:
        del index[key]
