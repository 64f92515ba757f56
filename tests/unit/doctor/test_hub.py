"""The doctor's check of the hub."""

import socket
from dataclasses import replace
from pathlib import Path

import pytest

from kubemend.agent.doctor import kubemend_services
from kubemend.agent.doctor.checks import Result
from kubemend.agent.hub import endpoint
from kubemend.agent.settings import Settings
from tests.fakes.certificates import Authority
from tests.fakes.hub import NAME, FakeHub


@pytest.fixture
def authority() -> Authority:
    """The hub's CA."""
    return Authority.named("kubemend-hub")


@pytest.fixture
def settings(authority: Authority, tmp_path: Path) -> Settings:
    """The settings of an agent, without the hub's address."""
    ca, token = tmp_path / "ca.crt", tmp_path / "token"
    ca.write_bytes(authority.pem)
    token.write_text("t")
    return Settings(hub_ca=ca, hub_token=token)


def at(settings: Settings, *ports: int) -> Settings:
    return replace(settings, hub=tuple(f"127.0.0.1:{port}" for port in ports))


async def test_hub_check_without_hub_is_not_needed() -> None:
    (check,) = await kubemend_services.hub(Settings())
    assert check.result is Result.NOT_NEEDED


async def test_hub_with_valid_certificate_is_ok(authority: Authority, settings: Settings) -> None:
    async with FakeHub(authority) as replica:
        (check,) = await kubemend_services.hub(at(settings, replica.port))
    assert check.result is Result.OK
    assert str(replica.port) in check.what


async def test_one_reachable_replica_of_two_is_a_warning(authority: Authority, settings: Settings) -> None:
    async with FakeHub(authority) as replica:
        (check,) = await kubemend_services.hub(at(settings, 1, replica.port))
    assert check.result is Result.WARN
    assert "no hub answers at 127.0.0.1:1" in check.what
    assert check.hint


async def test_one_silent_replica_does_not_hide_the_other(
    authority: Authority, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its node is down: nothing answers, not even a refusal."""
    monkeypatch.setattr(endpoint, "CONNECT_SECONDS", 2.0)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        async with FakeHub(authority) as replica:
            (check,) = await kubemend_services.hub(at(settings, silent.getsockname()[1], replica.port))
    assert check.result is Result.WARN
    assert f"the hub answers at 127.0.0.1:{replica.port}, but no answer within 2 s" in check.what
    assert "network policy or firewall" in check.hint


async def test_unreachable_hub_fails(settings: Settings) -> None:
    (check,) = await kubemend_services.hub(at(settings, 1))
    assert check.result is Result.FAIL
    assert "no hub answers at 127.0.0.1:1" in check.what
    assert check.hint


async def test_hub_with_another_name_fails(authority: Authority, settings: Settings) -> None:
    async with FakeHub(authority, name="elsewhere.svc") as replica:
        (check,) = await kubemend_services.hub(at(settings, replica.port))
    assert check.result is Result.FAIL
    assert NAME in check.what
    assert "--hub-ca" in check.hint


async def test_hub_with_certificate_of_another_ca_fails(settings: Settings) -> None:
    async with FakeHub(Authority.named("another-name")) as replica:
        (check,) = await kubemend_services.hub(at(settings, replica.port))
    assert check.result is Result.FAIL
    assert "is not valid for" in check.what


@pytest.mark.parametrize("flag", ["--hub-token", "--hub-ca"])
async def test_missing_file_fails_with_mount_hint(settings: Settings, flag: str) -> None:
    missing, there = Path("/no/such/file"), at(settings, 1)
    given = replace(there, hub_token=missing) if flag == "--hub-token" else replace(there, hub_ca=missing)
    (check,) = await kubemend_services.hub(given)
    assert check.result is Result.FAIL
    assert "/no/such/file" in check.what
    assert flag in check.hint


async def test_ca_file_without_certificate_fails(settings: Settings, tmp_path: Path) -> None:
    (check,) = await kubemend_services.hub(replace(at(settings, 1), hub_ca=tmp_path / "token"))
    assert check.result is Result.FAIL
    assert "contains no certificate" in check.what
