"""The manifests give the agent valid settings, and everything that it needs."""

from collections.abc import Callable, Sequence
from dataclasses import fields
from pathlib import Path, PurePosixPath

import click
import pytest
from prometheus_client import CollectorRegistry

from kubemend.agent import cli
from kubemend.agent.clients.cri import discovery
from kubemend.agent.metrics import Metrics
from kubemend.agent.settings import Settings
from kubemend.common.components import ComponentRegistry
from kubemend.common.web import WebServer
from tests.unit.daemonset import manifests, variables

every_variant = pytest.mark.parametrize("variant", manifests.VARIANTS, ids="+".join)

OF_OTHERS = {"NVIDIA_VISIBLE_DEVICES", "NVIDIA_DRIVER_CAPABILITIES", "GRPC_VERBOSITY"}
"""Variables of the NVIDIA container toolkit and of gRPC."""

Given = Callable[[Sequence[str]], Settings]


def command(container: manifests.Json) -> click.Command:
    """Return the subcommand that the container runs."""
    found = cli.main.get_command(click.Context(cli.main), container["args"][0])
    assert found is not None
    return found


@pytest.fixture
def given(monkeypatch: pytest.MonkeyPatch) -> Given:
    """Return the settings that the agent's command line parses from the container's arguments and variables."""

    def parse(variant: Sequence[str]) -> Settings:
        container = manifests.agent(variant)
        for name, value in variables.expanded(container).items():
            monkeypatch.setenv(name, value)
        context = command(container).make_context("agent", list(container["args"][1:]))
        return Settings(**{item.name: context.params[item.name] for item in fields(Settings)})

    return parse


@every_variant
def test_every_variable_is_a_setting(variant: Sequence[str]) -> None:
    container = manifests.agent(variant)
    known = {name for option in command(container).params for name in option.envvar or ()}
    used = {name for item in container["env"] for name in variables.REFERENCE.findall(item.get("value", ""))}
    assert variables.expanded(container).keys() <= known | used | OF_OTHERS
    assert not known & OF_OTHERS


@pytest.mark.parametrize("directory", manifests.INSTALLATIONS, ids=lambda path: path.name)
def test_every_variable_of_an_installation_is_a_setting(directory: Path) -> None:
    (daemon_set,) = [obj for obj in manifests.build(directory) if obj["kind"] == "DaemonSet"]
    (container,) = daemon_set["spec"]["template"]["spec"]["containers"]
    known = {name for option in command(container).params for name in option.envvar or ()}
    assert variables.expanded(container).keys() <= known | OF_OTHERS


@every_variant
def test_agent_gets_its_node_and_its_own_pod(variant: Sequence[str], given: Given) -> None:
    settings = given(variant)
    assert (settings.node_name, settings.pod_uid) == ("node-1", "uid-1")


@every_variant
def test_only_the_observe_component_is_a_dry_run(variant: Sequence[str], given: Given) -> None:
    assert given(variant).dry_run == ("dry-run" in variant)


@every_variant
def test_ports_and_probes_match_the_agents_addresses(variant: Sequence[str], given: Given) -> None:
    container = manifests.agent(variant)
    _, port = given(variant).listen()
    probes = given(variant).probes()
    assert probes is not None
    ports = {item["name"]: item["containerPort"] for item in container["ports"]}
    assert ports == {"metrics": port, "probes": probes[1]}
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        request = container[probe]["httpGet"]
        assert (request["host"], request["port"]) == (probes[0], "probes"), "no scrape keeps them waiting"


@every_variant
def test_only_monitoring_opens_the_port_to_others(variant: Sequence[str], given: Given) -> None:
    host, _ = given(variant).listen()
    assert host == (variables.NODE_IP if "monitoring" in variant else "127.0.0.1")


def test_probes_request_existing_pages() -> None:
    registry = CollectorRegistry()
    parts = ComponentRegistry(show=Metrics(registry).show_part)
    pages = WebServer(address=("", 0), parts=parts, registry=registry).pages
    container = manifests.agent()
    probed = {container[probe]["httpGet"]["path"] for probe in ("startupProbe", "livenessProbe", "readinessProbe")}
    assert probed <= WebServer(address=("", 0), parts=parts, registry=None).pages.keys()
    (endpoint,) = manifests.one("PodMonitor", ["monitoring"])["spec"]["podMetricsEndpoints"]
    assert endpoint["path"] in pages


def test_grace_period_covers_a_restart_in_progress() -> None:
    assert manifests.pod()["terminationGracePeriodSeconds"] >= Settings().shutdown_timeout + 5


@every_variant
def test_the_directories_that_the_agent_uses_are_mounted(variant: Sequence[str], given: Given) -> None:
    mounts = {mount["mountPath"]: mount.get("readOnly", False) for mount in manifests.agent(variant)["volumeMounts"]}
    settings = given(variant)
    assert settings.pod_log_symlinks is not None
    for written in (settings.state_dir, settings.pod_log_symlinks, settings.sysfs / "fs" / "cgroup"):
        assert mounts[str(written)] is False
    assert mounts["/var/lib/kubelet/pods"] is False  # termination-message files, named by the containers' own mounts
    assert mounts["/var/log/pods"] is True  # likewise the log files
    assert mounts[str(PurePosixPath(settings.pod_resources_socket).parent)] is True


@every_variant
def test_only_the_component_opens_a_socket_for_pods(variant: Sequence[str], given: Given) -> None:
    socket = given(variant).health_check_socket
    assert (socket is not None) == ("health-checks" in variant)
    if socket is not None:
        mounts = {
            mount["mountPath"]: mount.get("readOnly", False) for mount in manifests.agent(variant)["volumeMounts"]
        }
        assert mounts[str(socket.parent)] is False


@pytest.mark.parametrize(("variant", "runtime"), [((), "containerd"), (("cri-o",), "CRI-O")])
def test_the_runtime_is_found_where_its_directory_is_mounted(variant: Sequence[str], runtime: str) -> None:
    mounted = {mount["mountPath"] for mount in manifests.agent(variant)["volumeMounts"]}
    found = discovery.choose(
        discovery.candidates(
            explicit=None, environment=variables.expanded(manifests.agent(variant)), kubelet_configs={}
        ),
        exists=lambda socket: str(PurePosixPath(socket).parent) in mounted,
    )
    assert found.reason == f"the usual path of {runtime}"


def test_the_agent_sees_the_hosts_processes_and_devices() -> None:
    assert manifests.pod()["hostPID"] is True
    assert manifests.agent()["securityContext"]["privileged"] is True
    assert (Settings().proc, Settings().kernel_log) == (Path("/proc"), Path("/dev/kmsg"))
