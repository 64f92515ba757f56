"""This node in the API server: whether it is shutting down, and whether kubelet may evict pods."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog

from kubemend.common import aio
from kubemend.common.components import ComponentStatus
from kubemend.common.kube import client, informer, paths
from kubemend.common.kube.changes import ChangeKind

log = structlog.get_logger(__name__)

_SHUTTING_DOWN: Final = "node is shutting down"
"""Part of the message of the condition Ready (``ShutdownStatus`` in pkg/kubelet/nodeshutdown)."""
_PRESSURES: Final = frozenset({"MemoryPressure", "DiskPressure", "PIDPressure"})


@dataclass(frozen=True, slots=True)
class NodeState:
    """State of a node: whether it is shutting down, and whether kubelet may evict pods."""

    shutting_down: bool = False
    under_pressure: bool = False


def node_state(obj: Mapping[str, Any]) -> NodeState:
    """Return the state of a v1 Node. Pure."""
    conditions = [each for each in (obj.get("status") or {}).get("conditions") or () if isinstance(each, Mapping)]
    return NodeState(
        shutting_down=any(
            each.get("type") == "Ready"
            and each.get("status") == "False"
            and _SHUTTING_DOWN in str(each.get("message") or "")
            for each in conditions
        ),
        under_pressure=any(each.get("type") in _PRESSURES and each.get("status") == "True" for each in conditions),
    )


class NodeWatch:
    """Follows the node's shutdown. ``run`` does the work.

    ``shutdown`` is called with True when kubelet reports that the node shuts down, and with False when it no longer
    does: the shutdown was cancelled. While the API server is unavailable, the last state counts.
    """

    def __init__(
        self,
        *,
        api: client.KubeClient,
        node_name: str,
        shutdown: Callable[[bool], None],
        report: Callable[[ComponentStatus], None],
        backoff: aio.Backoff | None = None,
    ) -> None:
        self._shutdown = shutdown
        self._shutting_down = False
        self._mirror: informer.Informer[NodeState] = informer.Informer(
            api=api,
            path=paths.NODES,
            params={"fieldSelector": f"metadata.name={node_name}"},
            reduce=node_state,
            report=report,
            backoff=backoff,
        )
        self._mirror.subscribe(self._process)

    async def run(self) -> None:
        """Follow the node indefinitely; list again after every outage."""
        await self._mirror.run()

    def _process(self, change: informer.Change[NodeState]) -> None:
        shutting_down = change.value.shutting_down and change.kind is not ChangeKind.GONE
        if shutting_down is self._shutting_down:
            return
        self._shutting_down = shutting_down
        log.info("node.shutting_down" if shutting_down else "node.shutdown_cancelled")
        self._shutdown(shutting_down)
