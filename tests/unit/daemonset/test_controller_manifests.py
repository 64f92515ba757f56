"""The controller's manifests agree with each other, with the agents', and with the controller's settings."""

from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from kubemend.agent.doctor.api_rights import Right
from kubemend.controller.certificates import keeper
from kubemend.controller.restarts import names
from kubemend.controller.settings import Settings
from tests.unit.daemonset import controller_manifests, manifests, roles, variables

POD_IP = "10.1.2.3"

every_installation = pytest.mark.parametrize("directory", manifests.INSTALLATIONS, ids=lambda path: path.name)


def settings() -> Settings:
    """Return the container's variables."""
    kinds = {f"KUBEMEND_{item.name.upper()}": item.name for item in fields(Settings)}
    kinds |= {item.metadata["env"]: item.name for item in fields(Settings) if item.metadata["env"]}
    variables = {"POD_NAME": "kubemend-controller-x", "POD_NAMESPACE": "kubemend", "POD_IP": POD_IP}
    variables |= {
        item["name"]: item["value"].replace("$(POD_IP)", POD_IP)
        for item in controller_manifests.container()["env"]
        if "value" in item
    }
    given: dict[str, Any] = {kinds[name]: value for name, value in variables.items() if name in kinds}
    return Settings(**given)


@pytest.mark.parametrize("directory", [controller_manifests.CONTROLLER, controller_manifests.CRDS], ids=str)
def test_every_file_is_named_by_its_kustomization(directory: Path) -> None:
    files = sorted(path.name for path in directory.iterdir() if path.name != "kustomization.yaml")
    assert sorted(name for name in manifests.listed(directory) if name.endswith(".yaml")) == files


def test_every_object_exists_once_and_not_among_the_agents() -> None:
    identities = [manifests.identity(obj) for obj in (*controller_manifests.render(), *manifests.render())]
    assert len(set(identities)) == len(identities)


def test_the_definition_is_the_resource_that_the_controller_writes() -> None:
    definition = controller_manifests.one("CustomResourceDefinition")
    (version,) = definition["spec"]["versions"]
    assert (definition["spec"]["group"], version["name"]) == (names.GROUP, names.VERSION)
    assert definition["spec"]["names"]["plural"] == names.PLURAL
    assert definition["spec"]["names"]["kind"] == names.KIND
    shown = {column["name"]: column["jsonPath"] for column in version["additionalPrinterColumns"]}
    for column, name in {"Attempt": names.ATTEMPT, "Cause": names.CAUSE, "Decision": names.DECISION}.items():
        assert shown[column] == f".metadata.annotations.{name}".replace("kubemend.io", r"kubemend\.io")
    assert shown["Gang"] == f".metadata.labels.{names.GANG_NAME}".replace("kubemend.io", r"kubemend\.io")


def test_every_field_of_the_definition_is_described() -> None:
    (version,) = controller_manifests.one("CustomResourceDefinition")["spec"]["versions"]
    assert [*_undescribed(version["schema"]["openAPIV3Schema"], "")] == [".metadata"]


def _undescribed(schema: manifests.Json, path: str) -> list[str]:
    found = []
    for name, below in schema.get("properties", {}).items():
        found += [] if "description" in below else [f"{path}.{name}"]
        found += _undescribed(below, f"{path}.{name}") + _undescribed(below.get("items", {}), f"{path}.{name}[]")
    return found


def test_the_image_is_the_agents() -> None:
    assert controller_manifests.container()["image"] == manifests.agent()["image"]
    ours, agents = map(manifests.kustomization, (controller_manifests.CONTROLLER, manifests.BASE))
    assert (ours["images"], ours["namespace"]) == (agents["images"], agents["namespace"])


def test_all_select_the_deployments_pods() -> None:
    deployment = controller_manifests.one("Deployment")["spec"]
    labels = deployment["template"]["metadata"]["labels"].items()
    assert deployment["selector"]["matchLabels"].items() <= labels
    assert controller_manifests.one("Service")["spec"]["selector"].items() <= labels
    assert controller_manifests.one("PodDisruptionBudget")["spec"]["selector"]["matchLabels"].items() <= labels
    assert controller_manifests.one("NetworkPolicy")["spec"]["podSelector"]["matchLabels"].items() <= labels
    agents = manifests.one("DaemonSet")["spec"]["selector"]["matchLabels"].items()
    assert not agents <= labels


def test_ports_are_where_the_controller_listens() -> None:
    ports = {port["name"]: port["containerPort"] for port in controller_manifests.container()["ports"]}
    probes = settings().probes()
    assert probes is not None
    assert ports == {"hub": settings().hub()[1], "metrics": settings().listen()[1], "probes": probes[1]}
    assert (settings().listen()[0], probes[0]) == (POD_IP, POD_IP)
    (port,) = controller_manifests.one("Service")["spec"]["ports"]
    assert (port["targetPort"], port["port"]) == ("hub", ports["hub"])
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert controller_manifests.container()[probe]["httpGet"]["port"] == "probes"


def test_all_ports_can_be_reached_but_that_of_probes() -> None:
    """Kubelet is on the pod's own node, which every NetworkPolicy lets through."""
    (rule,) = controller_manifests.one("NetworkPolicy")["spec"]["ingress"]
    ports = [port["name"] for port in controller_manifests.container()["ports"]]
    assert rule == {"ports": [{"port": name} for name in ports if name != "probes"]}


def test_only_agents_and_replicas_reach_the_hub_with_the_component() -> None:
    objects = manifests.combined(controller_manifests.CONTROLLER, manifests.DAEMONSET / "hub-from-nodes")
    policies = {obj["metadata"]["name"]: obj["spec"] for obj in objects if obj["kind"] == "NetworkPolicy"}
    fixed, kept = policies["kubemend-controller"], policies["kubemend-hub-from-nodes"]
    (hub,) = [rule for rule in fixed["ingress"] if rule["ports"] != [{"port": "metrics"}]]
    peer, replica = hub["from"]  # a rule without `from` would admit every address
    agents = manifests.one("DaemonSet")["spec"]["template"]["metadata"]["labels"]
    assert peer["podSelector"]["matchLabels"].items() <= agents.items()
    assert replica["podSelector"] == fixed["podSelector"], "replicas see by it that the leader's process has ended"
    assert "ingress" not in kept, "each `kubectl apply` would empty what the leader has written"
    assert kept["podSelector"] == fixed["podSelector"]


def test_leader_may_write_the_one_policy_that_it_keeps() -> None:
    objects = manifests.combined(controller_manifests.CONTROLLER, manifests.DAEMONSET / "hub-from-nodes")
    (deployment,) = [obj for obj in objects if obj["kind"] == "Deployment"]
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    (name,) = [each["value"] for each in container["env"] if each["name"] == "KUBEMEND_HUB_POLICY"]
    rules = [rule for obj in objects if obj["kind"] in ("Role", "ClusterRole") for rule in obj["rules"]]
    (rule,) = [rule for rule in rules if "networkpolicies" in rule["resources"]]
    assert (rule["resourceNames"], rule["verbs"]) == ([name], ["patch"])


def test_users_who_view_a_namespace_see_its_restarts_and_request_none() -> None:
    role = controller_manifests.one("ClusterRole", name="kubemend-restarts-view")
    assert role["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    seen = {Right(verb, "restarts", "restarts.kubemend.io", "") for verb in ("get", "list", "watch")}
    assert roles.rights(role) == seen


def variables_of(directory: Path) -> dict[str, str]:
    """Return the controller's variables in an installation, except those that Kubernetes fills in."""
    (deployment,) = [obj for obj in manifests.build(directory) if obj["kind"] == "Deployment"]
    (found,) = deployment["spec"]["template"]["spec"]["containers"]
    return {item["name"]: item.get("value", "") for item in found["env"]}


@every_installation
def test_every_variable_is_a_setting(directory: Path) -> None:
    known = {item.metadata["env"] for item in fields(Settings)}
    known |= {f"KUBEMEND_{item.name.upper()}" for item in fields(Settings)}
    given = variables_of(directory)
    used = {name for value in given.values() for name in variables.REFERENCE.findall(value)}
    assert given.keys() <= known | used


@every_installation
def test_only_observing_controllers_do_nothing(directory: Path) -> None:
    observes = directory.name == "observe-only"
    (daemon_set,) = [obj for obj in manifests.build(directory) if obj["kind"] == "DaemonSet"]
    (agent,) = daemon_set["spec"]["template"]["spec"]["containers"]
    dry = {"name": "KUBEMEND_DRY_RUN", "value": "true"}
    assert (dry in agent["env"], variables_of(directory).get(dry["name"]) == "true") == (observes, observes)


@every_installation
def test_jobsets_are_run_where_the_right_to_is_given(directory: Path) -> None:
    roles = [obj for obj in manifests.build(directory) if obj["metadata"]["name"] == "kubemend-jobsets"]
    switched_off = variables_of(directory).get("KUBEMEND_JOBSETS") == "false"
    assert (len(roles), Settings().jobsets) == (0 if switched_off else 2, True)


def test_names_are_those_that_the_controller_uses() -> None:
    rules = controller_manifests.one("Role")["rules"]
    named = {rule["resources"][0]: rule["resourceNames"] for rule in rules if "resourceNames" in rule}
    assert named == {
        "leases": [settings().lease_name],
        "secrets": [keeper.SECRET],
        "configmaps": [keeper.CONFIG_MAP],
    }
    assert manifests.identity(controller_manifests.one("Service")) == ("Service", settings().namespace, keeper.SERVICE)


def test_the_agents_account_is_theirs() -> None:
    _, namespace, name = manifests.identity(manifests.one("ServiceAccount"))
    assert settings().agent_user() == f"system:serviceaccount:{namespace}:{name}"


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("RoleBinding", "kubemend-controller"),
        ("ClusterRoleBinding", "kubemend-controller"),
        ("ClusterRoleBinding", "kubemend-jobsets"),
    ],
)
def test_the_roles_are_bound_to_the_account_of_the_pods(kind: str, name: str) -> None:
    binding = controller_manifests.one(kind, name=name)
    account = controller_manifests.one("ServiceAccount")
    assert binding["roleRef"]["name"] == name
    assert controller_manifests.one(binding["roleRef"]["kind"], name=name)
    (subject,) = binding["subjects"]
    assert manifests.identity(account) == (subject["kind"], subject["namespace"], subject["name"])
    pod = controller_manifests.one("Deployment")["spec"]["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == (account["metadata"]["name"], True)
