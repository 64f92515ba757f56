"""Kubelet's pod-resources socket: does it tell who holds which device, and does it have Get."""

from collections.abc import Sequence

import grpc
import grpc.aio

from agent.doctor.checks import Check, Result
from agent.podresources.client import PodResourcesClient
from common import grpcio
from common.parts import PartState, PartStatus
from common.pb.podresources.v1 import api_pb2, api_pb2_grpc

NAME = "pod-resources"

_NEVER = 3600.0  # seconds; the look has a deadline of its own


async def answers(socket: str) -> Sequence[Check]:
    """Say whether kubelet tells who holds which device."""
    status = PartStatus(PartState.STARTING)

    def note(told: PartStatus) -> None:
        nonlocal status
        status = told

    async with PodResourcesClient(socket, report=note, deadline=_NEVER) as client:
        held = await client.list()
    if not held.known:
        return (Check(NAME, Result.FAIL, status.message, status.mend),)
    how = "one pod at a time" if await _has_get(socket) else "all pods at a time (it has no Get; 1.34 and later do)"
    return (Check(NAME, Result.OK, f"kubelet tells who holds which device, {how}; {len(held.items)} hold any"),)


async def _has_get(socket: str) -> bool:
    """Ask about a pod that cannot be: only a kubelet that has Get says that there is no such pod."""
    async with grpcio.unix_channel(socket) as channel:
        request = api_pb2.GetPodResourcesRequest(pod_name="no.such.pod", pod_namespace="kubemend-doctor")
        try:
            await api_pb2_grpc.PodResourcesListerStub(channel).Get(request, timeout=_NEVER)
        except grpc.aio.AioRpcError as error:
            return (error.details() or "").endswith("not found")
    return True
