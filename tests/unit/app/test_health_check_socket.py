"""Health checks over the real socket, by a client with the generated stub, and by hostile ones."""

import asyncio
import contextlib
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path

import grpc
import grpc.aio
import pytest

from kubemend.agent.app import health_check_socket
from kubemend.agent.app.health_check_socket import HealthCheckSocket, Limits, Result
from kubemend.agent.devices.health_answer import Answer, Undetermined
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.sources.processes import ProcFs
from kubemend.common import fair_room, unix_sockets
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.pb.nvhcd import nvhcd_pb2, nvhcd_pb2_grpc
from tests import eventually
from tests.fakes import proc_tree

SECONDS = 60
MINE, OTHER = proc_tree.container_id(1), proc_tree.container_id(2)
METHOD = "/nvhcd.HealthCheckService/RunHealthCheck"
ARGS = ("--no-slurm", "--group", "prolog", "epilog", "logs", "gpu")
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")
"""What a client sends first: the magic, and SETTINGS without a setting (RFC 9113, 3.4)."""
IGNORED = (16 * 1024).to_bytes(3, "big") + bytes.fromhex("fa0000000000") + bytes(16 * 1024)
"""A frame of an unknown type, which a server must ignore (RFC 9113, 5.5)."""

_OWN_CONNECTION = (("grpc.use_local_subchannel_pool", 1),)
"""Without it a channel may take over the connection of the one before, which gRPC closes a moment later."""

CLIENT = """
import sys, grpc
from kubemend.common.pb.nvhcd import nvhcd_pb2, nvhcd_pb2_grpc
sys.stdin.readline()
with grpc.insecure_channel(f"unix://{sys.argv[1]}") as channel:
    stub = nvhcd_pb2_grpc.HealthCheckServiceStub(channel)
    print(stub.RunHealthCheck(nvhcd_pb2.HealthCheckRequest(args=["--no-slurm"]), timeout=60).output)
"""


@dataclass
class Env:
    """The socket of an agent whose node has the containers that a test declares."""

    base: Path
    limits: Limits
    results: "asyncio.Queue[Result]" = field(default_factory=asyncio.Queue)
    statuses: "asyncio.Queue[ComponentStatus]" = field(default_factory=asyncio.Queue)
    answers: dict[ContainerId, Answer | Undetermined] = field(default_factory=dict)
    asked: list[ContainerId] = field(default_factory=list)
    hangs: set[ContainerId] = field(default_factory=set)
    served: HealthCheckSocket = field(init=False)

    @property
    def path(self) -> Path:
        return self.base / "run" / "nvhcd.sock"

    def contains(self, container: ContainerId, *, pid: int) -> None:
        """Put a process into a container; its answer names the container."""
        directory = self.base / "proc" / str(pid)
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "cgroup").write_text(f"0::/kubepods/pod1/{container}\n")
        shutil.copyfile("/proc/self/stat", directory / "stat")
        self.answers[container] = Answer(success=True, exit_code=0, output=container)

    async def answer(self, container: ContainerId) -> Answer | Undetermined:
        self.asked.append(container)
        if container in self.hangs:
            await asyncio.Event().wait()
        return self.answers[container]

    def agent(self) -> HealthCheckSocket:
        return HealthCheckSocket(
            path=self.path,
            private=self.base / "private",
            processes=ProcFs(root=self.base / "proc"),
            answer=self.answer,
            report=self.statuses.put_nowait,
            counted=self.results.put_nowait,
            limits=self.limits,
        )

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        self.served = self.agent()
        task = asyncio.create_task(self.served.run())
        try:
            await self.status(ComponentState.READY)
            yield
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def status(self, state: ComponentState) -> ComponentStatus:
        async with asyncio.timeout(SECONDS):
            while (status := await self.statuses.get()).state is not state:
                pass
        return status

    async def result(self) -> Result:
        async with asyncio.timeout(SECONDS):
            return await self.results.get()

    async def check(self, path: Path | None = None) -> nvhcd_pb2.HealthCheckResponse:
        """Ask as NVRx does: by a channel that is closed after the call. Raises AioRpcError."""
        async with grpc.aio.insecure_channel(f"unix://{path or self.path}", options=_OWN_CONNECTION) as channel:
            stub = nvhcd_pb2_grpc.HealthCheckServiceStub(channel)
            request = nvhcd_pb2.HealthCheckRequest(args=ARGS)
            answer: nvhcd_pb2.HealthCheckResponse = await stub.RunHealthCheck(request, timeout=SECONDS)
            return answer

    async def call(self, method: str, request: bytes) -> bytes:
        """Call a method with these bytes; return those of the answer. Raises AioRpcError."""
        async with grpc.aio.insecure_channel(f"unix://{self.path}", options=_OWN_CONNECTION) as channel:
            call: grpc.aio.UnaryUnaryMultiCallable[bytes, bytes] = channel.unary_unary(method)
            return bytes(await call(request, timeout=SECONDS))

    async def check_from(self, container: ContainerId) -> str:
        """Ask from another process, in that container; return the answer's output."""
        child = await asyncio.create_subprocess_exec(
            sys.executable, "-c", CLIENT, str(self.path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        self.contains(container, pid=child.pid)
        async with asyncio.timeout(SECONDS):
            output, _ = await child.communicate(b"go\n")
        return output.decode().strip()

    async def refusal(self, path: Path | None = None) -> grpc.StatusCode:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await self.check(path)
        return refused.value.code()

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_unix_connection(str(self.path))


@pytest.fixture
def limits() -> Limits:
    return Limits(slot_seconds=0.0)


@pytest.fixture
async def env(tmp_path_factory: pytest.TempPathFactory, limits: Limits) -> AsyncIterator[Env]:
    base = tmp_path_factory.mktemp("hc")
    (base / "run").mkdir()
    made = Env(base, limits)
    made.contains(MINE, pid=os.getpid())
    async with made.running():
        yield made


async def until_closed(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(ConnectionError):
        async with asyncio.timeout(SECONDS):
            while await reader.read(65536):
                pass


async def test_client_gets_the_fields_of_the_answer(env: Env) -> None:
    env.answers[MINE] = Answer(success=False, exit_code=2, output='{"fail_count": 1}', error="GPU-0: Xid 79")
    answer = await env.check()
    assert (answer.success, answer.exit_code) == (False, 2)
    assert (answer.output, answer.error) == ('{"fail_count": 1}', "GPU-0: Xid 79")
    assert await env.result() is Result.FAILED


async def test_names_on_the_wire_are_those_of_nvrx() -> None:
    service = nvhcd_pb2.DESCRIPTOR.services_by_name["HealthCheckService"]
    method = service.methods_by_name["RunHealthCheck"]
    assert service.full_name == "nvhcd.HealthCheckService"
    request = nvhcd_pb2.HealthCheckRequest(args=["a"])
    assert request.SerializeToString() == b"\x0a\x01a"
    response = nvhcd_pb2.HealthCheckResponse(success=True, exit_code=2, output="o", error="e")
    assert response.SerializeToString() == b"\x08\x01\x10\x02\x1a\x01o\x22\x01e"
    assert (method.input_type.name, method.output_type.name) == ("HealthCheckRequest", "HealthCheckResponse")


async def test_each_process_gets_the_answer_for_its_own_container(env: Env) -> None:
    theirs, mine = await asyncio.gather(env.check_from(OTHER), env.check())
    assert (theirs, mine.output) == (OTHER, MINE)
    assert sorted(env.asked) == [MINE, OTHER]


async def test_undetermined_health_is_unavailable(env: Env) -> None:
    env.answers[MINE] = Undetermined("kubelet did not return device allocations")
    assert await env.refusal() is grpc.StatusCode.UNAVAILABLE
    assert await env.result() is Result.UNDETERMINED


async def test_internal_error_is_unavailable_and_ends_only_that_call(env: Env) -> None:
    del env.answers[MINE]
    assert await env.refusal() is grpc.StatusCode.UNAVAILABLE
    env.contains(MINE, pid=os.getpid())
    assert (await env.check()).success


async def test_process_in_no_container_is_not_served(env: Env) -> None:
    (env.base / "proc" / str(os.getpid()) / "cgroup").write_text("0::/user.slice\n")
    assert await env.refusal() is grpc.StatusCode.UNAVAILABLE
    assert await env.result() is Result.NO_CONTAINER
    assert env.asked == []


async def test_pid_of_an_ended_process_is_not_attributed(env: Env) -> None:
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as connecting:
        path = env.base / "s"
        listening.bind(str(path))
        listening.listen()
        script = f"import socket; socket.socket(fileno={connecting.fileno()}).connect({str(path)!r})"
        child = await asyncio.create_subprocess_exec(sys.executable, "-c", script, pass_fds=[connecting.fileno()])
        await child.wait()
        connection, _ = listening.accept()
        with connection:
            if unix_sockets.peer_has_ended(connection) is None:
                pytest.skip("before Linux 6.5")
            env.contains(OTHER, pid=child.pid)  # another process has got the pid
            processes = ProcFs(root=env.base / "proc")
            assert unix_sockets.credentials(connection).pid == child.pid
            assert health_check_socket.container_of(connection, processes=processes) is None


async def test_grpc_behind_serves_only_connections_from_the_socket(env: Env) -> None:
    behind = env.base / "private" / "grpc.sock"
    assert await env.refusal(behind) is grpc.StatusCode.PERMISSION_DENIED
    assert stat.S_IMODE(behind.parent.stat().st_mode) == 0o700
    assert env.asked == []


async def test_unknown_method_is_unimplemented(env: Env) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await env.call("/nvhcd.HealthCheckService/Other", b"")
    assert refused.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_any_bytes_as_request_get_the_answer(env: Env) -> None:
    assert nvhcd_pb2.HealthCheckResponse.FromString(await env.call(METHOD, b"\xff" * 100)).success


async def test_large_request_is_refused(env: Env) -> None:
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await env.call(METHOD, bytes(32 * 1024))
    assert refused.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_garbage_ends_only_its_own_connection(env: Env) -> None:
    reader, writer = await env.connect()
    writer.write(os.urandom(1024))
    await until_closed(reader)
    writer.close()
    assert (await env.check()).success


async def test_endless_data_ends_its_connection(env: Env) -> None:
    reader, writer = await env.connect()
    writer.write(PREFACE + IGNORED * 8)
    assert await env.result() is Result.TOO_MUCH
    await until_closed(reader)
    writer.close()
    assert (await env.check()).success


async def test_number_of_calls_on_a_connection_is_limited(env: Env) -> None:
    async with grpc.aio.insecure_channel(f"unix://{env.path}", options=_OWN_CONNECTION) as channel:
        stub = nvhcd_pb2_grpc.HealthCheckServiceStub(channel)
        for _ in range(env.limits.connection_calls):
            assert (await stub.RunHealthCheck(nvhcd_pb2.HealthCheckRequest(), timeout=SECONDS)).success
            assert await env.result() is Result.PASSED
        with pytest.raises(grpc.aio.AioRpcError):
            await stub.RunHealthCheck(nvhcd_pb2.HealthCheckRequest(), timeout=SECONDS)
        assert await env.result() is Result.TOO_MUCH


@pytest.mark.parametrize("limits", [Limits(slot_seconds=0.0, connection_seconds=0.5)])
async def test_silent_connection_is_closed(env: Env) -> None:
    reader, writer = await env.connect()
    assert await env.result() is Result.TOO_LONG
    await until_closed(reader)
    writer.close()


@pytest.mark.parametrize("limits", [Limits(slot_seconds=0.0, call_seconds=0.2)])
async def test_answer_that_takes_too_long_is_unavailable(env: Env) -> None:
    env.hangs.add(MINE)
    assert await env.refusal() is grpc.StatusCode.UNAVAILABLE
    assert await env.result() is Result.UNDETERMINED


@pytest.mark.parametrize("limits", [Limits(room=fair_room.Room(each=2, all_together=8), slot_seconds=0.0)])
async def test_connections_of_a_container_are_limited_and_others_are_served(env: Env) -> None:
    open_ones = [await env.connect() for _ in range(3)]
    assert await env.result() is Result.CROWDED
    assert await env.check_from(OTHER) == OTHER
    for _, writer in open_ones:
        writer.close()


@pytest.mark.parametrize("limits", [Limits(room=fair_room.Room(each=4, all_together=4), slot_seconds=0.0)])
async def test_container_with_most_connections_loses_one_to_another(env: Env) -> None:
    open_ones = [await env.connect() for _ in range(4)]
    assert await env.check_from(OTHER) == OTHER
    assert {await env.result(), await env.result()} == {Result.DISPLACED, Result.PASSED}
    await until_closed(open_ones[0][0])
    for _, writer in open_ones:
        writer.close()


@pytest.mark.parametrize("limits", [Limits(room=fair_room.Room(each=2, all_together=8), slot_seconds=3600.0)])
async def test_container_that_connects_again_and_again_is_refused(env: Env) -> None:
    for _ in range(2):
        assert (await env.check()).success
        assert await env.result() is Result.PASSED
    assert await env.refusal() is grpc.StatusCode.UNAVAILABLE
    assert await env.result() is Result.CROWDED


def connected_at_once(env: Env, *, count: int) -> list[socket.socket]:
    """Connect without a pause, so that all wait in the kernel's queue."""
    made = [socket.socket(socket.AF_UNIX) for _ in range(count)]
    for each in made:
        each.connect(str(env.path))
    return made


@pytest.mark.parametrize(
    "limits", [Limits(room=fair_room.Room(each=1, all_together=8), accept_share=1e-6, accept_seconds=60.0)]
)
async def test_all_that_wait_are_identified_without_a_pause(env: Env) -> None:
    waiting = connected_at_once(env, count=50)
    assert [await env.result() for _ in waiting[1:]] == [Result.CROWDED] * 49
    for each in waiting:
        each.close()


@pytest.mark.parametrize(
    "limits", [Limits(room=fair_room.Room(each=0, all_together=8), accept_share=1e-6, accept_seconds=0.0)]
)
async def test_share_of_a_processor_for_accepting_is_limited(env: Env) -> None:
    waiting = connected_at_once(env, count=50)
    assert await env.result() is Result.CROWDED
    for _ in range(100):
        await asyncio.sleep(0)
    assert env.results.empty()
    for each in waiting:
        each.close()


@pytest.mark.parametrize(
    ("limits", "result"),
    [
        (Limits(fair_room.Room(each=1, all_together=8), slot_seconds=3600.0, refused_seconds=3600.0), Result.CROWDED),
        (Limits(fair_room.Room(each=1, all_together=8), slot_seconds=3600.0, refused_seconds=0.0), Result.NO_CONTAINER),
    ],
    ids=["soon", "after a moment"],
)
async def test_refused_process_is_identified_again_only_after_a_moment(env: Env, result: Result) -> None:
    """Identifying costs ten times as much as refusing."""
    waiting = connected_at_once(env, count=2)
    assert await env.result() is Result.CROWDED
    shutil.rmtree(env.base / "proc" / str(os.getpid()))
    waiting += connected_at_once(env, count=1)
    assert await env.result() is result
    for each in waiting:
        each.close()


async def test_nothing_of_a_connection_that_has_ended_is_kept(env: Env) -> None:
    for _ in range(3):
        await env.check()
    await eventually.true(lambda: not env.served._visits)


async def test_number_of_refused_processes_that_are_kept_is_limited(env: Env, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health_check_socket, "_MOST_REFUSED", 3)
    for pid in range(100):
        with socket.socket(socket.AF_UNIX) as connection:
            env.served._refuse_for_now(connection, Result.CROWDED, pid)
        assert pid in env.served._refused
        assert len(env.served._refused) <= 3


async def test_any_user_may_connect_and_the_socket_outlives_the_agent(env: Env, limits: Limits) -> None:
    assert stat.S_IMODE(env.path.stat().st_mode) == 0o666
    before = env.path.stat().st_ino
    second = Env(env.base, limits)
    second.contains(MINE, pid=os.getpid())
    async with second.running():
        assert env.path.stat().st_ino != before
        assert (await second.check()).success
        assert await second.result() is Result.PASSED
    assert env.path.is_socket()


@pytest.mark.parametrize("limits", [Limits(slot_seconds=0.0, check_seconds=0.1)])
async def test_socket_that_was_replaced_is_created_again(env: Env) -> None:
    env.path.unlink()
    assert "--health-check-socket" in (await env.status(ComponentState.DEGRADED)).hint
    await env.status(ComponentState.READY)
    assert (await env.check()).success


async def test_file_at_the_path_is_kept(tmp_path_factory: pytest.TempPathFactory, limits: Limits) -> None:
    env = Env(tmp_path_factory.mktemp("hc"), limits)
    env.path.parent.mkdir()
    env.path.write_text("precious")
    task = asyncio.create_task(env.agent().run())
    try:
        assert "no socket" in (await env.status(ComponentState.DEGRADED)).message
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert env.path.read_text() == "precious"
