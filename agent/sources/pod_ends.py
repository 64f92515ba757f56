"""Detect which pods of this node are ending, from the API server, the runtime and the node.

A pod that is deleted, or evicted by the control plane, is marked before any of its containers is stopped. A pod that
kubelet ends (under pressure, for a critical pod, for node shutdown) is marked only when its containers have ended
(``mergePodStatus`` in pkg/kubelet/status/status_manager.go): until then the stop of its sandbox is the first sign, or,
in a shutdown, the state of the node (``agent.sources.nodes``). A preStop hook runs even before a stop is requested, but
after kubelet's Event ``Killing`` (``killContainer`` in pkg/kubelet/kuberuntime/kuberuntime_container.go).
"""

import asyncio
import contextlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Any, Final, NamedTuple, TypeVar

import structlog

from kubemend.agent import ports
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerState,
    ContainerSummary,
    PodRef,
    PodUid,
    PodView,
    SandboxId,
)
from kubemend.agent.restart import exits
from kubemend.agent.sources.nodes import NodeState, node_state
from kubemend.common.kube import client, errors, paths

log = structlog.get_logger(__name__)

_K = TypeVar("_K")

_SANDBOXES: Final = 4096
"""Number of stopped sandboxes to remember; no id is ever used twice."""
_ANSWER: Final = 0.5
"""Timeout in seconds for the API server; after it, the last known state counts."""
_RECHECK: Final = 1.0
_UNREAD: Final = 2.0
"""Seconds for which a request to the OCI runtime that could not be read counts as a stop that was missed: kubelet stops
the sandbox that soon after its last container has ended."""
_MISSED: Final = 600.0
"""Seconds after which a stop that was not observed has ended its container: longer than most grace periods, and as long
as a launcher takes an interrupt for a stop."""
_FRESH: Final = 0.05
"""Seconds for which the API server need not be queried again."""
_EVENTS: Final = 20
"""Events to read of one pod's kills. Kubelet has one for each container and message, and counts repetitions in it."""
_MOST_OF_A_TEXT: Final = 300
"""Characters to keep of one text of an Event: a path with a container's name has 89, and ``_STOPS_ALL`` is a start."""
_STOPS_ALL: Final = "Stopping container "
"""The message of a kill that concerns all containers of a sandbox; kills of single containers have their reason."""


class _Kill(NamedTuple):
    """A kill that kubelet has recorded: the path of its container, its time, whether it concerns all containers."""

    subject: str
    at: str
    stops_all: bool


class PodEnds:
    """Tracks ending pods. ``run`` follows pods and containers; callers pass stopped sandboxes to it."""

    def __init__(
        self,
        *,
        pods: ports.Pods,
        runtime: ports.SandboxEnds,
        containers: ports.Events,
        api: client.KubeClient | None = None,
        node_name: str = "",
        now: Callable[[], float] = time.time,
    ) -> None:
        """Without ``api`` the node is not queried. ``now`` is Unix time."""
        self._pods = pods
        self._runtime = runtime
        self._containers = containers
        self._api = api
        self._node = paths.one("nodes", node_name) if node_name else ""
        self._now = now
        self._stopped: OrderedDict[SandboxId, None] = OrderedDict()
        self._asked: OrderedDict[ContainerId, None] = OrderedDict()
        self._stopping: OrderedDict[SandboxId, None] = OrderedDict()
        self._waiting: set[asyncio.Event] = set()
        self._unread_at = -math.inf
        self._began = math.inf

    def sandbox_stopped(self, sandbox: SandboxId) -> None:
        """Note that a sandbox has stopped: no container will run in it again."""
        _remember(sandbox, self._stopped)
        self._wake()

    def stop_asked(self, container: ContainerId) -> None:
        """Note that the runtime was asked to stop a container (``agent.actuator.stop_requests``)."""
        _remember(container, self._asked)
        self._wake()

    def request_unread(self) -> None:
        """Note that the runtime has asked for something that could not be read; it may have been a stop."""
        self._unread_at = asyncio.get_running_loop().time()

    async def was_stopped(self, ended: ContainerSummary) -> bool:
        """Return whether a container's stop was requested before it ended, as far as the agent can observe it."""
        await self._note_recorded_stop(ended)
        return ended.id in self._asked

    async def run(self) -> None:
        """Wake waiting callers whenever a pod or a container changes. Runs as long as the agent."""
        self._began = asyncio.get_running_loop().time()
        unsubscribe = self._pods.subscribe(lambda _: self._wake())
        try:
            async with self._containers.subscribe() as steps:
                while True:
                    await steps.get()
                    self._wake()
        finally:
            unsubscribe()

    def _wake(self) -> None:
        for event in self._waiting:
            event.set()

    def reason(self, pod: PodUid, sandbox: SandboxId) -> str:
        """Return why a pod is ending, by the known state; empty if nothing shows that it is."""
        if sandbox in self._stopped:
            return "its sandbox has been stopped"
        if sandbox in self._stopping:
            return "kubelet stops all its containers"
        return _ending_reason(self._pods.pods().get(pod))

    def _reason_around(self, ended: ContainerSummary) -> str:
        """Return the same after a container's end.

        Kubelet stops all containers of a pod that it ends, and otherwise none. It stops sidecars when the main
        containers have ended, so sidecars may run on for their grace periods.
        """
        others = [view for view in self._in(ended.sandbox_id) if view.ref.name != ended.ref.name]
        lasting = {view.ref.name: view for view in others if view.state is ContainerState.RUNNING}
        stopped = bool(lasting) and all(self._stopped_by_kubelet(view.id) for view in lasting.values())
        return (
            "kubelet stops its other containers as well"
            if stopped
            else self.reason(ended.ref.pod.uid, ended.sandbox_id)
        )

    def _stopped_by_kubelet(self, container: ContainerId) -> bool:
        return container in self._asked and not self._runtime.has_ended(container)

    async def stop_reason(self, container: ContainerId, pod: PodRef, sandbox: SandboxId) -> str:
        """Return why a container with a process that was asked to stop may be about to end; empty if it runs on.

        A signal of another process than the runtime's is not kubelet's. A stop can be missed while no agent runs, and
        kubelet marks a pod that it evicts only at the end: such doubt counts as a stop.
        """
        if self._stopped_by_kubelet(container):
            return "the runtime stops the container"
        reason, node = await self._read_states(pod, sandbox)
        now = asyncio.get_running_loop().time()
        if reason or node.under_pressure:
            return reason or "kubelet may evict pods of its node"
        seen = now - max(self._began, self._unread_at) >= _MISSED
        return "" if seen else "a request to stop the container may not have been observed"

    async def present_reason(self, pod: PodRef, sandbox: SandboxId) -> str:
        """Return why a pod is ending, after querying the runtime for its sandbox and the API server for pod and node.

        If one of them does not answer, its last known state counts: the agent does not depend on the API server.
        """
        reason, _ = await self._read_states(pod, sandbox)
        return reason

    async def _read_states(self, pod: PodRef, sandbox: SandboxId) -> tuple[str, NodeState]:
        if known := self.reason(pod.uid, sandbox):
            return known, NodeState()
        view, node, stopped = await asyncio.gather(
            self._pods.ask(pod, timeout=_ANSWER), self._node_state(), self._has_stopped(pod.uid, sandbox)
        )
        if stopped:
            self.sandbox_stopped(sandbox)
        shutting_down = "its node is shutting down" if node.shutting_down else ""
        return self.reason(pod.uid, sandbox) or _ending_reason(view) or shutting_down, node

    async def outside_reason(
        self, ended: ContainerSummary, how: exits.Exit, *, lag: float, quick: float = exits.QUICK
    ) -> str:
        """Return why a container's end is caused by the end of its pod; empty where it is a fault of its own.

        Waits while there is doubt (``exits.doubt``, which has ``quick``), but no longer than until kubelet creates
        another container of that name, which it does only in a pod that lives on.
        """
        pod, loop = ended.ref.pod, asyncio.get_running_loop()
        since = loop.time()
        reason, node = await self._read_states(pod, ended.sandbox_id)
        reason = reason or self._reason_around(ended)
        checked_at = loop.time()
        event = asyncio.Event()
        self._waiting.add(event)
        try:
            while not reason and not self._has_successor(ended):
                how = replace(how, asked=self._stopped_by_kubelet(ended.id))
                left = since + exits.doubt(how, self._scene(ended, node, lag=lag), quick=quick) - loop.time()
                if left <= 0 and not await self._note_recorded_stop(ended):
                    break
                event.clear()
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(min(left, _RECHECK)):
                        await event.wait()
                reason = self._reason_around(ended)
        finally:
            self._waiting.discard(event)
        if reason or loop.time() - checked_at < _FRESH:
            return reason
        return await self.present_reason(pod, ended.sandbox_id)

    def _has_hook(self, container: ContainerSummary) -> bool:
        pod = self._pods.pods().get(container.ref.pod.uid)
        spec = pod.container(container.ref.name) if pod is not None else None
        return spec is not None and spec.pre_stop is not None

    async def _note_recorded_stop(self, ended: ContainerSummary) -> bool:
        """Note a container's stop if kubelet has recorded one as an Event; return whether that is news.

        ports.Events without a preStop hook cost no request: the runtime is asked to stop them at once.
        """
        if self._api is None or ended.id in self._asked or not self._has_hook(ended):
            return False
        pod = ended.ref.pod
        selector = f"involvedObject.uid={pod.uid},reason=Killing"
        events = paths.collection("events", namespace=pod.namespace)
        try:
            async with asyncio.timeout(_ANSWER):
                listing = await self._api.list(
                    events, params={"fieldSelector": selector, "limit": _EVENTS}, project=_kill
                )
        except (errors.KubeError, TimeoutError) as error:
            log.info("pods.events_not_listed", error=str(error) or f"no answer within {_ANSWER:g} s")
            return False
        kills = [kill for kill in listing.items if _stops(kill, ended, now=self._now())]
        if any(kill.stops_all for kill in kills):
            _remember(ended.sandbox_id, self._stopping)
        if kills:
            self.stop_asked(ended.id)
        return bool(kills)

    def _scene(self, ended: ContainerSummary, node: NodeState, *, lag: float) -> exits.ExitContext:
        pod = self._pods.pods().get(ended.ref.pod.uid)
        lasting = {spec.name for spec in pod.containers if spec.running} if pod is not None else set()
        newest = {view.ref.name: view for view in self._in(ended.sandbox_id) if view.ref.name != ended.ref.name}
        return exits.ExitContext(
            lag=lag,
            others_run=any(view.state is ContainerState.RUNNING for view in newest.values()),
            others_ended=any(view.state is ContainerState.EXITED and name in lasting for name, view in newest.items()),
            node_ends_pods=node.shutting_down or node.under_pressure,
            stop_unread=asyncio.get_running_loop().time() - self._unread_at < _UNREAD,
            has_hook=self._has_hook(ended),
        )

    def _has_successor(self, ended: ContainerSummary) -> bool:
        return any(
            view.ref.name == ended.ref.name and view.attempt > ended.attempt for view in self._in(ended.sandbox_id)
        )

    def _in(self, sandbox: SandboxId) -> list[ContainerSummary]:
        """Return the known containers of a sandbox; of each name the oldest first."""
        found = (view for view in self._containers.containers() if view.sandbox_id == sandbox)
        return sorted(found, key=lambda view: view.generation)

    async def _has_stopped(self, pod: PodUid, sandbox: SandboxId) -> bool:
        """Query the runtime: its event may be late, and not every runtime has events."""
        try:
            found = await self._runtime.list_sandboxes(pod_uid=pod)
        except CriError as error:
            log.info("pods.sandbox_not_listed", sandbox=sandbox, error=str(error))
            return False
        return not any(each.id == sandbox and each.ready for each in found)

    async def _node_state(self) -> NodeState:
        if self._api is None or not self._node:
            return NodeState()
        try:
            async with asyncio.timeout(_ANSWER):
                return node_state(await self._api.get(self._node))
        except (errors.KubeError, TimeoutError) as error:
            log.info("pods.node_not_asked", error=str(error) or f"no answer within {_ANSWER:g} s")
            return NodeState()


def _ending_reason(pod: PodView | None) -> str:
    if pod is None:
        return ""
    if pod.deleting:
        return "it is being deleted"
    if pod.leaving:
        return f"Kubernetes is ending it: {pod.leaving}"
    return f"its phase is {pod.phase}" if pod.is_over else ""


def _remember(key: _K, kept: "OrderedDict[_K, None]") -> None:
    kept[key] = None
    while len(kept) > _SANDBOXES:
        kept.popitem(last=False)


def _kill(event: dict[str, Any]) -> _Kill:
    """Return the fields of an Event that are kept: any client that may create Events can give it a message of 1 MB."""
    subject = (event.get("involvedObject") or {}).get("fieldPath")
    return _Kill(
        subject=str(subject or "")[:_MOST_OF_A_TEXT],
        at=str(event.get("lastTimestamp"))[:_MOST_OF_A_TEXT],
        stops_all=str(event.get("message")).startswith(_STOPS_ALL),
    )


def _stops(kill: _Kill, ended: ContainerSummary, *, now: float) -> bool:
    """Return whether an Event records the stop of this container, and not of an earlier one of its name. Pure.

    Events have seconds: a stop in the second of the container's creation counts as the earlier one's. If the clock has
    been set back since the creation, any stop of that name may be this container's.
    """
    try:
        at = datetime.fromisoformat(kill.at).timestamp()
    except (ValueError, OverflowError):
        return False
    return kill.subject.endswith(f"{{{ended.ref.name}}}") and not ended.is_newer(at, now=now)
