"""Rules that all manifests keep, as a cluster's own policies would require, and the few exceptions by name."""

import re
from pathlib import Path

import pytest

from tests.unit.daemonset import manifests
from tests.unit.daemonset.manifests import Json

OBJECTS = [
    *manifests.build(manifests.DEFAULT),
    *(obj for obj in manifests.render(tuple(manifests.COMPONENTS)) if obj["kind"] not in ("DaemonSet", "Deployment")),
]
WORKLOADS = [
    obj
    for objects in (manifests.build(directory) for directory in manifests.INSTALLATIONS)
    for obj in objects
    if obj["kind"] in ("DaemonSet", "Deployment")
]
ROLES = {f"{obj['kind']} {obj['metadata']['name']}": obj for obj in OBJECTS if obj["kind"] in ("ClusterRole", "Role")}
POLICIES = [obj for obj in OBJECTS if obj["kind"] == "ValidatingAdmissionPolicy"]
BINDINGS = [obj for obj in OBJECTS if obj["kind"] == "ValidatingAdmissionPolicyBinding"]
FILES = sorted(manifests.DAEMONSET.rglob("*.yaml"))

every_workload = pytest.mark.parametrize("workload", WORKLOADS, ids=lambda obj: obj["metadata"]["name"])
every_role = pytest.mark.parametrize("role", ROLES.values(), ids=ROLES.keys())
WARNING = {obj["spec"]["policyName"] for obj in BINDINGS if obj["spec"]["validationActions"] == ["Warn"]}
REFUSING = [obj for obj in POLICIES if obj["metadata"]["name"] not in WARNING]
every_policy = pytest.mark.parametrize("policy", REFUSING, ids=lambda obj: obj["metadata"]["name"])


def every_file_with(text: str) -> pytest.MarkDecorator:
    """Return the mark that gives a test each file that contains this text."""
    found = [path for path in FILES if text in path.read_text()]
    assert len(found) > 1
    return pytest.mark.parametrize("path", found, ids=lambda path: str(path.relative_to(manifests.DAEMONSET)))


def pod(workload: Json) -> Json:
    """Return the spec of a workload's pods."""
    found: Json = workload["spec"]["template"]["spec"]
    return found


def containers(workload: Json) -> list[Json]:
    """Return a workload's containers."""
    return [*pod(workload).get("initContainers", ()), *pod(workload)["containers"]]


def test_there_are_manifests_to_check() -> None:
    assert {obj["kind"] for obj in WORKLOADS} == {"DaemonSet", "Deployment"}
    assert len(ROLES) > 3
    assert len(POLICIES) > 6


@pytest.mark.parametrize("obj", OBJECTS, ids=lambda obj: f"{obj['kind']} {obj['metadata']['name']}")
def test_everything_is_labelled_as_ours(obj: Json) -> None:
    assert obj["metadata"]["labels"]["app.kubernetes.io/name"] == "kubemend"


@every_workload
def test_images_are_of_a_version_and_pulled_once(workload: Json) -> None:
    for container in containers(workload):
        assert re.fullmatch(r"kubemend:\d+\.\d+\.\d+", container["image"])
        assert container["imagePullPolicy"] in ("IfNotPresent", "Never")


@every_workload
def test_containers_have_resources_and_probes(workload: Json) -> None:
    for container in containers(workload):
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert container["resources"]["limits"].keys() == {"memory"}, "a throttled restart is a slow one"
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


@every_workload
def test_workloads_are_rolled_out_with_care_and_kept(workload: Json) -> None:
    strategy = workload["spec"].get("updateStrategy") or workload["spec"]["strategy"]
    assert {"maxUnavailable", "maxSurge"} == strategy["rollingUpdate"].keys()
    assert pod(workload)["priorityClassName"] in ("system-node-critical", "system-cluster-critical")
    assert pod(workload)["nodeSelector"] == {"kubernetes.io/os": "linux"}
    assert pod(workload)["enableServiceLinks"] is False
    if workload["kind"] == "Deployment":
        assert workload["spec"]["replicas"] == 2
        assert pod(workload)["affinity"]["podAntiAffinity"]
        (spread,) = pod(workload)["topologySpreadConstraints"]
        assert spread["labelSelector"] == workload["spec"]["selector"]
    else:
        assert pod(workload)["tolerations"] == [{"operator": "Exists"}]


def test_replicas_have_a_disruption_budget() -> None:
    (deployment,) = {obj["metadata"]["name"]: obj for obj in OBJECTS if obj["kind"] == "Deployment"}.values()
    (budget,) = [obj for obj in OBJECTS if obj["kind"] == "PodDisruptionBudget"]
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]


@every_workload
def test_nothing_writes_to_its_image(workload: Json) -> None:
    assert all(container["securityContext"]["readOnlyRootFilesystem"] for container in containers(workload))


@pytest.mark.parametrize("workload", [obj for obj in WORKLOADS if obj["metadata"]["name"] != "kubemend-agent"])
def test_all_but_the_agent_is_restricted(workload: Json) -> None:
    spec = pod(workload)
    assert not spec.keys() & {"hostPID", "hostNetwork", "hostIPC", "volumes"}
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    for container in containers(workload):
        assert container["securityContext"]["allowPrivilegeEscalation"] is False
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert "privileged" not in container["securityContext"]


def test_accounts_give_their_tokens_only_to_pods_that_ask() -> None:
    accounts = [obj for obj in OBJECTS if obj["kind"] == "ServiceAccount"]
    assert {obj["metadata"]["name"] for obj in accounts} == {"kubemend-agent", "kubemend-controller"}
    assert all(obj["automountServiceAccountToken"] is False for obj in accounts)


@every_role
def test_roles_name_what_they_allow(role: Json) -> None:
    for rule in role["rules"]:
        values = {*rule["verbs"], *rule["apiGroups"], *rule["resources"]}
        assert not [value for value in values if "*" in value]
        assert not {"escalate", "bind", "impersonate", "deletecollection"} & values
        assert not {"pods/exec", "pods/attach", "pods/portforward", "serviceaccounts/token", "nodes/proxy"} & values
        if {"secrets", "configmaps"} & values:
            assert role["kind"] == "Role"
            assert rule.get("resourceNames") or rule["verbs"] == ["create"]


@every_policy
def test_policies_refuse_with_a_message_and_fail_closed(policy: Json) -> None:
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert policy["spec"]["matchConditions"], "it applies only to our accounts or our resources"
    for rule in policy["spec"]["validations"]:
        assert rule["reason"] == "Forbidden"
        assert ("message" in rule) != ("messageExpression" in rule)


def test_every_policy_is_in_force() -> None:
    assert [obj["spec"]["policyName"] for obj in BINDINGS] == [obj["metadata"]["name"] for obj in POLICIES]
    assert {obj["spec"]["policyName"] for obj in BINDINGS if "Deny" not in obj["spec"]["validationActions"]} == WARNING


def test_policies_that_only_warn_refuse_nothing_when_they_fail() -> None:
    assert {"kubemend-launcher"} == WARNING
    assert all(obj["spec"]["failurePolicy"] == "Ignore" for obj in POLICIES if obj["metadata"]["name"] in WARNING)


def test_policies_concern_existing_accounts() -> None:
    accounts = {
        f"system:serviceaccount:{obj['metadata']['namespace']}:{obj['metadata']['name']}"
        for obj in OBJECTS
        if obj["kind"] == "ServiceAccount"
    }
    named = {name for policy in POLICIES for name in re.findall(r"system:serviceaccount:[\w:-]+", str(policy))}
    assert named == accounts


@every_file_with("\nrules:\n")
def test_every_right_is_explained(path: Path) -> None:
    lines = [line.strip() for line in path.read_text().splitlines()]
    rules = [number for number, line in enumerate(lines) if line.startswith("- apiGroups: [")]
    comments = [number for number, line in enumerate(lines) if line.startswith("#")]
    explained_by = [max((each for each in comments if each < rule), default=-1) for rule in rules]
    assert rules
    assert min(explained_by) >= 0
    # One comment may stand for two rules of one thing: for its creation, and for the one of that name.
    assert all(explained_by.count(comment) <= 2 for comment in explained_by)


@every_file_with("kind: ValidatingAdmissionPolicy\n")
def test_every_policy_is_described(path: Path) -> None:
    assert path.read_text().startswith("# ")


def test_every_way_into_the_host_is_explained() -> None:
    text = (manifests.BASE / "daemonset.yaml").read_text()
    volumes = text[text.index("      volumes:") :]
    assert len(re.findall(r"^        - name: ", volumes, re.MULTILINE)) == len(manifests.pod()["volumes"])
    assert re.findall(r"^        - name: [\w-]+$", volumes, re.MULTILINE) == []
    for setting in ("hostPID: true", "hostNetwork: true", "privileged: true"):
        assert re.search(rf"^\s+#[^\n]*\n\s+{setting}$", text, re.MULTILINE), setting
