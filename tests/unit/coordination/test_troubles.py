"""What is in the way of the hub is said in one line, with the mend, and goes away by itself once it is mended."""

import asyncio
from pathlib import Path

import grpc
import pytest

from agent.coordination import dialing, troubles
from agent.coordination.dialing import Where
from agent.coordination.troubles import TroubleError
from common.parts import PartState, PartStatus
from tests.fakes.certificates import Authority
from tests.fakes.hub import NAME
from tests.unit.coordination.rig import Rig


def one_line(status: PartStatus) -> bool:
    return bool(status.mend) and "\n" not in status.message + status.mend


def spoil(path: Path, content: str | None) -> bytes:
    """Remove a file, or give it other content; return what it held."""
    good = path.read_bytes()
    path.unlink()
    if content is not None:
        path.write_text(content)
    return good


def mend(path: Path, content: bytes) -> None:
    """Bring it back."""
    path.write_bytes(content)


async def test_a_ca_that_does_not_vouch_for_the_hub_is_told_and_read_again_when_it_changes(rig: Rig) -> None:
    rig.ca.write_bytes(Authority.named("somebody else").pem)
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        status = await rig.reports.until(PartState.DEGRADED, saying="does not vouch for")
        assert one_line(status)
        assert str(rig.ca) in status.message
        assert "ConfigMap" in status.mend
        assert hub.unseen == 0
        rig.ca.write_bytes(rig.authority.pem)
        await hub.welcomed()
        await rig.reports.until(PartState.READY)
    assert {report.state for report in rig.reports.all} <= {PartState.DEGRADED, PartState.READY}


async def test_a_certificate_for_another_name_is_not_believed(rig: Rig) -> None:
    async with rig.replica(name="elsewhere.svc") as hub, rig.running(rig.agent(hub)):
        status = await rig.reports.until(PartState.DEGRADED, saying=f"has no certificate for {NAME}")
        assert "--hub-name" in status.mend
        assert hub.unseen == 0


async def test_a_ca_file_without_a_certificate_is_told(rig: Rig) -> None:
    rig.ca.write_text("not PEM")
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        await rig.reports.until(PartState.DEGRADED, saying="holds no certificate")


@pytest.mark.parametrize(("file", "flag"), [("token", "--hub-token"), ("ca", "--hub-ca")])
@pytest.mark.parametrize("content", [None, " \n"], ids=["missing", "empty"])
async def test_a_file_that_is_missing_or_empty_is_told_and_waited_for(
    rig: Rig, file: str, flag: str, content: str | None
) -> None:
    path: Path = getattr(rig, file)
    good = spoil(path, content)
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        status = await rig.reports.until(PartState.DEGRADED, saying=str(path))
        assert one_line(status)
        assert flag in status.mend
        mend(path, good)
        await hub.welcomed()


async def test_nobody_at_the_address_is_told(rig: Rig) -> None:
    async with rig.running(rig.agent(rig.replica(port=1))):
        status = await rig.reports.until(PartState.DEGRADED, saying="no hub answers at 127.0.0.1:1: Connection refused")
        assert one_line(status)


async def test_what_speaks_no_tls_is_told(rig: Rig) -> None:
    async def say_something(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        writer.close()

    server = await asyncio.start_server(say_something, "127.0.0.1", 0)
    hub = rig.replica(port=server.sockets[0].getsockname()[1])
    async with server, rig.running(rig.agent(hub)):
        await rig.reports.until(PartState.DEGRADED, saying="does not speak TLS as the hub does")


@pytest.mark.parametrize(
    ("code", "saying"),
    [
        (grpc.StatusCode.UNAUTHENTICATED, "does not accept the agent's token"),
        (grpc.StatusCode.PERMISSION_DENIED, "does not let the agent speak for this node"),
        (grpc.StatusCode.INVALID_ARGUMENT, "does not understand the agent"),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, "hears too much of the agent"),
        (grpc.StatusCode.INTERNAL, "broke: INTERNAL"),
    ],
)
async def test_a_hub_that_does_not_want_us_is_told_with_its_reason(
    rig: Rig, code: grpc.StatusCode, saying: str
) -> None:
    async with rig.replica() as hub, rig.running(rig.agent(hub)):
        stream = await hub.stream()
        stream.end(code, "for a\nreason of its own")
        status = await rig.reports.until(PartState.DEGRADED, saying=saying)
        assert "for a reason of its own" in status.message
        assert one_line(status)


def test_of_several_troubles_the_gravest_is_told_whatever_the_order() -> None:
    found = [
        troubles.of_rpc(code, text, where=where, ca=Path("/ca"), name=NAME)
        for where, code, text in (
            ("a:1", grpc.StatusCode.UNAVAILABLE, "this replica does not lead: connect to another one"),
            ("b:1", grpc.StatusCode.UNAUTHENTICATED, "expired"),
            ("c:1", grpc.StatusCode.UNAVAILABLE, "… remote host: Connection refused"),
        )
    ]
    assert max(found, key=lambda each: each.rank).what.startswith("the hub at b:1")


def test_a_name_that_nobody_knows_is_told() -> None:
    where = Where(addresses=(("no-such-host.invalid", 1),), name=NAME, ca=Path("/ca"), token=Path("/token"))
    with pytest.raises(TroubleError, match=r"no-such-host\.invalid") as raised:
        dialing.resolved(where)
    assert "dnsPolicy" in raised.value.trouble.mend


def test_a_name_with_several_addresses_stands_for_all_of_them_each_once() -> None:
    where = Where(
        addresses=(("127.0.0.1", 1), ("127.0.0.2", 1), ("127.0.0.1", 1), ("::1", 2)),
        name=NAME,
        ca=Path("/ca"),
        token=Path("/token"),
    )
    assert [each.target for each in dialing.resolved(where)] == ["ipv4:127.0.0.1:1", "ipv4:127.0.0.2:1", "ipv6:[::1]:2"]
