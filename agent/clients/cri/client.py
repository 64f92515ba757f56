"""Call the container runtime over CRI v1. Every call has a deadline; every failure is a CriError."""

import asyncio
import collections
import contextlib
import math
from collections.abc import AsyncGenerator, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

import grpc
import grpc.aio

from kubemend.agent.clients.cri import convert, errors, kills
from kubemend.agent.clients.cri.cache import Remembered
from kubemend.agent.clients.cri.convert import Capabilities, ContainerStatus, ExecResult, RuntimeVersion
from kubemend.agent.clients.cri.listings import Listings
from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary, PodUid, SandboxId, SandboxView
from kubemend.agent.restart import clone, oci_programs, options
from kubemend.common import aio, grpcio
from kubemend.common.pb.runtime.v1 import api_pb2, api_pb2_grpc

_CRIO = "cri-o"  # server/version.go
_STATUS_CONFIG = "config"  # of the verbose map of Status, in containerd and in CRI-O
_ENDS_KNOWN = 4096  # containers; without an event stream the end is noticed seconds later

_VERBOSE_AT_ONCE = 8
"""Verbose answers that are read at the same time: each can have some MB, and a round asks for all its members."""

_LONGEST_OUTPUT = 256 * 1024
"""Maximum bytes of output of a command in a container."""


@dataclass(frozen=True, slots=True)
class Deadlines:
    """Deadlines of calls, in seconds.

    ``read`` is for version, lists and status; ``change`` for removals; ``bring_up`` for create and start, which take
    long on a busy node, and are undone by the runtime when the caller gives up; ``margin`` is added to the time that
    the caller itself grants to a stop or an exec; ``silence`` is how long an event stream must stay open before it
    counts as implemented.
    """

    read: float = 5.0
    change: float = 30.0
    bring_up: float = 120.0
    margin: float = 10.0
    silence: float = 0.5


class CriClient:
    """One connection to a runtime's socket. Create it inside a running event loop; close it, or use ``async with``.

    An unavailable runtime does not break the client: calls fail with RuntimeUnavailable until it is back.
    """

    def __init__(self, socket: str, *, deadlines: Deadlines | None = None, proc: Path = Path("/proc")) -> None:
        """``proc`` is the host's procfs."""
        self.endpoint = socket
        self._proc = proc
        self._deadlines = deadlines if deadlines is not None else Deadlines()
        self._channel = grpcio.unix_channel(socket)
        self._stub = api_pb2_grpc.RuntimeServiceStub(self._channel)
        self._exec_channel = grpcio.unix_channel(socket, max_answer=_LONGEST_OUTPUT)
        self._exec_stub = api_pb2_grpc.RuntimeServiceStub(self._exec_channel)
        self._ended: collections.OrderedDict[ContainerId, None] = collections.OrderedDict()
        self._running: Remembered[ContainerId, ContainerStatus] = Remembered()
        self._stopped: set[ContainerId] = set()
        self._sandbox_configs: Remembered[SandboxId, api_pb2.PodSandboxConfig] = Remembered()
        self._verbose = asyncio.Semaphore(_VERBOSE_AT_ONCE)
        self._runtime: RuntimeVersion | None = None
        self._listings = Listings(self._stub, errors=self._errors, deadline=self._deadlines.read)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Close the connection; calls in progress fail."""
        await self._channel.close()
        await self._exec_channel.close()

    async def connections(self) -> AsyncGenerator[None, None]:
        """Yield at each new connection to the runtime, indefinitely; at once if there is one already."""
        while True:
            state = self._channel.get_state()
            if state is grpc.ChannelConnectivity.READY:
                yield
            await self._channel.wait_for_state_change(state)

    def has_ended(self, container_id: ContainerId) -> bool:
        """Return whether this client requested the container's end, by a stop or a removal. Keeps the latest only."""
        return container_id in self._ended

    def forget_end(self, container_id: ContainerId) -> None:
        """Note that a container runs on, whose stop or removal has failed: when it ends, that is not this client's."""
        self._ended.pop(container_id, None)

    async def version(self) -> RuntimeVersion:
        """Return the runtime's name and version. Raises NotCri if it is not a CRI v1 runtime."""
        with self._errors("Version"):
            answer = await self._stub.Version(api_pb2.VersionRequest(), timeout=self._deadlines.read)
        return RuntimeVersion(name=answer.runtime_name, version=answer.runtime_version)

    async def named_programs(self) -> oci_programs.Named:
        """Return the programs that the runtime names as its OCI runtimes."""
        with self._errors("Status"):
            answer = await self._stub.Status(api_pb2.StatusRequest(verbose=True), timeout=self._deadlines.read)
        return oci_programs.named(answer.info.get(_STATUS_CONFIG, ""))

    async def probe(self) -> Capabilities:
        """Return the runtime's capabilities that the agent needs."""
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
    ) -> tuple[ContainerSummary, ...]:
        """List kubelet's containers that match all given filters, oldest first.

        Concurrent queries by pod share one call.
        """
        if pod_uid is not None and sandbox_id is None and state is None:
            found = await self._listings.containers_of(pod_uid)
            return tuple(view for view in found if name is None or view.ref.name == name)
        return await self._listings.containers(pod_uid=pod_uid, sandbox_id=sandbox_id, name=name, state=state)

    async def list_sandboxes(self, *, pod_uid: PodUid | None = None) -> tuple[SandboxView, ...]:
        """List kubelet's pod sandboxes, of one pod or of all, oldest first."""
        return await (self._listings.sandboxes_of(pod_uid) if pod_uid is not None else self._listings.sandboxes())

    async def container_status(
        self, container_id: ContainerId, *, admit: convert.Admit = convert.admit_all
    ) -> ContainerStatus:
        """Return the full status of a container. Raises NotFound, or InvalidAnswer if it is not kubelet's."""
        async with self._verbose:
            return convert.container_status(await self._status(container_id), endpoint=self.endpoint, admit=admit)

    async def cached_status(
        self, view: ContainerSummary, *, admit: convert.Admit = convert.admit_all
    ) -> ContainerStatus:
        """Return the full status of a container that has just been listed. Raises as ``container_status`` does.

        The status does not change while the container runs, so it is cached until it is forgotten (resources do change:
        see ``resources``), without ``spec``; a very large status is read each time. Of one that has ended, only how it
        ended is read.
        """
        known = self._running.get(view.id)
        if known is not None and view.state is ContainerState.RUNNING and view.id not in self._stopped:
            return convert.admitted(known, admit)
        if known is not None and view.state is ContainerState.EXITED and not known.is_rebuilt:
            at_end = await self._status(view.id, verbose=False)
            return convert.ended(convert.admitted(known, admit), at_end.status)
        info = replace(await self.container_status(view.id, admit=admit), spec=None)
        if info.state is ContainerState.RUNNING and not info.hidden:
            self._running.put(view.id, info)
        return info

    async def resources(self, info: ContainerStatus) -> api_pb2.LinuxContainerResources | None:
        """Return a container's current resources, after resizes in place; None if the runtime does not report them.

        Those of a container that has ended do not change any more. Raises NotFound.
        """
        if info.state is ContainerState.EXITED:
            return info.resources
        return convert.resources((await self._status(info.id, verbose=False)).status)

    def remembered(self, container_id: ContainerId) -> ContainerStatus | None:
        """Return the cached status of a container from when it ran; None if it is not cached."""
        return self._running.get(container_id)

    def remembered_sandbox(self, sandbox_id: SandboxId) -> api_pb2.PodSandboxConfig | None:
        """Return the cached config of a sandbox, which must not be changed; None if it is not cached."""
        return self._sandbox_configs.get(sandbox_id)

    def stopped(self, container_id: ContainerId) -> None:
        """Note that a container no longer runs."""
        self._stopped.add(container_id)

    def forget(self, container_id: ContainerId) -> None:
        """Drop the cached status of a container that no longer exists."""
        self._running.forget(container_id)
        self._stopped.discard(container_id)

    async def sandbox_config(self, sandbox_id: SandboxId) -> api_pb2.PodSandboxConfig:
        """Return the sandbox's config from the runtime's JSON, which must not be changed.

        It is the config at the sandbox's creation, rebuilt if the runtime does not return it, so it is cached.

        Raises CriError (NotFound: there is no such sandbox); CloneRefusedError if the config is not included or has
        unknown fields.
        """
        if (known := self._sandbox_configs.get(sandbox_id)) is not None:
            return known
        request = api_pb2.PodSandboxStatusRequest(pod_sandbox_id=sandbox_id, verbose=True)
        async with self._verbose:
            with self._errors("PodSandboxStatus"):
                answer = await self._stub.PodSandboxStatus(request, timeout=self._deadlines.read)
            if answer.status.id != sandbox_id:
                raise errors.InvalidAnswer("PodSandboxStatus returned another sandbox", where=self.endpoint)
            config = convert.sandbox_config(answer, endpoint=self.endpoint)
            del answer
        self._sandbox_configs.put(sandbox_id, config, weight=clone.weight(config))
        return config

    async def create_container(
        self, *, sandbox_id: SandboxId, config: api_pb2.ContainerConfig, sandbox_config: api_pb2.PodSandboxConfig
    ) -> ContainerId:
        """Create a container and return its id. Raises NameReserved if another client was faster."""
        request = api_pb2.CreateContainerRequest(
            pod_sandbox_id=sandbox_id, config=config, sandbox_config=sandbox_config
        )
        with self._errors("CreateContainer"):
            answer = await self._stub.CreateContainer(request, timeout=self._deadlines.bring_up)
        if not answer.container_id:
            raise errors.InvalidAnswer("CreateContainer returned no container id", where=self.endpoint)
        return ContainerId(answer.container_id)

    async def start_container(self, container_id: ContainerId) -> None:
        """Start a created container."""
        with self._errors("StartContainer"):
            await self._stub.StartContainer(
                api_pb2.StartContainerRequest(container_id=container_id), timeout=self._deadlines.bring_up
            )

    async def stop_container(self, container_id: ContainerId, *, grace: float) -> None:
        """Stop a container: SIGTERM, then SIGKILL after ``grace`` seconds (rounded up; 0 kills at once).

        A container that is already stopped or removed counts as stopped. The maximum grace is
        ``options.LONGEST_GRACE``.
        """
        whole = _whole_seconds(grace)
        self._note_end(container_id)
        on_crio = await self._status_on_crio(container_id)
        if on_crio is not None and whole == 0:
            self._kill(on_crio)
        with self._errors("StopContainer"), _gone_is_done():
            await self._stub.StopContainer(
                api_pb2.StopContainerRequest(container_id=container_id, timeout=whole),
                timeout=whole + self._deadlines.margin,
            )
        if on_crio is not None and not on_crio.ends_with_first_process:
            with self._not_killed(f"what container {container_id} has left"):
                await asyncio.to_thread(kills.kill_left, container_id, proc=self._proc)

    async def root_of(self, container_id: ContainerId) -> str | None:
        """Return where CRI-O has mounted a container's root; None on another runtime. Raises NotFound."""
        return (await self.container_status(container_id)).root if await self._is_crio() else None

    async def remove_container(self, container_id: ContainerId) -> None:
        """Remove a container, killing it first if it runs. A container that does not exist counts as removed.

        CRI-O would give it a grace period (``ctr_stop_timeout``, 30 s).
        """
        if await self._is_crio():
            await self.stop_container(container_id, grace=0)
        self._note_end(container_id)
        with self._errors("RemoveContainer"), _gone_is_done():
            await self._stub.RemoveContainer(
                api_pb2.RemoveContainerRequest(container_id=container_id), timeout=self._deadlines.change
            )

    async def exec_sync(self, container_id: ContainerId, command: tuple[str, ...], *, timeout: float) -> ExecResult:
        """Run a command in a container for at most ``timeout`` seconds (rounded up). Raises DeadlineExceeded.

        Raises AnswerTooLong for a command that has ended and has printed more than the limit: pods control how much
        they print and how many do so at once, and runtimes pass on 16 MiB of each. The maximum timeout is
        ``options.LONGEST_GRACE``: the command is a hook, and part of a grace period.
        """
        whole = max(1, _whole_seconds(timeout))  # 0 would mean "no limit" in CRI
        request = api_pb2.ExecSyncRequest(container_id=container_id, cmd=command, timeout=whole)
        with self._errors("ExecSync"):
            answer = await self._exec_stub.ExecSync(request, timeout=whole + self._deadlines.margin)
        return ExecResult(exit_code=answer.exit_code, stdout=answer.stdout, stderr=answer.stderr)

    async def events(self) -> AsyncGenerator[api_pb2.ContainerEventResponse, None]:
        """Yield the runtime's container events as they come, including those it has buffered before.

        Raises Unsupported if there is no such stream, and RuntimeUnavailable if it breaks. It has no deadline: a stream
        may be silent for long. Use ``agent.sources.containers``, which loses no event when a stream breaks.
        """
        call = self._stub.GetContainerEvents(api_pb2.GetEventsRequest())
        try:
            with self._errors("GetContainerEvents"):
                async for event in call:
                    yield event
        finally:
            call.cancel()
        raise errors.RuntimeUnavailable("GetContainerEvents: the runtime ended the stream", where=self.endpoint)

    async def _status_on_crio(self, container_id: ContainerId) -> ContainerStatus | None:
        """Return the status of a container that CRI-O is about to stop; None if it is gone, or on another runtime."""
        if not await self._is_crio():
            return None
        try:
            return await self.container_status(container_id)
        except errors.NotFound:
            return None
        except errors.DeadlineExceeded as error:  # of a stop it would mean that the process cannot be killed
            raise errors.RuntimeUnavailable(error.what, where=error.where, hint=error.hint) from error

    def _kill(self, status: ContainerStatus) -> None:
        """Kill a running container on CRI-O, which sends it the stop signal first (``kills``)."""
        if status.state is ContainerState.RUNNING and status.pid is not None:
            with self._not_killed(f"pid {status.pid}"):
                kills.kill(status.id, status.pid, proc=self._proc)

    @contextlib.contextmanager
    def _not_killed(self, what: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise errors.CallFailed(f"{what} cannot be killed: {error.strerror}", where=self.endpoint) from error

    async def _is_crio(self) -> bool:
        if self._runtime is None:
            self._runtime = await self.version()
        return self._runtime.name == _CRIO

    def _note_end(self, container_id: ContainerId) -> None:
        self._ended[container_id] = None
        while len(self._ended) > _ENDS_KNOWN:
            self._ended.popitem(last=False)

    async def _status(self, container_id: ContainerId, *, verbose: bool = True) -> api_pb2.ContainerStatusResponse:
        request = api_pb2.ContainerStatusRequest(container_id=container_id, verbose=verbose)
        with self._errors("ContainerStatus"):
            answer = await self._stub.ContainerStatus(request, timeout=self._deadlines.read)
        if answer.status.id != container_id:
            raise errors.InvalidAnswer("ContainerStatus returned another container", where=self.endpoint)
        return answer

    async def _gives_config(self) -> bool | None:
        for view in reversed(await self.list_containers()):
            try:
                return (await self.container_status(view.id)).config is not None
            except errors.NotFound:
                continue  # removed since the listing
        return None

    async def _has_events(self) -> bool:
        """Return whether the event stream stays open.

        A runtime (or this process) that has no time for ``silence`` has not refused the stream yet: it has time again
        when it answers a later call.
        """
        stream = self.events()
        first = asyncio.create_task(anext(stream), name="first container event")
        try:
            if not await aio.is_done_within(self._deadlines.silence, first):
                await self.version()
            if first.done():
                first.result()
        except errors.Unsupported:
            return False
        finally:
            first.cancel()
            await asyncio.wait({first})
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
    """Treat a stop or removal of a container that does not exist as done. containerd returns OK by itself."""
    try:
        yield
    except grpc.aio.AioRpcError as error:
        if error.code() is not grpc.StatusCode.NOT_FOUND:
            raise


def _whole_seconds(seconds: float) -> int:
    """Return the time as CRI accepts it: a journal may contain more than its int64 holds, or infinity (``json``)."""
    return math.ceil(min(options.LONGEST_GRACE, seconds))
