"""The hub as doctor sees it."""

from dataclasses import replace
from pathlib import Path

import pytest

from agent.doctor import hub
from agent.doctor.checks import Result
from agent.settings import Settings
from tests.fakes.certificates import Authority
from tests.fakes.hub import NAME, FakeHub


@pytest.fixture
def authority() -> Authority:
    """Who vouches for the hub."""
    return Authority.named("kubemend-hub")


@pytest.fixture
def settings(authority: Authority, tmp_path: Path) -> Settings:
    """An agent's that has all but the address."""
    ca, token = tmp_path / "ca.crt", tmp_path / "token"
    ca.write_bytes(authority.pem)
    token.write_text("t")
    return Settings(hub_ca=ca, hub_token=token)


def at(settings: Settings, *ports: int) -> Settings:
    return replace(settings, hub=tuple(f"127.0.0.1:{port}" for port in ports))


async def test_without_a_hub_there_is_nothing_to_look_at() -> None:
    (check,) = await hub.reachable(Settings())
    assert check.result is Result.NOT_NEEDED


async def test_a_hub_that_proves_its_name_is_well(authority: Authority, settings: Settings) -> None:
    async with FakeHub(authority) as replica:
        (check,) = await hub.reachable(at(settings, replica.port))
    assert check.result is Result.OK
    assert str(replica.port) in check.what


async def test_one_replica_of_two_is_enough_and_the_other_is_told(authority: Authority, settings: Settings) -> None:
    async with FakeHub(authority) as replica:
        (check,) = await hub.reachable(at(settings, 1, replica.port))
    assert check.result is Result.WARN
    assert "no hub answers at 127.0.0.1:1" in check.what
    assert check.mend


async def test_nobody_there_fails(settings: Settings) -> None:
    (check,) = await hub.reachable(at(settings, 1))
    assert check.result is Result.FAIL
    assert "no hub answers at 127.0.0.1:1" in check.what
    assert check.mend


async def test_a_hub_of_another_name_fails(authority: Authority, settings: Settings) -> None:
    async with FakeHub(authority, name="elsewhere.svc") as replica:
        (check,) = await hub.reachable(at(settings, replica.port))
    assert check.result is Result.FAIL
    assert NAME in check.what
    assert "--hub-ca" in check.mend


async def test_a_hub_that_the_ca_does_not_vouch_for_fails(settings: Settings) -> None:
    async with FakeHub(Authority.named("somebody else")) as replica:
        (check,) = await hub.reachable(at(settings, replica.port))
    assert check.result is Result.FAIL
    assert "does not prove" in check.what


@pytest.mark.parametrize("flag", ["--hub-token", "--hub-ca"])
async def test_a_missing_file_fails_with_what_to_mount(settings: Settings, flag: str) -> None:
    missing, there = Path("/no/such/file"), at(settings, 1)
    given = replace(there, hub_token=missing) if flag == "--hub-token" else replace(there, hub_ca=missing)
    (check,) = await hub.reachable(given)
    assert check.result is Result.FAIL
    assert "/no/such/file" in check.what
    assert flag in check.mend


async def test_a_ca_file_without_a_certificate_fails(settings: Settings, tmp_path: Path) -> None:
    (check,) = await hub.reachable(replace(at(settings, 1), hub_ca=tmp_path / "token"))
    assert check.result is Result.FAIL
    assert "holds no certificate" in check.what
