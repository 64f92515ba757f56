"""Offer GPUs to a real kubelet by a device plugin (v1beta1): ``python -m hack.devnode.deviceplugin``.

It answers Allocate as NVIDIA's does in its default mode: with NVIDIA_VISIBLE_DEVICES; for real GPUs also with their
device nodes and the driver's libraries (``realgpus``). A kubelet that starts again empties the directory of plugin
sockets, so the plugin serves and registers again whenever its own socket is missing.
"""

import asyncio
import contextlib
import functools
import signal
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import grpc
import grpc.aio
import structlog
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from hack.devnode import realgpus, sockets
from kubemend.common import grpcio

log = structlog.get_logger(__name__)

VISIBLE_DEVICES = "NVIDIA_VISIBLE_DEVICES"
SOCKET = "kubemend-gpus.sock"
KUBELET_SOCKET = "kubelet.sock"

_FIELD = descriptor_pb2.FieldDescriptorProto
_LOOK_SECONDS = 0.2
_CALL_SECONDS = 10.0


def _messages() -> dict[str, Any]:
    """Build the few messages of the API that are needed; numbers and types are its contract."""
    file = descriptor_pb2.FileDescriptorProto(name="kubemend/deviceplugin.proto", package="v1beta1", syntax="proto3")
    shapes: dict[str, list[tuple[str, int, str]]] = {
        "Empty": [],
        "DevicePluginOptions": [],
        "RegisterRequest": [("version", 1, ""), ("endpoint", 2, ""), ("resource_name", 3, "")],
        "Device": [("ID", 1, ""), ("health", 2, "")],
        "ListAndWatchResponse": [("devices", 1, "Device")],
        "ContainerAllocateRequest": [("devices_ids", 1, "strings")],
        "AllocateRequest": [("container_requests", 1, "ContainerAllocateRequest")],
        # A map on the wire is a repeated message of key and value.
        "Entry": [("key", 1, ""), ("value", 2, "")],
        "Mount": [("container_path", 1, ""), ("host_path", 2, ""), ("read_only", 3, "bool")],
        "DeviceSpec": [("container_path", 1, ""), ("host_path", 2, ""), ("permissions", 3, "")],
        "ContainerAllocateResponse": [("envs", 1, "Entry"), ("mounts", 2, "Mount"), ("devices", 3, "DeviceSpec")],
        "AllocateResponse": [("container_responses", 1, "ContainerAllocateResponse")],
    }
    for name, fields in shapes.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            added = message.field.add(name=field, number=number, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
            if kind == "bool":
                added.type = _FIELD.TYPE_BOOL
            elif kind:
                added.label = _FIELD.LABEL_REPEATED
            if kind not in ("", "bool", "strings"):
                added.type, added.type_name = _FIELD.TYPE_MESSAGE, f".v1beta1.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1beta1.{name}")) for name in shapes}


_MESSAGE = _messages()


def named(ids: Sequence[str]) -> Any:
    """Return what a container gets for devices that are only names."""
    return _MESSAGE["ContainerAllocateResponse"](envs=[_MESSAGE["Entry"](key=VISIBLE_DEVICES, value=",".join(ids))])


def usable(ids: Sequence[str], *, gpus: Sequence[realgpus.RealGpu], libraries: Mapping[str, Path]) -> Any:
    """Return what a container gets for devices that are real: the device nodes, the driver's libraries, their path."""
    answer = named(ids)
    answer.envs.append(_MESSAGE["Entry"](key="LD_LIBRARY_PATH", value=realgpus.LIBRARIES))
    answer.mounts.extend(
        _MESSAGE["Mount"](container_path=inside, host_path=str(path), read_only=True)
        for inside, path in libraries.items()
    )
    answer.devices.extend(
        _MESSAGE["DeviceSpec"](container_path=str(path), host_path=str(path), permissions="rw")
        for path in realgpus.device_nodes(gpu for gpu in gpus if gpu.uuid in ids)
    )
    return answer


class DevicePlugin:
    """Offer ``ids`` as ``resource`` to the kubelet whose plugin directory is ``directory``.

    ``allocated`` returns what a container gets for the ids that kubelet has chosen.
    """

    def __init__(
        self, directory: Path, *, resource: str, ids: Sequence[str], allocated: Callable[[Sequence[str]], Any] = named
    ) -> None:
        self._directory = directory
        self._resource = resource
        self._ids = tuple(ids)
        self._allocated = allocated

    async def run(self) -> None:
        """Serve until cancelled; start over when kubelet did."""
        socket = self._directory / SOCKET
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
        server.add_generic_rpc_handlers(
            (grpc.method_handlers_generic_handler("v1beta1.DevicePlugin", self._methods()),)
        )
        server.add_insecure_port(f"unix://{socket}")
        await server.start()
        try:
            yield
        finally:
            await server.stop(grace=0)

    def _methods(self) -> "dict[str, grpc.RpcMethodHandler[Any, Any]]":
        def unary(method: Any, request: str) -> "grpc.RpcMethodHandler[Any, Any]":
            return grpc.unary_unary_rpc_method_handler(
                method, request_deserializer=_MESSAGE[request].FromString, response_serializer=_serialize
            )

        return {
            "GetDevicePluginOptions": unary(self._options, "Empty"),
            "Allocate": unary(self._allocate, "AllocateRequest"),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                self._list_and_watch, request_deserializer=_MESSAGE["Empty"].FromString, response_serializer=_serialize
            ),
        }

    async def _options(self, _request: Any, _context: object) -> Any:
        return _MESSAGE["DevicePluginOptions"]()

    async def _list_and_watch(self, _request: Any, _context: object) -> AsyncIterator[Any]:
        devices = [_MESSAGE["Device"](ID=item, health="Healthy") for item in self._ids]
        yield _MESSAGE["ListAndWatchResponse"](devices=devices)
        await asyncio.get_running_loop().create_future()  # the devices never change; the call ends with the server

    async def _allocate(self, request: Any, _context: object) -> Any:
        answers = [self._allocated(tuple(wanted.devices_ids)) for wanted in request.container_requests]
        return _MESSAGE["AllocateResponse"](container_responses=answers)

    async def _register(self) -> None:
        request = _MESSAGE["RegisterRequest"](version="v1beta1", endpoint=SOCKET, resource_name=self._resource)
        async with grpcio.unix_channel(str(self._directory / KUBELET_SOCKET)) as channel:
            call = channel.unary_unary(
                "/v1beta1.Registration/Register",
                request_serializer=_serialize,
                response_deserializer=_MESSAGE["Empty"].FromString,
            )
            await call(request, timeout=_CALL_SECONDS, wait_for_ready=True)


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data


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
