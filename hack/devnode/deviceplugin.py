"""Offer GPUs to a real kubelet by a device plugin (v1beta1): ``python -m hack.devnode.deviceplugin``.

It answers Allocate as NVIDIA's does in its default mode: with NVIDIA_VISIBLE_DEVICES; for real GPUs also with their
device nodes and the driver's libraries (``realgpus``). A kubelet that starts again empties the directory of plugin
sockets, so the plugin serves and registers again whenever its own socket is missing.
"""

import asyncio
import contextlib
import functools
import signal
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import grpc
import grpc.aio
import structlog

from hack.devnode import realgpus, sockets
from kubemend.common import grpcio

log = structlog.get_logger(__name__)

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
SOCKET = "kubemend-gpus.sock"
KUBELET_SOCKET = "kubelet.sock"

_LOOK_SECONDS = 0.2
_CALL_SECONDS = 30.0

_messages: Any
_services: Any
_messages, _services = grpc.protos_and_services("hack/devnode/deviceplugin.proto")


def named(ids: Sequence[str]) -> Any:
    """Return what a container gets for devices that are only names."""
    return _messages.ContainerAllocateResponse(envs={VISIBLE_DEVICES: ",".join(ids)})


def usable(ids: Sequence[str], *, gpus: Sequence[realgpus.RealGpu], libraries: Mapping[str, Path]) -> Any:
    """Return what a container gets for devices that are real: the device nodes, the driver's libraries, their path."""
    answer = named(ids)
    answer.envs["LD_LIBRARY_PATH"] = realgpus.LIBRARIES
    answer.mounts.extend(
        _messages.Mount(container_path=inside, host_path=str(path), read_only=True)
        for inside, path in libraries.items()
    )
    answer.devices.extend(
        _messages.DeviceSpec(container_path=str(path), host_path=str(path), permissions="rw")
        for path in realgpus.device_nodes(gpu for gpu in gpus if gpu.uuid in ids)
    )
    return answer


class DevicePlugin:
    """Offer ``ids`` as ``resource`` to the kubelet whose plugin directory is ``directory``.

    ``allocated`` returns what a container gets for the ids that kubelet has chosen. ``socket`` is the plugin's own.
    """

    def __init__(
        self,
        directory: Path,
        *,
        resource: str,
        ids: Sequence[str],
        allocated: Callable[[Sequence[str]], Any] = named,
        socket: str = SOCKET,
    ) -> None:
        self._directory = directory
        self._resource = resource
        self._socket = socket
        self._answers = _Answers(tuple(ids), allocated)

    def report(self, unhealthy: Collection[str]) -> None:
        """Report these devices as unhealthy, and all others as healthy."""
        self._answers.unhealthy = frozenset(unhealthy)
        self._answers.changed.set()

    async def run(self) -> None:
        """Serve until cancelled; start over when kubelet did."""
        socket = self._directory / self._socket
        while True:
            async with self._serving(socket):
                try:
                    await self._register()
                except grpc.aio.AioRpcError as error:
                    log.warning("deviceplugin.not_registered", error=error.details())
                    continue
                while await asyncio.to_thread(socket.exists):  # noqa: ASYNC110 - no event announces kubelet's start
                    await asyncio.sleep(_LOOK_SECONDS)

    @contextlib.asynccontextmanager
    async def _serving(self, socket: Path) -> AsyncIterator[None]:
        await asyncio.to_thread(sockets.clear_way, socket)
        server = grpc.aio.server()
        _services.add_DevicePluginServicer_to_server(self._answers, server)
        server.add_insecure_port(f"unix://{socket}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(grace=0)

    async def _register(self) -> None:
        request = _messages.RegisterRequest(version="v1beta1", endpoint=self._socket, resource_name=self._resource)
        async with grpcio.unix_channel(str(self._directory / KUBELET_SOCKET)) as channel:
            register = _services.RegistrationStub(channel).Register
            await register(request, timeout=_CALL_SECONDS, wait_for_ready=True)


class _Answers:
    """Answer kubelet's calls."""

    def __init__(self, ids: Sequence[str], allocated: Callable[[Sequence[str]], Any]) -> None:
        self._ids = ids
        self._allocated = allocated
        self.unhealthy: frozenset[str] = frozenset()
        self.changed = asyncio.Event()

    async def GetDevicePluginOptions(self, _request: Any, _context: object) -> Any:  # noqa: N802 - the API's name
        return _messages.DevicePluginOptions()

    async def ListAndWatch(self, _request: Any, _context: object) -> AsyncIterator[Any]:  # noqa: N802
        while True:
            self.changed.clear()
            health = {item: "Unhealthy" if item in self.unhealthy else "Healthy" for item in self._ids}
            devices = [_messages.Device(ID=item, health=each) for item, each in health.items()]
            yield _messages.ListAndWatchResponse(devices=devices)
            await self.changed.wait()  # the call ends with the server

    async def Allocate(self, request: Any, _context: object) -> Any:  # noqa: N802
        answers = [self._allocated(tuple(wanted.devices_ids)) for wanted in request.container_requests]
        return _messages.AllocateResponse(container_responses=answers)


@click.command()
@click.option("--directory", type=click.Path(path_type=Path), required=True, help="Kubelet's device-plugins directory.")
@click.option("--resource", default="nvidia.com/gpu", show_default=True)
@click.option("--device", "ids", multiple=True, help="A device id to offer; repeat it.")
@click.option("--real", is_flag=True, help="The devices are this machine's GPUs.")
def main(directory: Path, resource: str, ids: tuple[str, ...], *, real: bool) -> None:
    """Offer devices to a real kubelet until SIGTERM."""
    allocated: Callable[[Sequence[str]], Any] = named
    if real:
        allocated = functools.partial(usable, gpus=realgpus.find(), libraries=realgpus.libraries())
    asyncio.run(_serve(DevicePlugin(directory, resource=resource, ids=ids, allocated=allocated)))


async def _serve(plugin: DevicePlugin) -> None:
    work = asyncio.create_task(plugin.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await work


if __name__ == "__main__":
    main()
