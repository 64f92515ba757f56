"""The client on a runtime that misbehaves, differs from containerd, or is unavailable."""

import asyncio
import contextlib
import errno
import json
import os
import pathlib
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator

import grpc
import grpc.aio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.clients.cri import client, convert, errors, kills
from kubemend.agent.clients.cri.client import CriClient, Deadlines
from kubemend.agent.model.workloads import ContainerId, SandboxId
from kubemend.agent.restart import clone, options
from kubemend.agent.restart.oci_programs import Named
from kubemend.common import aio
from kubemend.common.pb.runtime.v1 import api_pb2
from tests import eventually
from tests.fakes.cri_runtime import Behaviour
from tests.fakes.cri_server import CriServer
from tests.unit.cri.conftest import create, start

Answer = Callable[[socket.socket], None]
NOBODY = 65534

_ANYTHING = st.none() | st.integers() | st.text() | st.lists(st.text())
_SPEC = st.dictionaries(st.sampled_from(["process", "linux", "env", "cgroupsPath"]), _ANYTHING)
_VERBOSE = _ANYTHING | st.dictionaries(
    st.sampled_from(["sandboxID", "pid", "config", "runtimeSpec"]),
    _ANYTHING | _SPEC | st.dictionaries(st.sampled_from(["process", "linux"]), _SPEC),
)


async def test_hanging_call_ends_at_its_deadline(server: CriServer) -> None:
    server.delay("ListContainers", 60)

    async with CriClient(server.endpoint, deadlines=Deadlines(read=0.1)) as cri:
        with pytest.raises(errors.DeadlineExceeded, match="ListContainers"):
            await cri.list_containers()


async def test_the_status_of_another_container_is_refused(server: CriServer, cri: CriClient) -> None:
    """It would be cached, and the other one's process be frozen or killed."""
    asked, other = create(server, "trainer"), create(server, "sidecar")
    containers = server.runtime.containers
    containers[asked], containers[other] = containers[other], containers[asked]
    with pytest.raises(errors.InvalidAnswer, match="another container"):
        await cri.container_status(asked)


async def test_the_status_of_another_sandbox_is_refused(server: CriServer, cri: CriClient) -> None:
    create(server)
    ((asked, sandbox),) = server.runtime.sandboxes.items()
    sandbox.id = "other"
    with pytest.raises(errors.InvalidAnswer, match="another sandbox"):
        await cri.sandbox_config(SandboxId(asked))


async def test_verbose_answers_are_read_a_few_at_a_time(server: CriServer, cri: CriClient) -> None:
    container_id, most = create(server), client._VERBOSE_AT_ONCE
    server.delay("ContainerStatus", 60)
    reading = [asyncio.create_task(cri.container_status(container_id)) for _ in range(3 * most)]
    await eventually.true(lambda: server.called().count("ContainerStatus") >= most)
    await cri.version()
    assert server.called().count("ContainerStatus") == most
    server.delay("ContainerStatus", 0)
    for first in reading[:most]:
        first.cancel()
    assert len(await asyncio.gather(*reading[most:])) == 2 * most


async def test_stop_deadline_is_grace_plus_margin(server: CriServer) -> None:
    container_id = create(server)
    server.delay("StopContainer", 0.5)

    async with CriClient(server.endpoint, deadlines=Deadlines(margin=0.2)) as cri:
        await cri.stop_container(container_id, grace=59.5)
        with pytest.raises(errors.DeadlineExceeded):
            await cri.stop_container(container_id, grace=0)

    requests = [call.request for call in server.calls if isinstance(call.request, api_pb2.StopContainerRequest)]
    first, *others = [request.timeout for request in requests]
    assert first == 60
    assert set(others) <= {0}, "a busy machine may not have sent it within its deadline"


async def test_programs_that_the_runtime_names_are_read_from_its_configuration(
    server: CriServer, cri: CriClient
) -> None:
    assert await cri.named_programs() == Named()
    server.runtime.behaviour.config = '{"crio": {"Runtimes": {"crun": {"RuntimePath": "/opt/crun"}}}}'
    assert await cri.named_programs() == Named(("/opt/crun",))


@pytest.mark.parametrize("grace", [3600.5, 1e20, float("inf"), float("nan")])
async def test_overlong_journalled_grace_period_is_capped(server: CriServer, cri: CriClient, grace: float) -> None:
    container_id = create(server)
    start(server, container_id)
    await cri.exec_sync(container_id, ("true",), timeout=grace)  # a preStop hook
    await cri.stop_container(container_id, grace=grace)
    kinds = (api_pb2.ExecSyncRequest, api_pb2.StopContainerRequest)
    sent = [call.request for call in server.calls if isinstance(call.request, kinds)]
    assert [request.timeout for request in sent] == [options.LONGEST_GRACE] * 2


@pytest.mark.parametrize("text", ["0", "1ms", "999.999s", "59.99m", "1h", "3600s", "3599.0000001"])
async def test_every_valid_grace_period_can_be_sent(server: CriServer, cri: CriClient, text: str) -> None:
    grace = options.parse({options.GRACE_PERIOD: text}).grace_seconds
    await cri.stop_container(create(server), grace=grace)
    (sent,) = [call.request for call in server.calls if isinstance(call.request, api_pb2.StopContainerRequest)]
    assert 0 <= sent.timeout - grace < 1


async def test_stop_and_remove_treat_not_found_as_done(server: CriServer, cri: CriClient) -> None:
    container_id = create(server)
    server.fail("StopContainer", grpc.StatusCode.NOT_FOUND)
    server.fail("RemoveContainer", grpc.StatusCode.NOT_FOUND)

    await cri.stop_container(container_id, grace=0)
    await cri.remove_container(container_id)


@pytest.mark.parametrize(("name", "first"), [("cri-o", ["StopContainer"]), ("containerd", [])])
async def test_a_removal_gives_no_grace_period(tmp_path: pathlib.Path, name: str, first: list[str]) -> None:
    """CRI-O would wait for 30 s for a program that ignores SIGTERM."""
    async with CriServer(str(tmp_path / "x.sock"), behaviour=Behaviour(name=name)) as server:
        container_id = create(server)
        start(server, container_id)
        async with CriClient(server.endpoint) as cri:
            await cri.remove_container(container_id)
        ends = [call.request for call in server.calls if isinstance(call.request, api_pb2.StopContainerRequest)]
        assert [request.timeout for request in ends] == [0] * len(first)
        assert container_id not in server.runtime.containers


@pytest.mark.parametrize(
    ("name", "grace", "expected"), [("cri-o", 0.0, True), ("cri-o", 1.0, False), ("containerd", 0.0, False)]
)
async def test_running_container_on_crio_is_killed_before_a_stop_without_grace_period(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str, grace: float, expected: bool
) -> None:
    killed: list[tuple[ContainerId, int, pathlib.Path]] = []
    monkeypatch.setattr(kills, "kill", lambda container, pid, *, proc: killed.append((container, pid, proc)))
    async with CriServer(str(tmp_path / "x.sock"), behaviour=Behaviour(name=name)) as server:
        running, waiting = create(server, "a"), create(server, "b")
        start(server, running)
        async with CriClient(server.endpoint, proc=tmp_path) as cri:
            await cri.stop_container(running, grace=grace)
            await cri.stop_container(waiting, grace=grace)
            await cri.stop_container(ContainerId("gone"), grace=grace)
    assert killed == ([(running, 4242, tmp_path)] if expected else [])


@pytest.mark.parametrize(
    ("name", "namespaces", "expected"),
    [
        ("cri-o", [{"type": "ipc", "path": "/ipc"}, {"type": "pid"}], False),
        ("cri-o", [{"type": "pid", "path": "/proc/7/ns/pid"}], True),
        ("cri-o", [{"type": "mount"}], True),
        ("cri-o", ["?"], True),
        ("cri-o", "?", False),
        ("containerd", [{"type": "pid", "path": "/proc/7/ns/pid"}], False),
    ],
)
async def test_crio_leaves_the_processes_of_a_shared_namespace(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, name: str, namespaces: object, expected: bool
) -> None:
    killed: list[ContainerId] = []
    monkeypatch.setattr(kills, "kill_left", lambda container, **_: killed.append(container))
    async with CriServer(str(tmp_path / "x.sock"), behaviour=Behaviour(name=name, namespaces=namespaces)) as server:
        container_id = create(server)
        async with CriClient(server.endpoint) as cri:
            await cri.stop_container(container_id, grace=1.0)
    assert killed == ([container_id] if expected else [])


async def test_crio_is_not_asked_to_stop_a_process_that_could_not_be_killed(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would send SIGTERM first: a program that answers with exit code 0 would count as completed."""

    def fails(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many open files")

    monkeypatch.setattr(kills, "kill", fails)
    async with CriServer(str(tmp_path / "x.sock"), behaviour=Behaviour(name="cri-o")) as server:
        running = create(server)
        start(server, running)
        async with CriClient(server.endpoint) as cri:
            with pytest.raises(errors.CallFailed, match="pid 4242 cannot be killed: too many open files"):
                await cri.stop_container(running, grace=0)
        assert not [call for call in server.calls if isinstance(call.request, api_pb2.StopContainerRequest)]


async def test_crio_that_does_not_show_a_container_is_no_proof_of_an_unkillable_process(tmp_path: pathlib.Path) -> None:
    async with CriServer(str(tmp_path / "x.sock"), behaviour=Behaviour(name="cri-o")) as server:
        running = create(server)
        start(server, running)
        server.fail("ContainerStatus", grpc.StatusCode.DEADLINE_EXCEEDED)
        async with CriClient(server.endpoint) as cri:
            with pytest.raises(errors.RuntimeUnavailable):
                await cri.stop_container(running, grace=0)


@pytest.mark.parametrize(("name", "expected"), [("cri-o", "/var/lib/merged"), ("containerd", None)])
async def test_only_crio_reports_the_path_of_a_root(tmp_path: pathlib.Path, name: str, expected: str | None) -> None:
    async with CriServer(str(tmp_path / "x.sock"), behaviour=Behaviour(name=name, root="/var/lib/merged")) as server:
        container_id = create(server)
        async with CriClient(server.endpoint) as cri:
            assert await cri.root_of(container_id) == expected


async def test_requested_ends_are_known(server: CriServer, cri: CriClient, monkeypatch: pytest.MonkeyPatch) -> None:
    stopped, removed, other = (create(server, name) for name in ("a", "b", "c"))
    await cri.stop_container(stopped, grace=0)
    server.fail("RemoveContainer", grpc.StatusCode.UNAVAILABLE)
    with pytest.raises(errors.CriError):
        await cri.remove_container(removed)  # it may have taken effect in any case
    assert [cri.has_ended(each) for each in (stopped, removed, other)] == [True, True, False]
    monkeypatch.setattr(client, "_ENDS_KNOWN", 2)
    await cri.stop_container(other, grace=0)
    assert [cri.has_ended(each) for each in (stopped, removed, other)] == [False, True, True]


async def test_call_failure_contains_the_runtimes_message(server: CriServer, cri: CriClient) -> None:
    container_id = create(server)
    server.fail("StartContainer", grpc.StatusCode.UNKNOWN, details="no space left on device")

    with pytest.raises(errors.CallFailed, match="no space left on device") as caught:
        await cri.start_container(container_id)
    await cri.start_container(container_id)

    assert isinstance(caught.value.__cause__, grpc.aio.AioRpcError)


async def test_probe_without_containers_leaves_config_unknown(cri: CriClient) -> None:
    assert (await cri.probe()).gives_config is None


@pytest.mark.parametrize("gives_config", [True, False])
@pytest.mark.parametrize("has_events", [True, False])
async def test_probe_distinguishes_runtimes(tmp_path: pathlib.Path, *, gives_config: bool, has_events: bool) -> None:
    behaviour = Behaviour(gives_config=gives_config, has_events=has_events)
    async with CriServer(str(tmp_path / "x.sock"), behaviour=behaviour) as server:
        start(server, create(server))
        async with CriClient(server.endpoint, deadlines=Deadlines(silence=0.2)) as cri:
            capabilities = await cri.probe()

    assert (capabilities.gives_config, capabilities.has_events) == (gives_config, has_events)


async def test_probe_of_a_slow_runtime_finds_no_events(tmp_path: pathlib.Path) -> None:
    async with CriServer(str(tmp_path / "x.sock")) as server:
        server.delay("GetContainerEvents", 0.2)
        server.fail("GetContainerEvents", grpc.StatusCode.UNIMPLEMENTED)
        server.delay("Version", 0.5)
        async with CriClient(server.endpoint, deadlines=Deadlines(silence=0.05)) as cri:
            capabilities = await cri.probe()

    assert capabilities.has_events is False


async def test_runtime_without_config_returns_the_rest(tmp_path: pathlib.Path) -> None:
    async with CriServer(str(tmp_path / "x.sock"), behaviour=Behaviour(gives_config=False)) as server:
        container_id = create(server)
        async with CriClient(server.endpoint) as cri:
            info = await cri.container_status(container_id)
            assert info.sandbox_id is not None
            with pytest.raises(clone.CloneRefusedError, match="RuntimeHidesConfig"):
                await cri.sandbox_config(info.sandbox_id)

    assert info.config is None
    assert info.ref.name == "trainer"


async def test_restarted_runtime_is_reconnected(server: CriServer, cri: CriClient) -> None:
    container_id = create(server)
    await server.stop()
    with pytest.raises(errors.RuntimeUnavailable):
        await cri.list_containers()
    await server.start()

    async with asyncio.timeout(60):
        async for _ in aio.ticks(period=0.05):  # gRPC reconnects after a backoff of its own
            with contextlib.suppress(errors.RuntimeUnavailable):
                found = await cri.list_containers()
                break
    assert [item.id for item in found] == [container_id]


async def test_missing_socket_is_unavailable(tmp_path: pathlib.Path) -> None:
    async with CriClient(str(tmp_path / "none.sock")) as cri:
        with pytest.raises(errors.RuntimeUnavailable, match="No such file or directory"):
            await cri.version()


async def test_stale_socket_is_unavailable(tmp_path: pathlib.Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "stale.sock"))
    async with CriClient(str(tmp_path / "stale.sock")) as cri:
        with pytest.raises(errors.RuntimeUnavailable, match="Connection refused"):
            await cri.version()


@contextlib.contextmanager
def _listener(path: pathlib.Path, answer: Answer) -> Iterator[None]:
    """Serve in threads: they end when the client hangs up, and leaving waits for them."""

    class Handler(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with contextlib.suppress(ConnectionError):
                answer(self.request)

    with socketserver.ThreadingUnixStreamServer(str(path), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield
        finally:
            server.shutdown()
            thread.join()


def _http1(connection: socket.socket) -> None:
    connection.recv(10)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


def _banner(connection: socket.socket) -> None:
    connection.sendall(b"SSH-2.0-OpenSSH_9\r\n")
    _silent(connection)


def _silent(connection: socket.socket) -> None:
    while connection.recv(4096):
        pass


@pytest.mark.parametrize("answer", [_http1, _banner, _silent])
async def test_socket_without_grpc_is_not_cri(tmp_path: pathlib.Path, answer: Answer) -> None:
    path = tmp_path / "other.sock"
    with _listener(path, answer):
        async with CriClient(str(path)) as cri:
            with pytest.raises(errors.NotCri, match="set the endpoint"):
                await cri.version()


async def test_other_grpc_service_is_not_cri(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "grpc.sock"
    server = grpc.aio.server()
    server.add_insecure_port(f"unix://{path}")
    await server.start()
    try:
        async with CriClient(str(path)) as cri:
            with pytest.raises(errors.NotCri, match="not CRI v1"):
                await cri.version()
    finally:
        await server.stop(grace=None)


@contextlib.contextmanager
def _as_nobody() -> Iterator[None]:
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become a user without permission")
async def test_socket_without_permission_is_reported(server: CriServer) -> None:
    os.chmod(server.endpoint, 0o600)  # noqa: PTH101 - one call, on a socket
    async with CriClient(server.endpoint) as cri:
        with _as_nobody(), pytest.raises(errors.PermissionDenied, match="run as root"):
            await cri.version()


async def test_verbose_answer_that_is_not_json_is_invalid() -> None:
    with pytest.raises(errors.InvalidAnswer, match="not JSON"):
        convert.verbose_info({"info": "{"}, endpoint="/run/x.sock")


@given(text=st.text() | _VERBOSE.map(json.dumps))
def test_verbose_answer_of_any_shape_is_parsed_or_invalid(text: str) -> None:
    labels = {
        "io.kubernetes.pod.name": "p",
        "io.kubernetes.pod.namespace": "default",
        "io.kubernetes.pod.uid": "u",
        "io.kubernetes.container.name": "a",
    }
    answer = api_pb2.ContainerStatusResponse(status=api_pb2.ContainerStatus(labels=labels), info={"info": text})

    with contextlib.suppress(errors.InvalidAnswer):
        assert convert.container_status(answer, endpoint="/run/x.sock").ref.name == "a"
