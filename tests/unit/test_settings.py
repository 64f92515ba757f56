"""Settings: flags over variables over the file over defaults; invalid ones are refused before anything starts."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from structlog.testing import capture_logs

from kubemend.agent import settings as settings_module
from kubemend.agent.settings import Settings


def run(*arguments: str, env: dict[str, str] | None = None) -> tuple[Settings | None, Result]:
    seen: list[Settings] = []

    @click.command()
    @settings_module.options
    def command(settings: Settings) -> None:
        seen.append(settings)

    result = CliRunner(env={"NODE_NAME": None, "POD_UID": None, **(env or {})}).invoke(command, arguments)
    return (seen[0] if seen else None), result


def given(*arguments: str, env: dict[str, str] | None = None) -> Settings:
    settings, result = run(*arguments, env=env)
    assert settings is not None, result.output
    return settings


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "agent.yaml"
    path.write_text("node-name: from-file\ndry-run: true\nopt-in-namespaces: [team-a, team-b]\nstate-dir: /file\n")
    return path


def test_defaults_are_those_of_the_value() -> None:
    assert given() == Settings()


def test_file_sets_any_setting(file: Path) -> None:
    settings = given("--config", str(file))
    assert (settings.node_name, settings.dry_run, settings.state_dir) == ("from-file", True, Path("/file"))
    assert settings.opt_in_namespaces == ("team-a", "team-b")


def test_variable_overrides_the_file(file: Path) -> None:
    assert given("--config", str(file), env={"KUBEMEND_NODE_NAME": "from-env"}).node_name == "from-env"


def test_flag_overrides_the_variable(file: Path) -> None:
    settings = given("--config", str(file), "--node-name", "flag", env={"KUBEMEND_NODE_NAME": "from-env"})
    assert settings.node_name == "flag"


def test_downward_api_names_are_accepted() -> None:
    assert given(env={"NODE_NAME": "node-1", "POD_UID": "u"}).pod_uid == "u"


def test_empty_path_disables_log_symlinks(file: Path) -> None:
    empty = {"KUBEMEND_POD_LOG_SYMLINKS": ""}
    assert given("--pod-log-symlinks", "").pod_log_symlinks is None
    assert given(env=empty).pod_log_symlinks is None
    assert given("--pod-log-symlinks", "/links", env=empty).pod_log_symlinks == Path("/links")
    file.write_text("pod-log-symlinks: /links\n")
    assert given("--config", str(file), env=empty).pod_log_symlinks is None


def test_empty_variable_of_another_setting_is_none() -> None:
    """A Helm value that is not set makes one."""
    assert given(env={"KUBEMEND_STATE_DIR": "", "KUBEMEND_DRY_RUN": "", "KUBEMEND_CATALOG": ""}) == Settings()


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["--log-level", "loud"], "--log-level"),
        (["--log-format", "xml"], "--log-format"),
        (["--metrics-address", "localhost"], "--metrics-address"),
        (["--metrics-address", "9464"], "--metrics-address"),
        (["--metrics-address", "127.0.0.1:65536"], "--metrics-address"),
        (["--probes-address", "localhost"], "--probes-address"),
        (["--opt-in-namespace", "team-a,team-b"], "--opt-in-namespace"),
        (["--opt-in-namespace", "Team"], "--opt-in-namespace"),
        (["--nvml-poll-interval", "0"], "--nvml-poll-interval"),
        (["--device-release-timeout", "31"], "--device-release-timeout"),
        (["--device-release-timeout", "nan"], "--device-release-timeout"),
        (["--proof-timeout", "21"], "--proof-timeout"),
        (["--proof-timeout", "-1"], "--proof-timeout"),
        (["--storm-restarts", "0"], "--storm-restarts"),
        (["--storm-window", "0"], "--storm-window"),
        (["--storm-window", "86401"], "--storm-window"),
        (["--node-name", ""], "--node-name"),
        (["--config", "/nowhere.yaml"], "/nowhere.yaml"),
    ],
)
def test_invalid_value_is_refused_by_name(arguments: list[str], named: str) -> None:
    _, result = run(*arguments)
    assert result.exit_code == 2
    assert named in result.output


def test_unknown_setting_in_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("node-nmae: x\n")
    _, result = run("--config", str(tmp_path / "a.yaml"))
    assert result.exit_code == 2
    assert "node_nmae" in result.output


@pytest.mark.parametrize(
    ("line", "needed"),
    [
        ("opt-in-namespaces: team", "write a list"),
        ("opt-in-namespaces: {team: true}", "write a list"),
        ("opt-in-namespaces: [[team]]", "write a list"),
        ("hub:", "write a list"),
        ("state-dir: [/a]", "write one value"),
        ("dry-run: [true]", "write one value"),
        ("dry-run: 1", "write true or false"),
        ("device-taints: 0.5", "write true or false"),
        ("node-name: {a: b}", "write one value"),
        ("node-name:", "leave it out"),
        ("storm-restarts: 1.9", "write a whole number"),
        ("nvml-poll-interval: .nan", "not a duration"),
        ("nvml-poll-interval: .inf", "not a duration"),
        ("shutdown-timeout: -1", "not a duration"),
    ],
)
def test_value_of_another_form_in_the_file_is_refused(line: str, needed: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"{line}\n")
    _, result = run("--config", str(tmp_path / "a.yaml"))
    assert result.exit_code == 2
    assert needed in result.output
    assert line.partition(":")[0] in result.output


def test_optional_setting_without_a_value_in_the_file_is_off(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("pod-log-symlinks:\n")
    assert given("--config", str(tmp_path / "a.yaml")).pod_log_symlinks is None


def test_file_that_is_no_text_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_bytes(b"\xff\xfe")
    _, result = run("--config", str(tmp_path / "a.yaml"))
    assert result.exit_code == 2
    assert "cannot read" in result.output


def test_namespaces_in_the_variable_are_separated_by_spaces() -> None:
    assert given(env={"KUBEMEND_OPT_IN_NAMESPACES": "team-a team-b"}).opt_in_namespaces == ("team-a", "team-b")
    settings, result = run(env={"KUBEMEND_OPT_IN_NAMESPACES": "team-a, team-b"})
    assert settings is None
    assert "separate them by spaces" in result.output


def test_variable_that_is_no_setting_is_logged() -> None:
    environ = {
        "KUBEMEND_OPT_IN_NAMESPACE": "team",
        "KUBEMEND_DRY_RUN": "true",
        "KUBEMEND_CONFIG": "/f",
        "NODE_NAME": "n",
    }
    with capture_logs() as logged:
        settings_module.report_unknown_variables(environ)
    (entry,) = logged
    assert (entry["event"], entry["names"]) == ("settings.unknown_variables", ["KUBEMEND_OPT_IN_NAMESPACE"])


def test_ipv6_address_is_accepted() -> None:
    assert Settings(metrics_address="[::1]:9464").listen() == ("::1", 9464)


def test_probes_use_their_own_port_if_given() -> None:
    assert Settings().probes() is None
    assert given("--probes-address", "[::1]:9467").probes() == ("::1", 9467)


def test_hub_may_have_several_addresses() -> None:
    settings = given("--hub", "hub.svc:8443", env={"KUBEMEND_HUB_ANSWER_TIMEOUT": "0.5"})
    assert settings.hub_addresses() == (("hub.svc", 8443),)
    assert settings.hub_answer_timeout == 0.5
    several = given(env={"KUBEMEND_HUB": "hub-0.hub:8443 [fd00::1]:8443"})
    assert several.hub_addresses() == (("hub-0.hub", 8443), ("fd00::1", 8443))


@pytest.mark.parametrize("address", ["hub", "hub:", ":8443", "hub:http", "hub:0", "hub:65536"])
def test_invalid_hub_address_is_refused(address: str) -> None:
    settings, result = run("--hub", address)
    assert settings is None
    assert "--hub" in result.output
    assert "HOST:PORT" in result.output


@pytest.mark.parametrize("patience", ["0", "-1", "31"])
def test_invalid_timeout_is_refused(patience: str) -> None:
    settings, result = run("--hub-answer-timeout", patience)
    assert settings is None
    assert "--hub-answer-timeout" in result.output
