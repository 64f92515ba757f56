"""Install kubemend as people do: applied, tried as in the README, upgraded in the middle of a round, and removed.

The tests of this module are one sequence on one cluster, in this order; each can also be run by itself.
"""

import contextlib
import functools
import json
import time
from pathlib import Path
from typing import Any, Final

import pytest

from hack.devnode import cgroups
from hack.image import build
from tests import eventually
from tests.installation import installed, overlay
from tests.unit.docs import commands, pages

pytestmark = [pytest.mark.installation, pytest.mark.timeout(600)]

NAMESPACE: Final = "kubemend"
TIMED: Final = "--timeout=180s"
SECONDS: Final = 120.0
"""Time for the agent to find its hub: it retries after some seconds, and later after more."""
PAUSE: Final = 0.5
"""Seconds between two kubectl calls, which take a while themselves."""
GANG: Final = ("patient-0", "patient-1", "patient-2")
KINDS: Final = (
    "customresourcedefinitions,validatingadmissionpolicies,validatingadmissionpolicybindings,clusterroles,"
    "clusterrolebindings,namespaces,networkpolicies,poddisruptionbudgets,roles,rolebindings,services,configmaps,"
    "secrets,serviceaccounts,deployments,daemonsets,leases,mutatingwebhookconfigurations,"
    "validatingwebhookconfigurations"
)

Json = dict[str, Any]


@pytest.fixture(scope="module")
def kubemend(cluster: installed.Cluster) -> installed.Cluster:
    """The cluster with kubemend installed and its agent connected to the hub."""
    overlay.prepare(cluster.node.layout)
    cluster.kubectl("label", "node", cluster.node.name, "kubemend.io/agent=true")
    install(cluster, tag=build.version())
    until_doctor_is_content(cluster)
    return cluster


def install(cluster: installed.Cluster, *, tag: str) -> None:
    """Apply the manifests with this tag of the image."""
    directory = overlay.write(cluster.directory / "overlay", node=cluster.node.layout, tag=tag)
    cluster.kubectl("apply", "--kustomize", str(directory))


def rolled_out(cluster: installed.Cluster) -> None:
    """Wait until the last applied version runs and is ready."""
    for workload in ("daemonset/kubemend-agent", "deployment/kubemend-controller"):
        cluster.kubectl("--namespace", NAMESPACE, "rollout", "status", workload, TIMED)


def until_doctor_is_content(cluster: installed.Cluster) -> str:
    """Return the output of ``kubemend doctor`` once it reports no problem: the hub's certificate comes late."""
    rolled_out(cluster)
    deadline = time.monotonic() + SECONDS
    while True:
        try:
            return cluster.kubectl(*typed("doctor").words[1:])
        except AssertionError:
            if time.monotonic() > deadline:
                raise


def typed(what: str) -> commands.Command:
    """Return the README's only kubectl command that contains a text."""
    text = (pages.ROOT / "README.md").read_text(encoding="utf-8")
    parts = [text.partition(f"## {title}\n")[2].partition("\n## ")[0] for title in ("Install", "A first fault")]
    found = [each for part in parts for each in commands.commands(part)]
    (command,) = [each for each in found if each.program == "kubectl" and what in each.words and not each.mentioned]
    return command


def agents_pod(cluster: installed.Cluster) -> str:
    """Return the name of the agent's pod."""
    selector = "app.kubernetes.io/component=agent"
    (pod,) = cluster.get("pods", "--namespace", NAMESPACE, "--selector", selector)["items"]
    name: str = pod["metadata"]["name"]
    return name


def fail(cluster: installed.Cluster, *arguments: str) -> None:
    """Have kubectl exec end process 1: the kernel ends all others in the container, so perhaps the command, too."""
    with contextlib.suppress(installed.KilledError):
        cluster.kubectl(*arguments)


def restart_of(cluster: installed.Cluster, gang: str) -> Json:
    """Wait until a gang's first round has ended, and return its Restart object."""
    selector = f"kubemend.io/gang-name={gang}"
    until_exists(cluster, "restarts", selector)
    cluster.kubectl("wait", "--for=condition=Complete", "restarts", "--selector", selector, TIMED)
    (found,) = cluster.get("restarts", "--selector", selector)["items"]
    return dict(found)


def until_exists(cluster: installed.Cluster, kind: str, selector: str) -> None:
    """Wait for the first object of a kind with these labels."""
    cluster.kubectl("wait", "--for=create", kind, "--selector", selector, TIMED)


async def until_begun(cluster: installed.Cluster, *pods: str) -> None:
    """Wait until the pods' shells have set their traps: before that the kernel drops signals to process 1."""
    for pod in pods:
        await eventually.true(functools.partial(has_begun, cluster, pod), look_again=PAUSE)


def has_begun(cluster: installed.Cluster, pod: str) -> bool:
    """Return whether a worker has written its first line."""
    return "begun" in cluster.kubectl("logs", pod)


def places(pods: list[Json]) -> list[tuple[str, str, str]]:
    """Return everything that a restart in place must keep."""
    return sorted((pod["metadata"]["uid"], pod["status"]["podIP"], pod["spec"]["nodeName"]) for pod in pods)


def restart_counts(pods: list[Json]) -> list[int]:
    """Return the restart count of each pod's container."""
    return [status["restartCount"] for pod in pods for status in pod["status"]["containerStatuses"]]


async def until_reported(cluster: installed.Cluster, *which: str) -> list[Json]:
    """Return pods once kubelet has reported a restart of each container: that may come after the round's end."""

    def are_reported() -> bool:
        return min(restart_counts(cluster.get(*which)["items"])) >= 1

    await eventually.true(are_reported, look_again=PAUSE)
    return list(cluster.get(*which)["items"])


def test_installation_is_ready_and_doctor_reports_no_problem(kubemend: installed.Cluster) -> None:
    reported = until_doctor_is_content(kubemend)
    lines = [line for line in reported.splitlines() if line[:1].strip()]
    assert lines
    assert all(line.startswith(("ok ", "node ")) for line in lines), reported
    pods = kubemend.get("pods", "--namespace", NAMESPACE)["items"]
    accounts = sorted(pod["spec"]["serviceAccountName"] for pod in pods)
    assert accounts == ["kubemend-agent", "kubemend-controller", "kubemend-controller"]
    policies = kubemend.get("validatingadmissionpolicies")["items"]
    assert all(not policy["status"].get("typeChecking", {}).get("expressionWarnings") for policy in policies)


async def test_readmes_first_fault_restarts_the_job_in_place(kubemend: installed.Cluster) -> None:
    # The README's image comes from a registry, which a dev cluster lacks: the node already has it.
    given = typed("-f").given.replace("image: busybox", "image: busybox\n          imagePullPolicy: IfNotPresent")
    kubemend.kubectl(*typed("-f").words[1:], given=given)
    kubemend.kubectl(*typed("wait").words[1:])
    before = kubemend.get("pods", "--selector", "job-name=first")["items"]
    await until_begun(kubemend, *(pod["metadata"]["name"] for pod in before))
    fail(kubemend, *typed("kill").words[1:])
    status = restart_of(kubemend, "first")["status"]
    assert (status["phase"], status["trigger"]["code"], status["decision"]["kind"]) == ("Done", "Exit1", "InPlace")
    assert (status["members"]["total"], status["members"]["running"]) == (4, 4)
    assert "Done" in kubemend.kubectl(*typed("restarts").words[1:])
    kubemend.kubectl("wait", "--for=jsonpath={.status.ready}=4", "job/first", TIMED)
    after = await until_reported(kubemend, "pods", "--selector", "job-name=first")
    assert places(after) == places(before)
    assert kubemend.get("job/first")["status"].get("failed", 0) == 0
    kubemend.kubectl("delete", "job/first")


def test_a_person_restarts_a_container_from_the_agents_pod(kubemend: installed.Cluster) -> None:
    kubemend.kubectl("apply", "--filename=-", given=json.dumps(worker("trainer-0")))
    kubemend.kubectl("wait", "--for=condition=Ready", "pod/trainer-0", TIMED)
    words = [agents_pod(kubemend) if word == "POD" else word for word in typed("restart").words[1:]]
    reported = kubemend.kubectl(*words)
    result = reported.splitlines()[-1].split()[2:]
    assert result in (["done", "Swapped"], ["done", "Adopted"]), (
        reported
    )  # adopted: on a busy node kubelet may be first
    (count,) = restart_counts([kubemend.get("pod/trainer-0")])
    assert count >= 1
    kubemend.kubectl("delete", "pod/trainer-0", "--grace-period=1")


async def test_an_upgrade_during_a_round_loses_nothing(kubemend: installed.Cluster) -> None:
    pods = {"apiVersion": "v1", "kind": "List", "items": [worker(name, gang="patient") for name in GANG]}
    kubemend.kubectl("apply", "--filename=-", given=json.dumps(pods))
    kubemend.kubectl("wait", "--for=condition=Ready", *(f"pod/{name}" for name in GANG), TIMED)
    before = kubemend.get(*(f"pod/{name}" for name in GANG))["items"]
    await until_begun(kubemend, *GANG)
    fail(kubemend, "exec", GANG[0], "--", "kill", "-USR1", "1")
    until_exists(kubemend, "restarts", "kubemend.io/gang-name=patient")
    install(kubemend, tag=installed.NEXT_TAG)
    rolled_out(kubemend)
    pods_of_both = kubemend.get("pods", "--namespace", NAMESPACE)["items"]
    new = [pod for pod in pods_of_both if "deletionTimestamp" not in pod["metadata"]]  # the old ones may still end
    assert {pod["spec"]["containers"][0]["image"] for pod in new} == {f"kubemend:{installed.NEXT_TAG}"}
    (running,) = kubemend.get("restarts", "--selector", "kubemend.io/gang-name=patient")["items"]
    assert "completionTime" not in running.get("status", {}), running
    let_end(kubemend, before)
    status = restart_of(kubemend, "patient")["status"]
    assert (status["phase"], status["members"]["running"], status["members"]["inPlace"]) == ("Done", 3, 3)
    kubemend.kubectl("wait", "--for=condition=Ready", *(f"pod/{name}" for name in GANG), TIMED)
    after = await until_reported(kubemend, *(f"pod/{name}" for name in GANG))
    assert places(after) == places(before)
    assert len(kubemend.get("restarts")["items"]) <= 2, "the upgrade began no round of its own"
    until_doctor_is_content(kubemend)


async def test_uninstall_leaves_containers_running_and_only_documented_remains(
    kubemend: installed.Cluster,
) -> None:
    kubemend.kubectl("apply", "--filename=-", given=json.dumps(worker("bystander")))
    kubemend.kubectl("wait", "--for=condition=Ready", "pod/bystander", TIMED)
    before = container_ids(kubemend)
    kubemend.kubectl("delete", "--kustomize", str(kubemend.directory / "overlay"), TIMED)
    assert [name for name in names_of(kubemend, KINDS) if "kubemend" in name] == []
    assert container_ids(kubemend) == before
    root = kubemend.node.layout.root
    assert all(path.name.startswith("state.db") for path in overlay.state(kubemend.node.layout).iterdir())
    assert list((root / "run-nvidia").iterdir()) == []
    (node,) = kubemend.get("nodes")["items"]
    ours = [each["type"] for each in node["status"]["conditions"] if "kubemend" in each["type"]]
    assert ours == ["kubemend.io/DevicesHealthy"]
    assert "taints" not in node["spec"]
    await eventually.true(lambda: cgroups_of_pods(kubemend) == {uid for uid, _ in before}, look_again=PAUSE)


def let_end(cluster: installed.Cluster, pods: list[Json]) -> None:
    """End the members that have received SIGTERM."""
    for pod in pods:
        volume = cluster.node.layout.pod_dir(pod["metadata"]["uid"]) / "volumes" / "kubernetes.io~empty-dir" / "test"
        (volume / "end").touch()


def worker(name: str, *, gang: str = "") -> Json:
    """Return a pod that fails on SIGUSR1, and ends on SIGTERM once permitted (``let_end``)."""
    patient = "while [ ! -e /test/end ]; do sleep 1; done; exit 1"
    script = f"trap '{patient}' TERM; trap 'exit 1' USR1; echo begun; while true; do sleep 1 & wait; done"
    annotations = {"kubemend.io/restart": "InPlace"} | ({"kubemend.io/grace-period": "10m"} if gang else {})
    container: Json = {"name": "trainer", "image": "busybox", "imagePullPolicy": "IfNotPresent"}
    container |= {"command": ["sh", "-c", script], "volumeMounts": [{"name": "test", "mountPath": "/test"}]}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "annotations": annotations,
            "labels": {"kubemend.io/gang": gang or "None"},
        },
        "spec": {
            "restartPolicy": "Always",
            "nodeSelector": {"kubemend.io/agent": "true"},
            "containers": [container],
            "volumes": [{"name": "test", "emptyDir": {}}],
        },
    }


def container_ids(cluster: installed.Cluster) -> list[tuple[str, str]]:
    """Return UID and running container of each pod of users."""
    pods = cluster.get("pods")["items"]
    return sorted((pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["containerID"]) for pod in pods)


def names_of(cluster: installed.Cluster, kinds: str) -> list[str]:
    """Return the names of all objects of some kinds in all namespaces."""
    return cluster.kubectl("get", kinds, "--all-namespaces", "--output=name").split()


def cgroups_of_pods(cluster: installed.Cluster) -> set[str]:
    """Return the UIDs of the pods that have a cgroup on the node; kubelet removes those of former pods after them."""
    parents = cgroups.directories(f"{cluster.node.layout.cgroup_parent}/kubepods")
    found = {path.name for parent in parents for path in _below(parent)}
    return {name.removeprefix("pod") for name in found if name.startswith("pod")}


def _below(directory: Path) -> list[Path]:
    """Return the cgroups of all pods' classes below kubelet's; cgroups that disappear are skipped."""
    found = list[Path]()
    for name in (".", "burstable", "besteffort"):
        with contextlib.suppress(OSError):
            found += (directory / name).iterdir()
    return found
