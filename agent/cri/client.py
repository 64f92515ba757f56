"""The container runtime over CRI v1, in our values. Every call has a deadline; every failure is a CriError."""

import asyncio
import collections
import contextlib
import math
from collections.abc import AsyncGenerator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

import grpc
import grpc.aio

from agent.cri import answers, errors
from agent.cri.answers import Capabilities, ContainerInfo, ExecResult, RuntimeVersion
from agent.cri.listings import Listings
from agent.cri.remembering import Remembered
from agent.model.workloads import ContainerId, ContainerState, ContainerView, PodUid, SandboxId, SandboxView
from agent.restart import options
from common import grpcio
from common.pb.runtime.v1 import api_pb2, api_pb2_grpc

_ENDS_KNOWN = 4096  # containers; where there is no event stream the news of an end comes seconds later


@dataclass(frozen=True, slots=True)
class Deadlines:
    """How long a call may take, in seconds.

    ``read`` is for version, lists and status; ``change`` for removals; ``bring_up`` for create and start, which take
    their time on a busy node, and are taken back by the runtime when who asked for them gives up; ``margin`` is added
    to the time that the caller itself grants to a stop or an exec; ``silence`` is how long an event stream must stand
    open before it counts as implemented.
    """

    read: float = 5.0
    change: float = 30.0
    bring_up: float = 120.0
    margin: float = 10.0
    silence: float = 0.5


class CriClient:
    """One connection to a runtime's socket. Make it inside a running event loop; close it, or use ``async with``.

    A runtime that is away does not break the client: calls fail with RuntimeUnavailable until it is back.
    """

    def __init__(self, socket: str, *, deadlines: Deadlines | None = None) -> None:
        self.endpoint = socket
        self._deadlines = deadlines if deadlines is not None else Deadlines()
        self._channel = grpcio.unix_channel(socket)
        self._stub = api_pb2_grpc.RuntimeServiceStub(self._channel)
        self._ended: collections.OrderedDict[ContainerId, None] = collections.OrderedDict()
        self._running: Remembered[ContainerId, ContainerInfo] = Remembered()
        self._sandbox_configs: Remembered[SandboxId, Mapping[str, Any]] = Remembered()
        self._listings = Listings(self._stub, errors=self._errors, deadline=self._deadlines.read)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls under way fail."""
        await self._channel.close()

    async def connections(self) -> AsyncGenerator[None, None]:
        """Yield whenever there is a new connection to the runtime, for ever; at once when there is one already."""
        while True:
            state = self._channel.get_state()
            if state is grpc.ChannelConnectivity.READY:
                yield
            await self._channel.wait_for_state_change(state)

    def has_ended(self, container_id: ContainerId) -> bool:
        """Whether it was this client that asked for the container's end, by a stop or a removal. Knows the latest."""
        return container_id in self._ended

    async def version(self) -> RuntimeVersion:
        """Ask who answers. Raises NotCri when it is no CRI v1 runtime."""
        with self._errors("Version"):
            answer = await self._stub.Version(api_pb2.VersionRequest(), timeout=self._deadlines.read)
        return RuntimeVersion(name=answer.runtime_name, version=answer.runtime_version)

    async def probe(self) -> Capabilities:
        """Find out what the runtime can do for us."""
        return Capabilities(
            runtime=await self.version(),
            gives_config=await self._gives_config(),
            has_events=await self._has_events(),
        )

    async def list_containers(
        self,
        *,
        pod_uid: PodUid | None = None,
        sandbox_id: SandboxId | None = None,
        name: str | None = None,
        state: ContainerState | None = None,
    ) -> tuple[ContainerView, ...]:
        """List kubelet's containers that match all that is given, oldest first.

        Who asks about a pod while others do shares their call.
        """
        if pod_uid is not None and sandbox_id is None and state is None:
            found = await self._listings.containers_of(pod_uid)
            return tuple(view for view in found if name is None or view.ref.name == name)
        return await self._listings.containers(pod_uid=pod_uid, sandbox_id=sandbox_id, name=name, state=state)

    async def list_sandboxes(self, *, pod_uid: PodUid | None = None) -> tuple[SandboxView, ...]:
        """List kubelet's pod sandboxes, of one pod or of all, oldest first."""
        return await (self._listings.sandboxes_of(pod_uid) if pod_uid is not None else self._listings.sandboxes())

    async def container_info(self, container_id: ContainerId) -> ContainerInfo:
        """Ask everything about one container. Raises NotFound, or InvalidAnswer when it is not kubelet's."""
        return answers.container_info(await self._status(container_id), endpoint=self.endpoint)

    async def info_of(self, view: ContainerView) -> ContainerInfo:
        """Return everything about a container that has just been listed. Raises as ``container_info`` does.

        What is told of it does not change while it runs, and so is asked for once until it is forgotten (what does
        change is in ``resources``); what is very large is asked for each time.
        """
        if view.state is ContainerState.RUNNING and (known := self._running.get(view.id)) is not None:
            return known
        info = await self.container_info(view.id)
        if info.state is ContainerState.RUNNING:
            self._running.put(view.id, info)
        return info

    async def resources(self, container_id: ContainerId) -> api_pb2.LinuxContainerResources | None:
        """Return what a container has by now, after resizes in place; None when the runtime does not tell.

        Raises NotFound.
        """
        status = (await self._status(container_id, verbose=False)).status
        return status.resources.linux if status.resources.HasField("linux") else None

    def forget(self, container_id: ContainerId) -> None:
        """Forget what is known of a container that runs no more."""
        self._running.forget(container_id)

    async def sandbox_config(self, sandbox_id: SandboxId) -> Mapping[str, Any] | None:
        """Return the sandbox's config as the runtime's JSON has it, or None when it hides it. Raises NotFound.

        It is what the sandbox was made with, and so is asked for once.
        """
        if (known := self._sandbox_configs.get(sandbox_id)) is not None:
            return known
        with self._errors("PodSandboxStatus"):
            answer = await self._stub.PodSandboxStatus(
                api_pb2.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True),
                timeout=self._deadlines.read,
            )
        config = answers.verbose_info(answer.info, endpoint=self.endpoint).get("config")
        if not isinstance(config, dict):
            return None
        self._sandbox_configs.put(sandbox_id, config)
        return config

    async def create_container(
        self, *, sandbox_id: SandboxId, config: api_pb2.ContainerConfig, sandbox_config: api_pb2.PodSandboxConfig
    ) -> ContainerId:
        """Create a container and return its id. Raises NameReserved when somebody was faster."""
        request = api_pb2.CreateContainerRequest(
            pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox_config
        )
        with self._errors("CreateContainer"):
            answer = await self._stub.CreateContainer(request, timeout=self._deadlines.bring_up)
        if not answer.container_id:
            raise errors.InvalidAnswer("CreateContainer gave no container id", where=self.endpoint)
        return ContainerId(answer.container_id)

    async def start_container(self, container_id: ContainerId) -> None:
        """Start a created container."""
        with self._errors("StartContainer"):
            await self._stub.StartContainer(
                api_pb2.StartContainerRequest(container_id=container_id), timeout=self._deadlines.bring_up
            )

    async def stop_container(self, container_id: ContainerId, *, grace: float) -> None:
        """Stop a container: SIGTERM, then SIGKILL after ``grace`` seconds (rounded up; 0 kills at once).

        One that is already stopped or gone counts as stopped. Nothing is given longer than ``options.LONGEST_GRACE``.
        """
        whole = _whole_seconds(grace)
        self._note_end(container_id)
        with self._errors("StopContainer"), _gone_is_done():
            await self._stub.StopContainer(
                api_pb2.StopContainerRequest(container_id=container_id, timeout=whole),
                timeout=whole + self._deadlines.margin,
            )

    async def remove_container(self, container_id: ContainerId) -> None:
        """Remove a container, killing it first if it runs. One that is already gone counts as removed."""
        self._note_end(container_id)
        with self._errors("RemoveContainer"), _gone_is_done():
            await self._stub.RemoveContainer(
                api_pb2.RemoveContainerRequest(container_id=container_id), timeout=self._deadlines.change
            )

    async def exec_sync(self, container_id: ContainerId, command: tuple[str, ...], *, timeout: float) -> ExecResult:
        """Run a command in a container for at most ``timeout`` seconds (rounded up). Raises DeadlineExceeded.

        Nothing is given longer than ``options.LONGEST_GRACE``: it is a hook, and part of a grace period.
        """
        whole = max(1, _whole_seconds(timeout))  # 0 would mean "for ever" in CRI
        request = api_pb2.ExecSyncRequest(container_id=container_id, cmd=command, timeout=whole)
        with self._errors("ExecSync"):
            answer = await self._stub.ExecSync(request, timeout=whole + self._deadlines.margin)
        return ExecResult(exit_code=answer.exit_code, stdout=answer.stdout, stderr=answer.stderr)

    async def events(self) -> AsyncGenerator[api_pb2.ContainerEventResponse, None]:
        """Yield the runtime's container events as they come, those it has kept from before included.

        Raises Unsupported where there is no such stream, and RuntimeUnavailable when it breaks. It has no deadline:
        a stream may be silent for long. Use ``agent.sources.containers``, which loses nothing across breaks.
        """
        call = self._stub.GetContainerEvents(api_pb2.GetEventsRequest())
        try:
            with self._errors("GetContainerEvents"):
                async for event in call:
                    yield event
        finally:
            call.cancel()
        raise errors.RuntimeUnavailable("GetContainerEvents: the runtime ended the stream", where=self.endpoint)

    def _note_end(self, container_id: ContainerId) -> None:
        self._ended[container_id] = None
        while len(self._ended) > _ENDS_KNOWN:
            self._ended.popitem(last=False)

    async def _status(self, container_id: ContainerId, *, verbose: bool = True) -> api_pb2.ContainerStatusResponse:
        request = api_pb2.ContainerStatusRequest(container_id=container_id, verbose=verbose)
        with self._errors("ContainerStatus"):
            return await self._stub.ContainerStatus(request, timeout=self._deadlines.read)

    async def _gives_config(self) -> bool | None:
        for view in reversed(await self.list_containers()):
            try:
                return (await self.container_info(view.id)).config is not None
            except errors.NotFound:
                continue  # removed since the listing
        return None

    async def _has_events(self) -> bool:
        stream = self.events()
        try:
            async with asyncio.timeout(self._deadlines.silence):
                await anext(stream)
        except TimeoutError:
            return True
        except errors.Unsupported:
            return False
        finally:
            await stream.aclose()
        return True

    @contextlib.contextmanager
    def _errors(self, call: str) -> Iterator[None]:
        try:
            yield
        except grpc.aio.AioRpcError as error:
            raise errors.from_rpc(error, call=call, endpoint=self.endpoint) from error


@contextlib.contextmanager
def _gone_is_done() -> Iterator[None]:
    """What was to be stopped or removed and does not exist any more is done. containerd says OK by itself."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.NOT_FOUND:
            raise


def _whole_seconds(seconds: float) -> int:
    """Return what CRI can be given: a journal may hold more than its int64 does, infinity too (``json``)."""
    return math.ceil(min(options.LONGEST_GRACE, seconds))
