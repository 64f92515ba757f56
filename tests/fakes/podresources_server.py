"""Fake a kubelet that only serves pod resources on a unix socket, with scripted failures."""

from collections.abc import Iterable, Sequence
from typing import Any, Self

import grpc
import grpc.aio

from kubemend.common.pb.podresources.v1 import api_pb2, api_pb2_grpc


class PodResourcesServer(api_pb2_grpc.PodResourcesListerServicer):
    """Serve ``pods`` and ``healthy`` devices, as (resource, id).

    ``get_refusal`` fails Get, as an older or gated kubelet does, and ``refusal`` the other calls.
    """

    def __init__(self, socket: str) -> None:
        self.endpoint = socket
        self.pods: list[api_pb2.PodResources] = []
        self.healthy: list[tuple[str, str]] = []
        self.calls: list[str] = []
        self.refusal: tuple[grpc.StatusCode, str] | None = None
        self.get_refusal: tuple[grpc.StatusCode, str] | None = None
        self._server: grpc.aio.Server | None = None

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def start(self) -> None:
        """Serve on the socket."""
        self._server = grpc.aio.server()
        api_pb2_grpc.add_PodResourcesListerServicer_to_server(self, self._server)
        self._server.add_insecure_port(f"unix://{self.endpoint}")
        await self._server.start()

    async def stop(self) -> None:
        """Stop serving."""
        if self._server is not None:
            await self._server.stop(grace=None)
            self._server = None

    async def List(  # noqa: N802 - the name of the call
        self, request: api_pb2.ListPodResourcesRequest, context: Any
    ) -> api_pb2.ListPodResourcesResponse:
        """Answer with all pods."""
        self.calls.append("List")
        if self.refusal is not None:
            await context.abort(*self.refusal)
        return api_pb2.ListPodResourcesResponse(pod_resources=self.pods)

    async def Get(  # noqa: N802 - the name of the call
        self, request: api_pb2.GetPodResourcesRequest, context: Any
    ) -> api_pb2.GetPodResourcesResponse:
        """Answer with one pod, or with kubelet's refusal."""
        self.calls.append("Get")
        if self.get_refusal is not None:
            await context.abort(*self.get_refusal)
        wanted = (request.pod_namespace, request.pod_name)
        for item in self.pods:
            if (item.namespace, item.name) == wanted:
                return api_pb2.GetPodResourcesResponse(pod_resources=item)
        details = f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        await context.abort(grpc.StatusCode.UNKNOWN, details)
        raise AssertionError("abort always raises")

    async def GetAllocatableResources(  # noqa: N802 - the name of the call
        self, request: api_pb2.AllocatableResourcesRequest, context: Any
    ) -> api_pb2.AllocatableResourcesResponse:
        """Answer with the healthy devices."""
        self.calls.append("GetAllocatableResources")
        if self.refusal is not None:
            await context.abort(*self.refusal)
        devices = [api_pb2.ContainerDevices(resource_name=name, device_ids=[each]) for name, each in self.healthy]
        return api_pb2.AllocatableResourcesResponse(devices=devices)


def pod(
    name: str,
    *,
    namespace: str = "default",
    container: str = "trainer",
    devices: Iterable[tuple[str, str]] = (),
    claims: Iterable[tuple[str, str, str]] = (),
    cdi: Sequence[str] = (),
) -> api_pb2.PodResources:
    """Return a pod with one container, ``devices`` as (resource, id), ``claims`` as (driver, pool, device).

    ``cdi``: the CDI devices of each claim.
    """
    held = api_pb2.ContainerResources(
        name=container,
        devices=[api_pb2.ContainerDevices(resource_name=resource, device_ids=[item]) for resource, item in devices],
        dynamic_resources=[
            api_pb2.DynamicResource(
                claim_name="claim",
                claim_namespace=namespace,
                claim_resources=[
                    api_pb2.ClaimResource(
                        driver_name=driver,
                        pool_name=pool,
                        device_name=device,
                        cdi_devices=[api_pb2.CDIDevice(name=each) for each in cdi],
                    )
                ],
            )
            for driver, pool, device in claims
        ],
    )
    return api_pb2.PodResources(name=name, namespace=namespace, containers=[held])
