"""Check kubelet's pod-resources socket: whether it lists the holders of devices, and whether it supports Get."""

from collections.abc import Sequence

import grpc
import grpc.aio

from kubemend.agent.clients.podresources.client import PodResourcesClient
from kubemend.agent.doctor.checks import Check, Result
from kubemend.common import grpcio
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.pb.podresources.v1 import api_pb2, api_pb2_grpc

NAME = "pod-resources"

_NEVER = 3600.0  # seconds; the check has a timeout of its own


async def answers(socket: str) -> Sequence[Check]:
    """Check whether kubelet lists the holders of devices."""
    status = ComponentStatus(ComponentState.STARTING)

    def note(reported: ComponentStatus) -> None:
        nonlocal status
        status = reported

    async with PodResourcesClient(socket, report=note, deadline=_NEVER) as client:
        held = await client.list()
    if not held.known:
        return (Check(NAME, Result.FAIL, status.message, status.hint),)
    how = "one pod at a time" if await _has_get(socket) else "all pods at a time (it has no Get; 1.34 and later do)"
    return (
        Check(
            NAME, Result.OK, f"kubelet lists the holders of devices, {how}; {len(held.items)} containers hold devices"
        ),
    )


async def _has_get(socket: str) -> bool:
    """Return whether kubelet supports Get, by asking for a nonexistent pod: only with Get the error is "not found"."""
    async with grpcio.unix_channel(socket) as channel:
        request = api_pb2.GetPodResourcesRequest(pod_name="no.such.pod", pod_namespace="kubemend-doctor")
        try:
            await api_pb2_grpc.PodResourcesListerStub(channel).Get(request, timeout=_NEVER)
        except grpc.aio.AioRpcError as error:
            return (error.details() or "").endswith("not found")
    return True
