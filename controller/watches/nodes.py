"""The nodes, as the API server tells: ready or not, and whether they are known to be dead."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from common import aio, contained
from common.kube import client, mirror, paths
from common.parts import PartStatus
from controller.jobset import keeping_off
from controller.model.members import NodeName, NodeView

OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""The taint by which people say that a node is shut down, so that nothing of its pods runs (KEP-2268)."""

_PAGE: Final = 100
"""Nodes list their images: up to 50 KB each."""
_READY: Final[Mapping[str, bool | None]] = {"True": True, "False": False}


@dataclass(frozen=True, slots=True)
class NodeChange:
    """A node looks different. ``view`` None: there is no such node any more."""

    name: NodeName
    view: NodeView | None


class Nodes:
    """Keeps the view. ``run`` does the work; everything else can be asked at any time."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        report: Callable[[PartStatus], None],
        backoff: aio.Backoff | None = None,
    ) -> None:
        self._mirror: mirror.Mirror[NodeView] = mirror.Mirror(
            api=api, path=paths.NODES, reduce=view, report=report, page=_PAGE, backoff=backoff
        )
        self._by_name: dict[NodeName, tuple[str, NodeView]] = {}  # with the object's UID
        self._listeners: list[Callable[[NodeChange], None]] = []
        self._mirror.subscribe(self._take)

    @property
    def synced(self) -> bool:
        """Whether the nodes have been listed since ``run`` began: before, a missing node means nothing."""
        return self._mirror.synced

    async def wait_synced(self) -> None:
        """Wait until they have."""
        await self._mirror.wait_synced()

    def view(self, name: NodeName) -> NodeView | None:
        """Return a node; None when there is none of that name."""
        found = self._by_name.get(name)
        return found[1] if found is not None else None

    def kept_off(self) -> list[NodeName]:
        """Return the nodes that carry our taint."""
        return [name for name, (_, node) in self._by_name.items() if node.kept_off]

    def subscribe(self, listener: Callable[[NodeChange], None]) -> Callable[[], None]:
        """Call ``listener`` at each change, in order; it must not block. Returns the function that ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def run(self) -> None:
        """Keep the view current for ever."""
        await self._mirror.run()

    def _take(self, change: mirror.Change[NodeView]) -> None:
        name = change.value.name
        if change.kind is not mirror.ChangeKind.GONE:
            self._by_name[name] = (change.uid, change.value)
            self._tell(NodeChange(name, change.value))
        elif self._by_name[name][0] == change.uid:  # else there is a new one of that name already
            del self._by_name[name]
            self._tell(NodeChange(name, None))

    def _tell(self, change: NodeChange) -> None:
        for listener in tuple(self._listeners):
            with contained.within(contained.Part.LISTENER, change.name):
                listener(change)


def view(node: Mapping[str, Any]) -> NodeView:
    """Return what matters of a v1 Node. Its Ready condition is Unknown once kubelet has not reported for long."""
    conditions = {each["type"]: each["status"] for each in (node.get("status") or {}).get("conditions") or ()}
    taints = (node.get("spec") or {}).get("taints") or ()
    return NodeView(
        name=NodeName(node["metadata"]["name"]),
        ready=_READY.get(conditions.get("Ready", "")),
        out_of_service=any(taint["key"] == OUT_OF_SERVICE for taint in taints),
        kept_off=any(taint["key"] == keeping_off.TAINT for taint in taints),
    )
