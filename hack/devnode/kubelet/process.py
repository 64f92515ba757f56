"""The kubelet stand-in as a process of the dev node, and what it has in common with a real kubelet's process."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import grpc
import grpc.aio

from common import grpcio
from common.kube import client, errors, paths
from common.pb.podresources.v1 import api_pb2, api_pb2_grpc
from hack.devnode import layout, processes
from hack.devnode.kubelet import control, spec

_START_SECONDS = 60.0
_STOP_SECONDS = 10.0
_GPU = "nvidia.com/gpu"
_SOURCES = Path(__file__).resolve().parents[3]


class KubeletProcess(Protocol):
    """A kubelet, real or not. ``stop`` leaves the containers running; ``start`` after it adopts them."""

    node_name: str

    @property
    def pod_resources_socket(self) -> Path:
        """Where it serves the pod-resources API."""
        ...

    @property
    def control(self) -> control.Control | None:
        """How tests place its relist; a real kubelet offers nothing of the kind."""
        ...

    async def start(self) -> None:
        """Start it and wait until the node is Ready."""
        ...

    async def stop(self) -> None:
        """End it."""
        ...

    async def kill(self) -> None:
        """End it at once (SIGKILL)."""
        ...


class StandIn:
    """Runs ``python -m hack.devnode.kubelet``; a KubeletProcess. ``options`` are further flags, without ``--``."""

    def __init__(
        self,
        where: layout.NodeLayout,
        *,
        kubeconfig: Path,
        node_name: str,
        devices: Sequence[str] = (),
        options: Mapping[str, str] | None = None,
        dies_with_us: bool = True,
    ) -> None:
        self.node_name = node_name
        self._dies_with_us = dies_with_us
        self._where = where
        self._kubeconfig = kubeconfig
        self._devices = tuple(devices)
        self._options = dict(options or {})
        self._child: processes.Child | None = None

    @property
    def pod_resources_socket(self) -> Path:
        """Where it serves the pod-resources API."""
        return self._where.pod_resources_socket

    @property
    def control(self) -> control.Control:
        """How tests place its relist."""
        return control.Control(self._control_socket)

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def start(self) -> None:
        """Start it and wait until the node is Ready. Raises processes.ProcessError."""
        log = self._where.log_file("kubelet")
        self._child = processes.Child.start(
            self.command(),
            name="kubelet stand-in",
            log=log,
            pid_file=self._where.pid_file("kubelet"),
            environment=source_environment(),
            dies_with_us=self._dies_with_us,
        )
        try:
            await wait_until_ready(
                self, kubeconfig=self._kubeconfig, child=self._child, log=log, devices=len(self._devices)
            )
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """End it; its containers go on running."""
        if self._child is not None:
            await self._child.stop(grace=_STOP_SECONDS)
            self._child = None

    async def kill(self) -> None:
        """End it by SIGKILL."""
        if self._child is not None:
            await self._child.stop(grace=0)
            self._child = None

    def command(self) -> list[str]:
        """Return the command line; it wants ``source_environment``."""
        where = self._where
        flags = {
            "kubeconfig": self._kubeconfig,
            "cri": where.containerd_socket,
            "root-dir": where.kubelet_root,
            "pod-logs-dir": where.pod_logs,
            "log-symlinks": where.container_log_links,
            "node-name": self.node_name,
            "pod-resources": where.pod_resources_socket,
            "control": self._control_socket,
            "cgroup-root": where.cgroup_parent,
            "host-ip": where.gateway,
            **self._options,
        }
        return [
            sys.executable,
            "-m",
            "hack.devnode.kubelet",
            *(f"--{key}={value}" for key, value in flags.items()),
            *(f"--device={item}" for item in self._devices),
        ]

    @property
    def _control_socket(self) -> Path:
        return self._where.root / "kubelet.sock"


def source_environment() -> dict[str, str]:
    """Return an environment in which ``python -m hack…`` works from any directory: hack is not installed."""
    return {**os.environ, "PYTHONPATH": str(_SOURCES)}


async def wait_until_ready(
    kubelet: KubeletProcess, *, kubeconfig: Path, child: processes.Child, log: Path, devices: int = 0
) -> None:
    """Wait until a started kubelet answers on its pod-resources socket and its node is Ready with so many devices.

    Raises processes.ProcessError when it ends first or takes too long.
    """
    ready = asyncio.create_task(_ready(kubelet, kubeconfig=kubeconfig, devices=devices), name="kubelet-ready")
    ended = asyncio.create_task(child.wait(timeout=_START_SECONDS), name="kubelet-ended")
    try:
        await asyncio.wait((ready, ended), return_when=asyncio.FIRST_COMPLETED)
        if not ready.done():
            raise processes.ProcessError(f"{child.name} ended or is not ready after {_START_SECONDS:g} s; see {log}")
        ready.result()
    except (grpc.aio.AioRpcError, errors.KubeError, TimeoutError) as error:
        raise processes.ProcessError(f"{child.name} is not ready ({error}); see {log}") from error
    finally:
        for task in (ready, ended):
            task.cancel()
        await asyncio.gather(ready, ended, return_exceptions=True)


async def _ready(kubelet: KubeletProcess, *, kubeconfig: Path, devices: int) -> None:
    await _serving(kubelet.pod_resources_socket)
    async with client.connect(kubeconfig=kubeconfig) as kube:
        await _node_ready(kube, kubelet.node_name, devices=devices)


async def _serving(socket: Path) -> None:
    async with grpcio.unix_channel(str(socket)) as channel:
        stub = api_pb2_grpc.PodResourcesListerStub(channel)
        await stub.List(api_pb2.ListPodResourcesRequest(), timeout=_START_SECONDS, wait_for_ready=True)


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


def _is_ready(node: spec.Json, *, devices: int) -> bool:
    status = node.get("status", {})
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in status.get("conditions") or ())
    return ready and int(status.get("allocatable", {}).get(_GPU, 0)) >= devices
