"""The controller's settings: what cannot work is refused before anything starts."""

import click
import pytest
from click.testing import CliRunner, Result

from controller import settings as settings_module
from controller.hub.caps import Caps
from controller.restarts.history import Keeping
from controller.rounds.states import Limits
from controller.settings import Settings


def run(*arguments: str, env: dict[str, str] | None = None) -> tuple[Settings | None, Result]:
    seen: list[Settings] = []

    @click.command()
    @settings_module.options
    def command(settings: Settings) -> None:
        seen.append(settings)

    unset = {"POD_NAME": None, "POD_NAMESPACE": None}
    result = CliRunner(env={**unset, **(env or {})}).invoke(command, arguments)
    return (seen[0] if seen else None), result


def given(*arguments: str, env: dict[str, str] | None = None) -> Settings:
    settings, result = run(*arguments, env=env)
    assert settings is not None, result.output
    return settings


def test_defaults_are_those_of_the_values_that_they_set() -> None:
    settings = given()
    assert settings == Settings()
    assert (settings.limits(), settings.keeping(), settings.caps()) == (Limits(), Keeping(), Caps())


def test_the_downward_api_names_are_understood() -> None:
    settings = given(env={"POD_NAME": "replica-1", "POD_NAMESPACE": "elsewhere"})
    assert (settings.pod_name, settings.namespace) == ("replica-1", "elsewhere")


def test_limits_are_what_was_said() -> None:
    limits = given(
        "--stop-seconds", "5", "--hold-seconds", "20", "--recreate-wait", "7", "--round-seconds", "999"
    ).limits()
    assert (limits.stop, limits.hold, limits.hold_for_recreated, limits.whole) == (5.0, 20.0, 7.0, 999.0)


def test_connections_of_the_hub_are_what_was_said() -> None:
    caps = given("--hub-connections", "99", "--hub-strangers-per-address", "7").caps()
    assert (caps.connections, caps.strangers_of_address) == (99, 7)


def test_addresses_are_taken_apart() -> None:
    settings = given("--metrics-address", "[fd00::1]:9466", "--hub-address", "10.1.2.3:7000")
    assert (settings.listen(), settings.probes(), settings.hub()) == (("fd00::1", 9466), None, ("10.1.2.3", 7000))
    assert given("--probes-address", "10.1.2.3:9468").probes() == ("10.1.2.3", 9468)


def test_the_agents_account_is_as_the_api_server_calls_it() -> None:
    assert given("--agent-account", "a/b").agent_user() == "system:serviceaccount:a:b"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("--hub-address", "nonsense"), "--hub-address 'nonsense'; write HOST:PORT"),
        (("--probes-address", "x"), "--probes-address 'x'; write HOST:PORT"),
        (("--metrics-address", ":x"), "--metrics-address ':x'; write HOST:PORT"),
        (("--agent-account", "kubemend-agent"), "write NAMESPACE/NAME"),
        (("--release-seconds", "0"), "--release-seconds 0; must be more than 0"),
        (("--stop-seconds", "nan"), "--stop-seconds nan; must be more than 0"),
        (("--absence-seconds", "inf"), "--absence-seconds inf; must be more than 0, and not infinite"),
        (("--slow-seconds", "0"), "--slow-seconds 0; must be more than 0"),
        (("--round-seconds", "200"), "--absence-seconds 300; must not be more than --round-seconds 200"),
        (("--recreate-wait", "301"), "--recreate-wait 301; must not be more than --recreated-seconds 300"),
        (("--hold-seconds", "10", "--stop-seconds", "10"), "must be more than --stop-seconds 10"),
        (("--hold-seconds", "3601", "--round-seconds", "9999"), "agents hold for 3600 at most"),
        (("--ttl-seconds", "-1"), "--ttl-seconds -1; must be from 0"),
        (("--keep-restarts", "0"), "must be at least 1"),
        (("--jobset-writes", "0"), "--jobset-writes 0; must be from 1 to 64"),
        (("--hub-connections", "0"), "--hub-connections 0; must be from 1 to 100000"),
        (("--hub-strangers-per-address", "0"), "must be at least 1: agents come as such"),
        (("--log-level", "loud"), "use debug, info, warning or error"),
        (("--log-format", "xml"), "use json or console"),
    ],
)
def test_what_cannot_work_is_refused_with_the_mend(arguments: tuple[str, ...], why: str) -> None:
    settings, result = run(*arguments)
    assert settings is None
    assert result.exit_code == 2
    assert why in " ".join(result.output.split())
