"""Report each problem with the hub in one line with a hint, and recover once it is fixed."""

import asyncio
import threading
from pathlib import Path

import grpc
import pytest

from kubemend.agent.hub import endpoint, errors
from kubemend.agent.hub.endpoint import HubEndpoint
from kubemend.agent.hub.errors import HubError
from kubemend.common.components import ComponentState, ComponentStatus
from tests.fakes.certificates import Authority
from tests.fakes.hub import NAME, FakeHub
from tests.unit.hub.env import HubEnv


def one_line(status: ComponentStatus) -> bool:
    return bool(status.hint) and "\n" not in status.message + status.hint


def spoil(path: Path, content: str | None) -> bytes:
    """Remove a file, or replace its content; return the old content."""
    good = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_text(content)
    return good


def hint(path: Path, content: bytes) -> None:
    """Restore the file."""
    path.write_bytes(content)


async def test_wrong_ca_is_reported_and_read_again_on_change(env: HubEnv) -> None:
    env.ca.write_bytes(Authority.named("another authority").pem)
    async with env.replica() as hub, env.running(env.agent(hub)):
        status = await env.reports.until(ComponentState.DEGRADED, saying="does not verify the certificate of the hub")
        assert one_line(status)
        assert str(env.ca) in status.message
        assert "ConfigMap" in status.hint
        assert hub.unseen == 0
        env.ca.write_bytes(env.authority.pem)
        await hub.welcomed()
        await env.reports.until(ComponentState.READY)
    assert {report.state for report in env.reports.all} <= {ComponentState.DEGRADED, ComponentState.READY}


async def test_certificate_for_other_name_is_rejected(env: HubEnv) -> None:
    async with env.replica(name="elsewhere.svc") as hub, env.running(env.agent(hub)):
        status = await env.reports.until(ComponentState.DEGRADED, saying=f"has no certificate for {NAME}")
        assert "--hub-name" in status.hint
        assert hub.unseen == 0


async def test_node_without_a_free_thread_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    dialer = endpoint.Dialer(HubEndpoint(addresses=(), name=NAME, ca=tmp_path / "ca", token=tmp_path / "token"))
    with pytest.raises(HubError, match="can't start new thread"):
        await dialer.token()


async def test_ca_file_without_certificate_is_reported(env: HubEnv) -> None:
    env.ca.write_text("not PEM")
    async with env.replica() as hub, env.running(env.agent(hub)):
        await env.reports.until(ComponentState.DEGRADED, saying="holds no certificate")


@pytest.mark.parametrize(("file", "flag"), [("token", "--hub-token"), ("ca", "--hub-ca")])
@pytest.mark.parametrize("content", [None, " \n"], ids=["missing", "empty"])
async def test_missing_or_empty_file_is_reported_and_awaited(
    env: HubEnv, file: str, flag: str, content: str | None
) -> None:
    path: Path = getattr(env, file)
    good = spoil(path, content)
    async with env.replica() as hub, env.running(env.agent(hub)):
        status = await env.reports.until(ComponentState.DEGRADED, saying=str(path))
        assert one_line(status)
        assert flag in status.hint
        hint(path, good)
        await hub.welcomed()


async def test_refused_connection_is_reported(env: HubEnv) -> None:
    async with env.running(env.agent(env.replica(port=1))):
        status = await env.reports.until(
            ComponentState.DEGRADED, saying="no hub answers at 127.0.0.1:1: Connection refused"
        )
        assert one_line(status)


async def test_server_without_tls_is_reported(env: HubEnv) -> None:
    async def say_something(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(say_something, "127.0.0.1", 0)
    hub = env.replica(port=server.sockets[0].getsockname()[1])
    async with server, env.running(env.agent(hub)):
        await env.reports.until(ComponentState.DEGRADED, saying="does not speak TLS as the hub does")


@pytest.mark.parametrize(
    ("code", "saying"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "does not accept the agent's token"),
        (grpc.StatusCode.PERMISSION_DENIED, "does not accept the agent for this node"),
        (grpc.StatusCode.INVALID_ARGUMENT, "does not understand the agent"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "limits the agent's messages"),
        (grpc.StatusCode.INTERNAL, "broke: INTERNAL"),
    ],
)
async def test_hub_rejection_is_reported_with_its_reason(env: HubEnv, code: grpc.StatusCode, saying: str) -> None:
    async def reject(hub: FakeHub) -> None:
        """Reject each stream: where one ends while the client sends, gRPC may report INTERNAL in place of the code."""
        while True:
            (await hub.stream()).end(code, "for a\nreason of its own")

    async with env.replica() as hub, env.running(env.agent(hub)):
        rejecting = asyncio.create_task(reject(hub))
        status = await env.reports.until(ComponentState.DEGRADED, saying=saying)
        rejecting.cancel()
        assert "for a reason of its own" in status.message
        assert one_line(status)


def test_worst_of_several_problems_is_reported_in_any_order() -> None:
    found = [
        errors.of_rpc(code, text, where=where, ca=Path("/ca"), name=NAME)
        for where, code, text in (
            ("a:1", grpc.StatusCode.UNAVAILABLE, "this replica does not lead. Connect to another one"),
            ("b:1", grpc.StatusCode.UNAUTHENTICATED, "expired"),
            ("c:1", grpc.StatusCode.UNAVAILABLE, "… remote host: Connection refused"),
        )
    ]
    assert max(found, key=lambda each: each.severity).what.startswith("the hub at b:1")


def test_unresolvable_name_is_reported() -> None:
    where = HubEndpoint(addresses=(("no-such-host.invalid", 1),), name=NAME, ca=Path("/ca"), token=Path("/token"))
    with pytest.raises(HubError, match=r"no-such-host\.invalid") as raised:
        endpoint.resolved(where)
    assert "dnsPolicy" in raised.value.problem.hint


def test_name_with_several_addresses_resolves_to_each_once() -> None:
    where = HubEndpoint(
        addresses=(("127.0.0.1", 1), ("127.0.0.2", 1), ("127.0.0.1", 1), ("::1", 2)),
        name=NAME,
        ca=Path("/ca"),
        token=Path("/token"),
    )
    assert [each.target for each in endpoint.resolved(where)] == [
        "ipv4:127.0.0.1:1",
        "ipv4:127.0.0.2:1",
        "ipv6:[::1]:2",
    ]
