"""Offer fake GPUs to a real kubelet by a device plugin (v1beta1): ``python -m hack.devnode.deviceplugin``.

It answers Allocate as NVIDIA's does in its default mode: with NVIDIA_VISIBLE_DEVICES. A kubelet that starts again
empties the directory of plugin sockets, so the plugin serves and registers again whenever its own socket is missing.
"""

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import click
import grpc
import grpc.aio
import structlog
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from hack.devnode import sockets
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
        "ContainerAllocateResponse": [("envs", 1, "Entry")],
        "AllocateResponse": [("container_responses", 1, "ContainerAllocateResponse")],
    }
    for name, fields in shapes.items():
        message = file.message_type.add(name=name)
        for field, number, kind in fields:
            added = message.field.add(name=field, number=number, type=_FIELD.TYPE_STRING, label=_FIELD.LABEL_OPTIONAL)
            if kind:
                added.label = _FIELD.LABEL_REPEATED
            if kind not in ("", "strings"):
                added.type, added.type_name = _FIELD.TYPE_MESSAGE, f".v1beta1.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"v1beta1.{name}")) for name in shapes}


_MESSAGE = _messages()


class DevicePlugin:
    """Offer ``ids`` as ``resource`` to the kubelet whose plugin directory is ``directory``."""

    def __init__(self, directory: Path, *, resource: str, ids: Sequence[str]) -> None:
        self._directory = directory
        self._resource = resource
        self._ids = tuple(ids)

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
        answers = [
            _MESSAGE["ContainerAllocateResponse"](
                envs=[_MESSAGE["Entry"](key=VISIBLE_DEVICES, value=",".join(wanted.devices_ids))]
            )
            for wanted in request.container_requests
        ]
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
def main(directory: Path, resource: str, ids: tuple[str, ...]) -> None:
    """Offer devices to a real kubelet until SIGTERM."""
    asyncio.run(_serve(DevicePlugin(directory, resource=resource, ids=ids)))


async def _serve(plugin: DevicePlugin) -> None:
    work = asyncio.create_task(plugin.run())
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, work.cancel)
    with contextlib.suppress(asyncio.CancelledError):
        await work


if __name__ == "__main__":
    main()
