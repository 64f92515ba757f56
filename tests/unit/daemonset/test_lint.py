"""Rules that all manifests keep, as a cluster's own policies would require, and the few exceptions by name."""

import re
from pathlib import Path

import pytest

from tests.unit.daemonset import manifests
from tests.unit.daemonset.manifests import Json

WARNING = {"kubemend-launcher"}
"""Policies that only warn."""
FILES = sorted(manifests.DAEMONSET.rglob("*.yaml"))

every_installation = pytest.mark.parametrize("directory", manifests.INSTALLATIONS, ids=lambda path: path.name)


def everything() -> list[Json]:
    """Return the objects of the default, and of all components but their workloads."""
    objects = manifests.render(tuple(manifests.COMPONENTS))
    others = [obj for obj in objects if obj["kind"] not in ("DaemonSet", "Deployment")]
    return [*manifests.build(manifests.DEFAULT), *others]


def of_kind(*kinds: str) -> list[Json]:
    """Return the objects of these kinds."""
    return [obj for obj in everything() if obj["kind"] in kinds]


def roles() -> list[Json]:
    return of_kind("ClusterRole", "Role")


def policies() -> list[Json]:
    return of_kind("ValidatingAdmissionPolicy")


def bindings() -> list[Json]:
    return of_kind("ValidatingAdmissionPolicyBinding")


def workloads(directory: Path) -> list[Json]:
    """Return the workloads of an installation."""
    found = [obj for obj in manifests.build(directory) if obj["kind"] in ("DaemonSet", "Deployment")]
    assert found
    return found


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


def all_containers(directory: Path) -> list[Json]:
    """Return the containers of an installation's workloads."""
    return [container for workload in workloads(directory) for container in containers(workload)]


def test_there_are_manifests_to_check() -> None:
    assert len(roles()) > 3
    assert len(policies()) > 6


def test_every_object_has_kubemends_labels() -> None:
    for obj in everything():
        assert obj["metadata"]["labels"]["app.kubernetes.io/name"] == "kubemend", manifests.identity(obj)


@every_installation
def test_images_are_of_a_version_and_pulled_once(directory: Path) -> None:
    for container in all_containers(directory):
        assert re.fullmatch(r"kubemend:\d+\.\d+\.\d+", container["image"])
        assert container["imagePullPolicy"] in ("IfNotPresent", "Never")


@every_installation
def test_containers_have_resources_and_probes(directory: Path) -> None:
    for container in all_containers(directory):
        assert container["resources"]["requests"].keys() == {"cpu", "memory"}
        assert container["resources"]["limits"].keys() == {"memory"}, "a throttled restart is a slow one"
        startup = container["startupProbe"]
        assert startup["periodSeconds"] * startup["failureThreshold"] >= 300, "a start is slow where nothing is idle"
        assert startup["httpGet"] == container["livenessProbe"]["httpGet"]
        assert container["livenessProbe"]["httpGet"]["path"] == "/healthz"
        assert container["readinessProbe"]["httpGet"]["path"] == "/readyz"
        assert container["terminationMessagePolicy"] == "FallbackToLogsOnError"


@every_installation
def test_workloads_are_rolled_out_with_care_and_kept(directory: Path) -> None:
    for workload in workloads(directory):
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
    (deployment,) = of_kind("Deployment")
    (budget,) = of_kind("PodDisruptionBudget")
    assert budget["spec"]["selector"] == deployment["spec"]["selector"]


@every_installation
def test_nothing_writes_to_its_image(directory: Path) -> None:
    assert all(container["securityContext"]["readOnlyRootFilesystem"] for container in all_containers(directory))


def test_all_but_the_agent_is_restricted() -> None:
    found = [obj for each in manifests.INSTALLATIONS for obj in workloads(each)]
    others = [obj for obj in found if obj["metadata"]["name"] != "kubemend-agent"]
    assert others
    for workload in others:
        spec = pod(workload)
        assert not spec.keys() & {"hostPID", "hostNetwork", "hostIPC", "volumes"}
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in containers(workload):
            assert container["securityContext"]["allowPrivilegeEscalation"] is False
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
            assert "privileged" not in container["securityContext"]


def test_accounts_give_their_tokens_only_to_pods_that_ask() -> None:
    accounts = of_kind("ServiceAccount")
    assert {obj["metadata"]["name"] for obj in accounts} == {"kubemend-agent", "kubemend-controller"}
    assert all(obj["automountServiceAccountToken"] is False for obj in accounts)


def test_roles_name_what_they_allow() -> None:
    for role, rule in [(each, rule) for each in roles() for rule in each["rules"]]:
        values = {*rule["verbs"], *rule["apiGroups"], *rule["resources"]}
        assert not [value for value in values if "*" in value]
        assert not {"escalate", "bind", "impersonate", "deletecollection"} & values
        assert not {"pods/exec", "pods/attach", "pods/portforward", "serviceaccounts/token", "nodes/proxy"} & values
        if {"secrets", "configmaps"} & values:
            assert role["kind"] == "Role"
            assert rule.get("resourceNames") or rule["verbs"] == ["create"]


def test_policies_refuse_with_a_message_and_fail_closed() -> None:
    for policy in policies():
        if policy["metadata"]["name"] not in WARNING:
            assert policy["spec"]["failurePolicy"] == "Fail"
            assert policy["spec"]["matchConditions"], "it applies only to our accounts or our resources"
            for rule in policy["spec"]["validations"]:
                assert rule["reason"] == "Forbidden"
                assert ("message" in rule) != ("messageExpression" in rule)


def test_every_policy_is_in_force() -> None:
    assert [obj["spec"]["policyName"] for obj in bindings()] == [obj["metadata"]["name"] for obj in policies()]
    for binding in bindings():
        only_warns = binding["spec"]["policyName"] in WARNING
        actions = binding["spec"]["validationActions"]
        assert actions == ["Warn"] if only_warns else "Deny" in actions, manifests.identity(binding)


def test_policies_that_only_warn_refuse_nothing_when_they_fail() -> None:
    found = {obj["metadata"]["name"]: obj["spec"]["failurePolicy"] for obj in policies()}
    assert {found[name] for name in WARNING} == {"Ignore"}


def test_policies_concern_existing_accounts() -> None:
    accounts = {
        f"system:serviceaccount:{obj['metadata']['namespace']}:{obj['metadata']['name']}"
        for obj in of_kind("ServiceAccount")
    }
    named = {name for policy in policies() for name in re.findall(r"system:serviceaccount:[\w:-]+", str(policy))}
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
