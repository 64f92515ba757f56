"""Kubelet's pod-resources v1 service on a unix socket: who holds which device, by device plugin or by DRA claim."""

import json
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import grpc.aio

from agent.model.workloads import ContainerRole
from common.pb.podresources.v1 import api_pb2, api_pb2_grpc
from hack.devnode.kubelet import sockets
from hack.devnode.kubelet.devices import DeviceManager
from hack.devnode.kubelet.spec import Pod


@dataclass(frozen=True, slots=True)
class Claim:
    """A DRA claim that a container uses, given by hand: the stand-in has no DRA plugins."""

    namespace: str
    pod: str
    container: str
    claim_name: str
    driver: str
    pool: str
    device: str
    cdi_devices: tuple[str, ...] = ()


def load_claims(path: Path | None) -> tuple[Claim, ...]:
    """Read claims from a JSON list of objects with the fields of ``Claim``; no path means none."""
    if path is None:
        return ()
    entries = json.loads(path.read_text())
    return tuple(Claim(**{**entry, "cdi_devices": tuple(entry.get("cdi_devices", ()))}) for entry in entries)


class PodResources(api_pb2_grpc.PodResourcesListerServicer):
    """Answers from the allocations and the pods that are active right now."""

    def __init__(
        self, *, devices: DeviceManager, claims: tuple[Claim, ...], active_pods: Callable[[], Iterable[Pod]]
    ) -> None:
        self._devices = devices
        self._claims = claims
        self._active_pods = active_pods

    async def List(  # noqa: N802 - the service's name
        self,
        request: api_pb2.ListPodResourcesRequest,  # noqa: ARG002
        context: object,  # noqa: ARG002
    ) -> api_pb2.ListPodResourcesResponse:
        """Every active pod with its containers; plain init containers are left out."""
        return api_pb2.ListPodResourcesResponse(pod_resources=[self._pod(pod) for pod in self._active_pods()])

    async def Get(  # noqa: N802
        self,
        request: api_pb2.GetPodResourcesRequest,
        context: "grpc.aio.ServicerContext[api_pb2.GetPodResourcesRequest, api_pb2.GetPodResourcesResponse]",
    ) -> api_pb2.GetPodResourcesResponse:
        """One active pod by name."""
        for pod in self._active_pods():
            if (pod.namespace, pod.name) == (request.pod_namespace, request.pod_name):
                return api_pb2.GetPodResourcesResponse(pod_resources=self._pod(pod))
        await context.abort(
            grpc.StatusCode.UNKNOWN, f"pod {request.pod_name} in namespace {request.pod_namespace} not found"
        )
        raise AssertionError("abort raises")

    async def GetAllocatableResources(  # noqa: N802
        self,
        request: api_pb2.AllocatableResourcesRequest,  # noqa: ARG002
        context: object,  # noqa: ARG002
    ) -> api_pb2.AllocatableResourcesResponse:
        """All devices of the node, held or free."""
        return api_pb2.AllocatableResourcesResponse(devices=self._each(self._devices.ids))

    def _pod(self, pod: Pod) -> api_pb2.PodResources:
        shown = [item.name for item in pod.containers() if item.role is not ContainerRole.INIT]
        return api_pb2.PodResources(
            name=pod.name, namespace=pod.namespace, containers=[self._container(pod, name) for name in shown]
        )

    def _container(self, pod: Pod, name: str) -> api_pb2.ContainerResources:
        held = [item for item in self._devices.held() if (item.uid, item.container) == (pod.uid, name)]
        claims = [
            item
            for item in self._claims
            if (item.namespace, item.pod, item.container) == (pod.namespace, pod.name, name)
        ]
        return api_pb2.ContainerResources(
            name=name,
            devices=[device for item in held for device in self._each(item.ids)],
            dynamic_resources=[_dynamic(claim) for claim in claims],
        )

    def _each(self, ids: Iterable[str]) -> list[api_pb2.ContainerDevices]:
        """One entry per device, as kubelet's device manager gives them."""
        return [api_pb2.ContainerDevices(resource_name=self._devices.resource, device_ids=[item]) for item in ids]


def _dynamic(claim: Claim) -> api_pb2.DynamicResource:
    return api_pb2.DynamicResource(
        claim_name=claim.claim_name,
        claim_namespace=claim.namespace,
        claim_resources=[
            api_pb2.ClaimResource(
                driver_name=claim.driver,
                pool_name=claim.pool,
                device_name=claim.device,
                cdi_devices=[api_pb2.CDIDevice(name=name) for name in claim.cdi_devices],
            )
        ],
    )


@asynccontextmanager
async def serve(service: PodResources, *, socket: Path) -> AsyncIterator[None]:
    """Serve on a unix socket (a stale one is replaced) until the context ends."""
    sockets.clear_way(socket)
    server = grpc.aio.server()
    api_pb2_grpc.add_PodResourcesListerServicer_to_server(service, server)
    server.add_insecure_port(f"unix://{socket}")
    await server.start()
    try:
        yield
    finally:
        await server.stop(grace=0.5)
        sockets.clear_way(socket)
