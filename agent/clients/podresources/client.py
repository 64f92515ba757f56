"""Read device allocations from kubelet's pod-resources API (KEP-606, KEP-2043, KEP-3695)."""

import asyncio
import pathlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Self

import grpc
import grpc.aio
import structlog

from kubemend.agent.clients.podresources import convert
from kubemend.agent.model.devices import DeviceInventory
from kubemend.agent.model.workloads import Allocations, PodRef
from kubemend.common import grpcio
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.pb.podresources.v1 import api_pb2, api_pb2_grpc

log = structlog.get_logger(__name__)

KUBELET_SOCKET = "/var/lib/kubelet/pod-resources/kubelet.sock"

_READY = ComponentStatus(ComponentState.READY, "kubelet reports device allocations")
# Kubelet's answer to Get while the gate KubeletPodResourcesGet is off (status UNKNOWN; it is on from 1.34).
_GET_IS_OFF = "Get method disabled"


class PodResourcesClient:
    """One connection to kubelet's socket. Create it inside a running event loop; close it, or use ``async with``.

    No method raises on a failed call: an unknown result is ``Allocations(known=False)``, and ``report`` receives the
    reason whenever that changes.
    """

    def __init__(
        self, socket: str = KUBELET_SOCKET, *, report: Callable[[ComponentStatus], None], deadline: float = 5.0
    ) -> None:
        self._socket = socket
        self._report = report
        self._deadline = deadline
        self._channel = grpcio.unix_channel(socket)
        self._stub = api_pb2_grpc.PodResourcesListerStub(self._channel)
        self._status: ComponentStatus | None = None
        self._has_get = True

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls in progress fail."""
        await self._channel.close()

    async def list(self) -> Allocations:
        """Return the allocations of all pods on the node."""
        pods = await self._pods()
        return convert.allocations(pods) if pods is not None else Allocations(known=False)

    async def get(self, pod: PodRef) -> Allocations:
        """Return one pod's allocations; select them from the list if kubelet has no Get (before 1.34, or gated off).

        A pod that kubelet does not know (one of the two may just have started) is unknown, not without devices.
        """
        request = api_pb2.GetPodResourcesRequest(pod_name=pod.name, pod_namespace=pod.namespace)
        if self._has_get:
            try:
                answer = await self._stub.Get(request, timeout=self._deadline)
            except grpc.aio.AioRpcError as error:
                if not _lacks_get(error):
                    self._set_status(_READY if _is_unknown_pod(error) else _unknown(error, socket=self._socket))
                    return Allocations(known=False)
                self._has_get = False
            else:
                self._set_status(_READY)
                return convert.allocations([answer.pod_resources])
        pods = await self._pods() or ()
        found = [item for item in pods if (item.namespace, item.name) == (pod.namespace, pod.name)]
        return convert.allocations(found) if found else Allocations(known=False)

    async def allocatable(self) -> frozenset[str]:
        """Return the device plugins' ids of all devices that they report as healthy; empty if kubelet does not answer.

        Devices of a plugin that is not connected are not among them (kubelet's ``GetAllocatableDevices``).
        """
        try:
            answer = await self._stub.GetAllocatableResources(
                api_pb2.AllocatableResourcesRequest(), timeout=self._deadline
            )
        except grpc.aio.AioRpcError as error:
            log.debug("pod_resources.allocatable_unknown", error=error.code().name)
            return frozenset()
        return frozenset(device_id for entry in answer.devices for device_id in entry.device_ids)

    async def _pods(self) -> Sequence[api_pb2.PodResources] | None:
        try:
            answer = await self._stub.List(api_pb2.ListPodResourcesRequest(), timeout=self._deadline)
        except grpc.aio.AioRpcError as error:
            self._set_status(_unknown(error, socket=self._socket))
            return None
        self._set_status(_READY)
        return answer.pod_resources

    def _set_status(self, status: ComponentStatus) -> None:
        if status != self._status:
            self._status = status
            self._report(status)


class AllocationCache:
    """The node's allocations, fetched at most every ``floor`` seconds for any number of callers.

    Kubelet serves 100 calls a second with a burst of 10 to all its clients together
    (pkg/kubelet/apis/podresources/constants.go) and refuses the rest.
    """

    def __init__(self, fetch: Callable[[], Awaitable[Allocations]], *, floor: float = 0.1) -> None:
        self._fetch = fetch
        self._floor = floor
        self._lock = asyncio.Lock()
        self._held = Allocations(known=False)
        self._fetched_at = float("-inf")

    async def current(self, *, max_age: float = 1.0) -> Allocations:
        """Return allocations that were fetched at most ``max_age`` seconds (but at least the floor) ago.

        If there are such, this does not wait for a fetch of another caller.
        """
        if self._is_within(max_age):
            return self._held
        async with self._lock:
            if not self._is_within(max_age):
                started_at = asyncio.get_running_loop().time()
                self._held = await self._fetch()
                self._fetched_at = started_at
            return self._held

    def _is_within(self, max_age: float) -> bool:
        return asyncio.get_running_loop().time() - self._fetched_at <= max(max_age, self._floor)


class GpuHolders:
    """The containers that hold each GPU: kubelet's allocations, with what they name resolved to the UUIDs in faults.

    They name indices, device nodes and DRA claims; ``inventory`` returns the GPUs that these belong to.
    """

    def __init__(self, *, cache: AllocationCache, inventory: Callable[[], DeviceInventory]) -> None:
        self._cache = cache
        self._inventory = inventory

    async def current(self, *, max_age: float) -> Allocations:
        """Return allocations at most ``max_age`` seconds old; ``known`` False when kubelet does not answer."""
        allocations = await self._cache.current(max_age=max_age)
        return convert.resolve(allocations, inventory=self._inventory())


def _lacks_get(error: grpc.aio.AioRpcError) -> bool:
    return error.code() is grpc.StatusCode.UNIMPLEMENTED or _GET_IS_OFF in (error.details() or "")


def _is_unknown_pod(error: grpc.aio.AioRpcError) -> bool:
    # kubelet's message, with status UNKNOWN: "pod <name> in namespace <namespace> not found"
    return error.code() is grpc.StatusCode.NOT_FOUND or (error.details() or "").endswith("not found")


def _unknown(error: grpc.aio.AioRpcError, *, socket: str) -> ComponentStatus:
    details = " ".join((error.details() or "").split())
    message, hint = f"kubelet did not return device allocations ({error.code().name}: {details})", "see kubelet's log"
    if error.code() is grpc.StatusCode.UNAVAILABLE:
        cause = details.rpartition("error: ")[2] or "no answer"
        message = f"cannot read device allocations from kubelet: {cause}"
        hint = f"start kubelet, or mount {pathlib.PurePath(socket).parent} from the host"
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        message, hint = "the program behind the pod-resources socket is not kubelet", "set the pod-resources socket"
    return ComponentStatus(ComponentState.DEGRADED, f"{message} ({socket})", hint)
