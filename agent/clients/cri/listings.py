"""List the runtime's containers and sandboxes: all, filtered, or by pod, for many pods with one call.

When all members of a gang on a node are restarted, each of them lists its pod again and again. A call costs the runtime
and the agent more than the few lines that it returns: queries that arrive during a call share the next one.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Generic, TypeVar

from kubemend.agent.clients.cri import convert
from kubemend.agent.model.workloads import ContainerState, ContainerSummary, PodUid, SandboxId, SandboxView
from kubemend.common.pb.runtime.v1 import api_pb2, api_pb2_grpc

_T = TypeVar("_T")


class BatchedQuery(Generic[_T]):
    """Query by pod. ``ask`` gets the pods, and may return others', too; all waiting callers raise its error."""

    def __init__(self, ask: Callable[[frozenset[PodUid]], Awaitable[Mapping[PodUid, tuple[_T, ...]]]]) -> None:
        self._ask = ask
        self._waiting: list[tuple[PodUid, asyncio.Future[tuple[_T, ...]]]] = []
        self._asking: asyncio.Task[None] | None = None

    async def of(self, pod: PodUid) -> tuple[_T, ...]:
        """Return a pod's items, by a call that begins after this one."""
        outcome: asyncio.Future[tuple[_T, ...]] = asyncio.get_running_loop().create_future()
        self._waiting.append((pod, outcome))
        if self._asking is None:
            self._asking = asyncio.create_task(self._ask_for_all(), name="shared listing")
        return await outcome

    async def _ask_for_all(self) -> None:
        """Query until no caller waits. Runs after all ready tasks, so that concurrent callers share one call."""
        try:
            while self._waiting:
                waiting, self._waiting = self._waiting, []
                await self._answer(waiting)
        finally:
            self._asking = None

    async def _answer(self, waiting: "list[tuple[PodUid, asyncio.Future[tuple[_T, ...]]]]") -> None:
        try:
            found = await self._ask(frozenset(pod for pod, _ in waiting))
        except Exception as error:  # noqa: BLE001 - raised where the answer is awaited
            for _, outcome in waiting:
                if not outcome.done():
                    outcome.set_exception(error)
        else:
            for pod, outcome in waiting:
                if not outcome.done():
                    outcome.set_result(found.get(pod, ()))
        finally:
            for _, outcome in waiting:
                outcome.cancel()  # the connection is closed, and no answer will come


_STATE_VALUES = {state: api_pb2.ContainerStateValue(state=value) for value, state in convert.STATES.items()}


class Listings:
    """``errors`` converts the error of a call into a CriError; each call has ``deadline`` seconds. Oldest first."""

    def __init__(
        self,
        stub: "api_pb2_grpc.RuntimeServiceAsyncStub",
        *,
        errors: Callable[[str], AbstractContextManager[None]],
        deadline: float,
    ) -> None:
        self._stub = stub
        self._errors = errors
        self._deadline = deadline
        self._of_containers = BatchedQuery(self._ask_for_containers)
        self._of_sandboxes = BatchedQuery(self._ask_for_sandboxes)

    async def containers(
        self, *, pod_uid: PodUid | None, sandbox_id: SandboxId | None, name: str | None, state: ContainerState | None
    ) -> tuple[ContainerSummary, ...]:
        """Return kubelet's containers that match all given filters."""
        wanted = api_pb2.ContainerFilter(
            pod_sandbox_id=sandbox_id or "",
            state=_STATE_VALUES[state] if state is not None else None,
            label_selector=_selector({convert.POD_UID_LABEL: pod_uid, convert.CONTAINER_NAME_LABEL: name}),
        )
        return convert.container_views(await self._containers(wanted))

    async def containers_of(self, pod: PodUid) -> tuple[ContainerSummary, ...]:
        """Return a pod's containers."""
        return await self._of_containers.of(pod)

    async def sandboxes(self) -> tuple[SandboxView, ...]:
        """Return all of kubelet's sandboxes."""
        return convert.sandbox_views(await self._sandboxes(api_pb2.PodSandboxFilter()))

    async def sandboxes_of(self, pod: PodUid) -> tuple[SandboxView, ...]:
        """Return a pod's sandboxes."""
        return await self._of_sandboxes.of(pod)

    async def _ask_for_containers(self, pods: frozenset[PodUid]) -> Mapping[PodUid, tuple[ContainerSummary, ...]]:
        listed = await self._containers(api_pb2.ContainerFilter(label_selector=_common_selector(pods)))
        return {uid: convert.container_views(items) for uid, items in convert.by_pod(listed, pods=pods).items()}

    async def _ask_for_sandboxes(self, pods: frozenset[PodUid]) -> Mapping[PodUid, tuple[SandboxView, ...]]:
        listed = await self._sandboxes(api_pb2.PodSandboxFilter(label_selector=_common_selector(pods)))
        return {uid: convert.sandbox_views(items) for uid, items in convert.by_pod(listed, pods=pods).items()}

    async def _containers(self, wanted: api_pb2.ContainerFilter) -> Sequence[api_pb2.Container]:
        request = api_pb2.ListContainersRequest(filter=wanted)
        with self._errors("ListContainers"):
            return (await self._stub.ListContainers(request, timeout=self._deadline)).containers

    async def _sandboxes(self, wanted: api_pb2.PodSandboxFilter) -> Sequence[api_pb2.PodSandbox]:
        request = api_pb2.ListPodSandboxRequest(filter=wanted)
        with self._errors("ListPodSandbox"):
            return (await self._stub.ListPodSandbox(request, timeout=self._deadline)).items


def _common_selector(pods: Collection[PodUid]) -> dict[str, str]:
    """Return the selector of these pods; for more than one it selects all, because a selector has no "or"."""
    return _selector({convert.POD_UID_LABEL: next(iter(pods)) if len(pods) == 1 else None})


def _selector(labels: Mapping[str, str | None]) -> dict[str, str]:
    return {key: value for key, value in labels.items() if value is not None}
