"""Serve ``nvhcd.HealthCheckService`` on a unix socket that pods mount, and identify the container that asks.

gRPC does not reveal the peer of a unix socket. So the agent accepts connections itself, identifies the container of the
process that has connected (SO_PEERCRED, the process's cgroup), and forwards the bytes unchanged to gRPC. That listens
on a second socket, in a directory that only root can enter. Each connection is bound to a random name there, by which a
call's peer is matched with its container, as on the hub's port (``controller.hub.listener``). The alternatives are
worse: a socket for each pod needs a directory and a mount for each, and still does not prove which process connects; an
HTTP/2 server without gRPC would be far more code.

All clients are untrusted. A client that exceeds the limits loses its own connections. All share the kernel's queue of
the one socket, so connections are accepted, identified and refused as fast as a part of a processor allows: that bounds
what a client costs that connects without pause, and leaves the others a part of the queue.
"""

import asyncio
import contextlib
import enum
import errno
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import grpc
import grpc.aio
import structlog

from kubemend.agent.devices.health_answer import Answer, Undetermined
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.sources.processes import ProcFs
from kubemend.common import aio, contained, fair_room, unix_sockets
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.pb.nvhcd import nvhcd_pb2

log = structlog.get_logger(__name__)

_SERVICE: Final = nvhcd_pb2.DESCRIPTOR.services_by_name["HealthCheckService"].full_name
_BACKLOG: Final = 1024
_CHUNK: Final = 16 * 1024
_MOST_REFUSED: Final = 1024
_OPTIONS: Final[tuple[tuple[str, int], ...]] = (
    ("grpc.max_receive_message_length", 16 * 1024),
    ("grpc.max_metadata_size", 16 * 1024),
    ("grpc.max_concurrent_streams", 2),
    # Clients that keep their channel reconnect before the connection is cut.
    ("grpc.max_connection_idle_ms", 10_000),
    ("grpc.max_connection_age_ms", 20_000),
    ("grpc.max_connection_age_grace_ms", 5_000),
    ("grpc.http2.bdp_probe", 0),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of clients.

    - ``room``: connections of one container, and of all. NVRx uses one for each check, and closes it.
    - ``slot_seconds``: a connection takes its place for this long at least, so the room also limits how often a
      container can connect.
    - ``refused_seconds``: a refused process is refused for this long without being identified again.
    - ``accept_share``: part of a processor for accepting and identifying connections. One of a process that was just
      refused takes some 15 microseconds, any other some 150.
    - ``accept_seconds``: processor time for which connections are accepted without a pause.
    - ``connection_calls``, ``connection_bytes``, ``connection_seconds``: calls on one connection, bytes from its
      client, and its duration. A check of NVRx is one call of less than one KiB.
    - ``call_seconds``: until the answer must be known.
    - ``check_seconds``: how long no client connects before the agent checks that its socket has not been replaced.
    """

    room: fair_room.Room = field(default_factory=lambda: fair_room.Room(each=4, all_together=64))
    slot_seconds: float = 1.0
    refused_seconds: float = 0.2
    accept_share: float = 0.1
    accept_seconds: float = 0.002
    connection_calls: int = 4
    connection_bytes: int = 64 * 1024
    connection_seconds: float = 30.0
    call_seconds: float = 5.0
    check_seconds: float = 30.0


class Result(enum.Enum):
    """What became of a call or a connection: label values, part of the API (docs/metrics.md)."""

    PASSED = "Passed"
    FAILED = "Failed"
    UNDETERMINED = "Undetermined"
    """No answer: the health of the devices is not known."""
    NO_CONTAINER = "NoContainer"
    """The process is in no container, or has ended."""
    CROWDED = "Crowded"
    """Its container has too many connections, or there is no room."""
    DISPLACED = "Displaced"
    """There is no room, and its container has the most connections."""
    TOO_MUCH = "TooMuch"
    """Too many calls or bytes on one connection."""
    TOO_LONG = "TooLong"
    """The connection was not closed in time."""


class _TooMuchError(Exception):
    """The client has sent more than one connection allows."""


@dataclass(eq=False, slots=True)
class _Visit:
    """One connection. ``container`` has been authenticated."""

    container: ContainerId
    outer: socket.socket
    name: str = field(default_factory=lambda: secrets.token_hex(16))
    calls: int = 0
    task: "asyncio.Task[None] | None" = None

    @property
    def peer(self) -> str:
        """The name by which gRPC knows it."""
        return f"unix-abstract:{self.name}"

    def end(self) -> bool:
        """Close it; return False if it has ended before, and only keeps its place for a moment."""
        return self.task is not None and self.task.cancel()


class HealthCheckSocket:
    """Listens at ``path``; ``run`` it in the TaskGroup.

    The socket outlives the agent, because NVRx's launcher disables the check for good if it finds no socket when it
    starts. The next agent replaces it.
    """

    def __init__(
        self,
        *,
        path: Path,
        private: Path,
        processes: ProcFs,
        answer: Callable[[ContainerId], Awaitable[Answer | Undetermined]],
        report: Callable[[ComponentStatus], None],
        counted: Callable[[Result], None],
        limits: Limits | None = None,
    ) -> None:
        """``private`` is the directory for gRPC's own socket; ``counted`` receives the result of each call, and why a
        connection was refused or ended.
        """
        self._path = path
        self._private = private
        self._processes = processes
        self._answer = answer
        self._report = report
        self._counted = counted
        self._limits = limits or Limits()
        self._visits: dict[str, _Visit] = {}
        self._refused: dict[int, tuple[float, Result]] = {}
        self._room: fair_room.FairRoom[_Visit] = fair_room.FairRoom()

    async def run(self) -> None:
        """Serve indefinitely; try again, and report why, as long as the socket cannot be created."""
        backoff = aio.Backoff(first=1.0, limit=30.0)
        while True:
            try:
                async with self._grpc_server():
                    with _bound(self._path) as listening:
                        self._report(ComponentStatus(ComponentState.READY, f"answering on {self._path}"))
                        await self._accept(listening, self._path.stat().st_ino)
            except OSError as error:
                what = f"cannot answer health checks on {self._path}: {error.strerror or error}"
                hint = f"mount {self._path.parent} from the host, or choose another --health-check-socket"
                self._report(ComponentStatus(ComponentState.DEGRADED, what, hint))
            await backoff.wait()

    @contextlib.asynccontextmanager
    async def _grpc_server(self) -> AsyncIterator[None]:
        """Run gRPC on the private socket. Raises OSError."""
        self._private.mkdir(exist_ok=True)
        self._private.chmod(0o700)
        server = grpc.aio.server(options=_OPTIONS)
        handler: grpc.RpcMethodHandler[bytes, nvhcd_pb2.HealthCheckResponse] = grpc.unary_unary_rpc_method_handler(
            self._run_health_check,  # the request is not even parsed: its only field means nothing here
            response_serializer=nvhcd_pb2.HealthCheckResponse.SerializeToString,
        )
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(_SERVICE, {"RunHealthCheck": handler}),))
        try:
            server.add_insecure_port(f"unix:{self._behind}")
        except RuntimeError as error:
            raise OSError(f"gRPC cannot listen on {self._behind}: {error}") from error
        await server.start()
        try:
            yield
        finally:
            await server.stop(grace=None)

    @property
    def _behind(self) -> Path:
        return self._private / "grpc.sock"

    async def _accept(self, listening: socket.socket, inode: int) -> None:
        """Accept connections indefinitely. Raises OSError, also when the socket at the path is another one."""
        loop = asyncio.get_running_loop()
        async with _cancelled_at_exit() as tasks:
            while True:
                try:
                    async with asyncio.timeout(self._limits.check_seconds):
                        connection, _ = await loop.sock_accept(listening)
                except TimeoutError:
                    if self._path.stat().st_ino != inode:
                        raise FileExistsError(errno.EEXIST, "the socket has been replaced") from None
                    continue
                began = time.thread_time()
                with contextlib.suppress(BlockingIOError):  # none waits any more
                    while True:
                        with contained.within(contained.Part.LISTENER, "health checks"):
                            self._admit(connection, tasks)
                        if time.thread_time() - began > self._limits.accept_seconds:
                            break
                        connection, _ = listening.accept()
                await asyncio.sleep((time.thread_time() - began) / self._limits.accept_share)

    def _admit(self, connection: socket.socket, tasks: "set[asyncio.Task[None]]") -> None:
        """Serve a connection, or refuse it."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        connection.settimeout(0)
        try:
            pid = unix_sockets.credentials(connection).pid
        except OSError:
            self._refuse(connection, Result.NO_CONTAINER)
            return
        until, reason = self._refused.get(pid, (0.0, Result.CROWDED))
        if began < until:
            self._refuse(connection, reason)
            return
        container = container_of(connection, processes=self._processes)
        if container is None:
            self._refuse_for_now(connection, Result.NO_CONTAINER, pid)
            return
        visit = _Visit(container, connection)
        try:
            displaced = self._room.enter(visit, address=container, room=self._limits.room, now=began)
        except fair_room.CrowdedError:
            self._refuse_for_now(connection, Result.CROWDED, pid)
            return
        if displaced is not None and displaced.end():
            self._counted(Result.DISPLACED)
        visit.task = loop.create_task(self._serve(visit), name="health-check")
        tasks.add(visit.task)

        def ended(task: "asyncio.Task[None]") -> None:
            connection.close()
            tasks.discard(task)
            loop.call_at(began + self._limits.slot_seconds, lambda: self._room.leave(visit, address=container))

        visit.task.add_done_callback(ended)

    def _refuse_for_now(self, connection: socket.socket, reason: Result, pid: int) -> None:
        """Refuse a connection, and for a moment all that the same process makes, without identifying them."""
        if len(self._refused) >= _MOST_REFUSED:
            self._refused.clear()
        self._refused[pid] = (asyncio.get_running_loop().time() + self._limits.refused_seconds, reason)
        self._refuse(connection, reason)

    def _refuse(self, connection: socket.socket, reason: Result) -> None:
        self._counted(reason)
        connection.close()

    async def _serve(self, visit: _Visit) -> None:
        with contained.within(contained.Part.LISTENER, visit.container):
            try:
                async with asyncio.timeout(self._limits.connection_seconds):
                    await self._forward(visit)
            except TimeoutError:
                self._counted(Result.TOO_LONG)
            except _TooMuchError:
                self._counted(Result.TOO_MUCH)
            except OSError as error:
                log.debug("health_check.connection_failed", container_id=visit.container, error=str(error))

    async def _forward(self, visit: _Visit) -> None:
        """Connect a client to gRPC, until one of the two closes. Raises OSError and _TooMuchError."""
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX) as inner:
            inner.settimeout(0)
            inner.bind(f"\0{visit.name}")
            self._visits[visit.peer] = visit
            try:
                await loop.sock_connect(inner, str(self._behind))
                async with _cancelled_at_exit() as pumps:
                    inwards = _pump(visit.outer, inner, most=self._limits.connection_bytes)
                    pumps.add(loop.create_task(inwards, name="health-check-in"))
                    pumps.add(loop.create_task(_pump(inner, visit.outer), name="health-check-out"))
                    done, _ = await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
                    for pump in done:
                        pump.result()
            finally:
                del self._visits[visit.peer]

    async def _run_health_check(
        self, _: bytes, context: "grpc.aio.ServicerContext[Any, Any]"
    ) -> nvhcd_pb2.HealthCheckResponse:
        visit = self._visits.get(context.peer())
        if visit is None:
            await context.abort(grpc.StatusCode.PERMISSION_DENIED, "the caller is in no container of this node")
        visit.calls += 1
        if visit.calls > self._limits.connection_calls:
            self._counted(Result.TOO_MUCH)
            visit.end()
            await context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too many calls on one connection")
        found = await self._ask(visit.container)
        if isinstance(found, Undetermined):
            self._counted(Result.UNDETERMINED)
            await context.abort(grpc.StatusCode.UNAVAILABLE, f"not determined: {found.reason}")
        self._counted(Result.PASSED if found.success else Result.FAILED)
        return nvhcd_pb2.HealthCheckResponse(
            success=found.success, exit_code=found.exit_code, output=found.output, error=found.error
        )

    async def _ask(self, container: ContainerId) -> Answer | Undetermined:
        with contained.within(contained.Part.REQUEST, f"health check of {container}") as work:
            try:
                async with asyncio.timeout(self._limits.call_seconds):
                    return await self._answer(container)
            except TimeoutError:
                return Undetermined(f"not known within {self._limits.call_seconds:g} s")
        assert work.error is not None
        return Undetermined(contained.describe(work.error))


def container_of(connection: socket.socket, *, processes: ProcFs) -> ContainerId | None:
    """Return the container of the process that has connected; None if it is in none, or cannot be identified.

    The process is checked to live after its cgroup was read, so that the cgroup is not that of another process with the
    same pid. Before Linux 6.5 that is not possible: there a process that ends at once may be mistaken for one that gets
    its pid within the milliseconds until the connection is accepted.
    """
    try:
        facts = processes.facts(unix_sockets.credentials(connection).pid)
    except OSError:
        return None
    if facts is None or unix_sockets.peer_has_ended(connection):
        return None
    return facts.container


async def _pump(source: socket.socket, sink: socket.socket, *, most: int | None = None) -> None:
    """Forward bytes until the source closes. Raises OSError, and _TooMuchError after ``most`` bytes."""
    loop, count = asyncio.get_running_loop(), 0
    while data := await loop.sock_recv(source, _CHUNK):
        count += len(data)
        if most is not None and count > most:
            raise _TooMuchError
        await loop.sock_sendall(sink, data)


@contextlib.asynccontextmanager
async def _cancelled_at_exit() -> "AsyncIterator[set[asyncio.Task[None]]]":
    """Provide a set for tasks; at exit, cancel them and wait for them."""
    tasks: set[asyncio.Task[None]] = set()
    try:
        yield tasks
    finally:
        ending = [*tasks]
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)


def _bound(path: Path) -> socket.socket:
    """Return a socket that listens at that path, in place of the socket of an earlier agent. Raises OSError."""
    if path.exists() and not path.is_socket():
        raise FileExistsError(errno.EEXIST, "there is a file that is no socket", str(path))
    listening = socket.socket(socket.AF_UNIX)
    new = path.with_name(f".{path.name}.new")
    try:
        new.unlink(missing_ok=True)
        listening.bind(str(new))
        new.chmod(0o666)  # pods run as any user; the answer depends on SO_PEERCRED only
        listening.listen(_BACKLOG)
        listening.settimeout(0)
        new.rename(path)
    except OSError:
        listening.close()
        raise
    return listening
