"""Wait until a kubelet has registered its node: then its start is complete."""

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from hack.devnode import patience, processes
from kubemend.common import grpcio
from kubemend.common.kube import client, errors, paths
from kubemend.common.pb.podresources.v1 import api_pb2, api_pb2_grpc

_GPU = "nvidia.com/gpu"
_SECONDS = 120.0  # a busy machine needs some; a kubelet that ends is noticed at once


async def wait_until_ready(
    child: processes.Child, *, node_name: str, kubeconfig: Path, pod_resources: Path, log: Path, devices: int = 0
) -> None:
    """Wait until kubelet answers on its pod-resources socket and its node is Ready with ``devices`` devices.

    ``child`` is kubelet's process. Raises processes.ProcessError when it ends first or takes too long.
    """
    ready = asyncio.create_task(
        _ready(node_name, kubeconfig=kubeconfig, pod_resources=pod_resources, devices=devices), name="kubelet-ready"
    )
    ended = asyncio.create_task(child.wait(timeout=_SECONDS), name="kubelet-ended")
    try:
        await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            raise processes.ProcessError(f"{child.name} ended or is not ready after {_SECONDS:g} s; see {log}")
        ready.result()
    except (grpc.aio.AioRpcError, errors.KubeError, TimeoutError) as error:
        raise processes.ProcessError(f"{child.name} is not ready ({error}); see {log}") from error
    finally:
        for task in (ready, ended):
            task.cancel()
        await asyncio.gather(ready, ended, return_exceptions=True)


async def _ready(node_name: str, *, kubeconfig: Path, pod_resources: Path, devices: int) -> None:
    async with grpcio.unix_channel(str(pod_resources)) as channel:
        stub = api_pb2_grpc.PodResourcesListerStub(channel)
        await stub.List(api_pb2.ListPodResourcesRequest(), timeout=_SECONDS, wait_for_ready=True)
    async with client.connect(kubeconfig=kubeconfig, deadlines=patience.API) as kube:
        await _node_ready(kube, node_name, devices=devices)


async def _node_ready(kube: client.KubeClient, name: str, *, devices: int) -> None:
    selector = {"fieldSelector": f"metadata.name={name}"}
    listing = await kube.list(paths.NODES, params=selector)
    if any(_is_ready(node, devices=devices) for node in listing.items):
        return
    events = kube.watch(paths.NODES, params=selector, resource_version=listing.resource_version)
    async with contextlib.aclosing(events):
        async for event in events:
            if _is_ready(event.object, devices=devices):
                return
    raise TimeoutError(f"node {name} did not become Ready")


def _is_ready(node: dict[str, Any], *, devices: int) -> bool:
    status = node.get("status", {})
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in status.get("conditions") or ())
    return ready and int(status.get("allocatable", {}).get(_GPU, 0)) >= devices
