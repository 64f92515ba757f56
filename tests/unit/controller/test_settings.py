"""The controller's settings: invalid values are refused before anything starts."""

import click
import pytest
from click.testing import CliRunner, Result

from kubemend.controller import settings as settings_module
from kubemend.controller.hub.limits import Caps
from kubemend.controller.restarts.history import Keeping
from kubemend.controller.rounds.states import Limits
from kubemend.controller.settings import Settings


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


def test_defaults_equal_those_of_values() -> None:
    settings = given()
    assert settings == Settings()
    assert (settings.limits(), settings.keeping(), settings.caps()) == (Limits(), Keeping(), Caps())


def test_downward_api_variables_are_read() -> None:
    settings = given(env={"POD_NAME": "replica-1", "POD_NAMESPACE": "elsewhere"})
    assert (settings.pod_name, settings.namespace) == ("replica-1", "elsewhere")


def test_limits_take_given_values() -> None:
    limits = given(
        "--stop-timeout", "5", "--hold-timeout", "20", "--replacement-wait", "7", "--round-timeout", "999"
    ).limits()
    assert (limits.stop, limits.hold, limits.hold_for_recreated, limits.whole) == (5.0, 20.0, 7.0, 999.0)


def test_hub_connections_take_given_values() -> None:
    caps = given("--hub-connections", "99", "--hub-unauthenticated-per-address", "7").caps()
    assert (caps.connections, caps.unauthenticated_of_address) == (99, 7)


def test_addresses_are_split() -> None:
    settings = given("--metrics-address", "[fd00::1]:9466", "--hub-address", "10.1.2.3:7000")
    assert (settings.listen(), settings.probes(), settings.hub()) == (("fd00::1", 9466), None, ("10.1.2.3", 7000))
    assert given("--probes-address", "10.1.2.3:9468").probes() == ("10.1.2.3", 9468)


def test_agents_account_has_api_servers_form() -> None:
    assert given("--agent-account", "a/b").agent_user() == "system:serviceaccount:a:b"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("--hub-address", "nonsense"), "--hub-address 'nonsense' is not HOST:PORT"),
        (("--probes-address", "x"), "--probes-address 'x' is not HOST:PORT"),
        (("--metrics-address", ":x"), "--metrics-address ':x' is not HOST:PORT"),
        (("--agent-account", "kubemend-agent"), "is not NAMESPACE/NAME"),
        (("--agent-account", "kubemend/"), "is not NAMESPACE/NAME"),
        (("--agent-account", "a/b/c"), "--agent-account 'a/b/c' is not NAMESPACE/NAME"),
        (("--namespace", ""), "--namespace '' is not the name of a namespace"),
        (("--lease-name", ""), "--lease-name is empty"),
        (("--release-timeout", "0"), "--release-timeout 0s; must be more than 0"),
        (("--stop-timeout", "nan"), "'nan' is not a duration; write seconds, such as 10s or 500ms"),
        (("--pod-gone-timeout", "inf"), "'inf' is not a duration"),
        (("--slow-timeout", "0"), "--slow-timeout 0s; must be more than 0"),
        (("--round-timeout", "200"), "--pod-gone-timeout 5m; must not be more than --round-timeout 200s"),
        (
            ("--replacement-wait", "301"),
            "--replacement-wait 301s; must not be more than --replacement-ready-timeout 5m",
        ),
        (("--hold-timeout", "10", "--stop-timeout", "10"), "must be more than --stop-timeout 10s"),
        (("--hold-timeout", "3601", "--round-timeout", "9999"), "must not be more than 1h, the agents' maximum"),
        (("--restart-ttl", "-1"), "'-1' is not a duration"),
        (("--keep-restarts", "0"), "must be at least 1"),
        (("--jobset-writes", "0"), "--jobset-writes 0; must be from 1 to 64"),
        (("--hub-connections", "0"), "--hub-connections 0; must be from 1 to 100000"),
        (("--hub-unauthenticated-per-address", "0"), "must be at least 1, because agents connect"),
        (("--log-level", "loud"), "use debug, info, warning or error"),
        (("--log-format", "xml"), "use json or console"),
    ],
)
def test_invalid_values_are_refused_with_hint(arguments: tuple[str, ...], reason: str) -> None:
    settings, result = run(*arguments)
    assert settings is None
    assert result.exit_code == 2
    assert reason in " ".join(result.output.split())
