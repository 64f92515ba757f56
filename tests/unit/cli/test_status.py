"""``kubemend status`` on a cluster."""

import json
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner

from kubemend.cli import main, reaching
from tests.unit.cli import builders
from tests.unit.cli.builders import FAULTY, HEALTHY, UNKNOWN_DEVICES, pod, restart
from tests.unit.cli.conftest import Cluster

WELL, ILL, USAGE, UNKNOWN = 0, 1, 2, 3


async def test_gangs_with_members_and_rounds_are_listed(cluster: Cluster) -> None:
    await cluster.put(pod("train-0", conditions=HEALTHY), pod("train-1", conditions=HEALTHY), restart())
    result = await cluster.run("status")
    assert (result.exit_code, result.stderr) == (WELL, "")
    header, row = result.stdout.splitlines()
    assert header.split()[:5] == ["NAMESPACE", "GANG", "MEMBERS", "NODES", "DEVICES"]
    assert row.split()[:6] == ["team", "JobSet/train", "2/2", "1", "2", "healthy"]
    assert "3: Done in 340 ms, Xid79" in row
    assert "\x1b" not in result.stdout, "no colours without a terminal"


@pytest.mark.parametrize("name", ["train", "JobSet/train", "jobset/train"])
async def test_one_gang_is_shown_in_full(cluster: Cluster, name: str) -> None:
    await cluster.put(pod("train-0", conditions=HEALTHY), pod("other-0", gang="other"), restart())
    result = await cluster.run("status", name)
    assert result.exit_code == WELL
    assert result.stdout.startswith("team/JobSet/train: 1/1 members ready on 1 node")
    assert "kubemend timeline train-3-1f2e -n team" in result.stdout
    assert "other" not in result.stdout


async def test_kubelets_health_of_devices_is_shown_as_the_api_server_keeps_it(cluster: Cluster) -> None:
    device = {"resourceID": "GPU-7", "health": "Unhealthy", "message": "ECC errors"}
    one = pod("train-0", conditions=HEALTHY)
    one["spec"]["containers"][0]["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    (container,) = one["status"]["containerStatuses"]
    container |= {"imageID": "", "allocatedResourcesStatus": [{"name": "nvidia.com/gpu", "resources": [device]}]}
    await cluster.put(one)
    result = await cluster.run("status", "train")
    assert "KUBELET'S DEVICES" in result.stdout
    assert "Unhealthy GPU-7: ECC errors" in result.stdout


@pytest.mark.parametrize(("conditions", "code"), [(HEALTHY, WELL), (FAULTY, ILL), (UNKNOWN_DEVICES, UNKNOWN)])
async def test_exit_code_follows_the_worst_member(
    cluster: Cluster, conditions: dict[str, tuple[str, str, str]], code: int
) -> None:
    await cluster.put(pod("train-0", conditions=HEALTHY), pod("train-1", conditions=conditions))
    result = await cluster.run("status", "--json")
    assert result.exit_code == code
    assert json.loads(result.stdout)["state"] == {WELL: "Well", ILL: "Ill", UNKNOWN: "Unknown"}[code]


async def test_other_gangs_do_not_affect_the_exit_code(cluster: Cluster) -> None:
    await cluster.put(pod("train-0", conditions=HEALTHY), pod("other-0", gang="other", conditions=FAULTY))
    assert (await cluster.run("status", "train")).exit_code == WELL
    assert (await cluster.run("status")).exit_code == ILL


async def test_all_kinds_of_gangs_are_found_and_each_once(cluster: Cluster) -> None:
    by_label, indexed, both = pod("a"), pod("b"), pod("c", gang="both")
    by_label["metadata"]["labels"] = {"kubemend.io/gang": "ours"}
    job = {"batch.kubernetes.io/job-name": "indexed", "batch.kubernetes.io/job-completion-index": "0"}
    indexed["metadata"]["labels"] = job
    both["metadata"]["labels"] |= job
    await cluster.put(by_label, indexed, both)
    gangs = json.loads((await cluster.run("status", "-A", "--json", namespace=False)).stdout)["gangs"]
    assert [(gang["kind"], gang["name"], len(gang["members"])) for gang in gangs] == [
        ("Gang", "ours", 1),
        ("Job", "indexed", 1),
        ("JobSet", "both", 1),
    ]


async def test_other_namespaces_are_read_only_on_request(cluster: Cluster) -> None:
    await cluster.put(pod("train-0", conditions=HEALTHY))
    assert (await cluster.run("status", "-n", "default", namespace=False)).stdout == "no gang\n"
    assert "JobSet/train" in (await cluster.run("status", "-A", namespace=False)).stdout


async def test_the_kubeconfigs_namespace_is_the_default(cluster: Cluster) -> None:
    await cluster.put(pod("train-0", conditions=HEALTHY))
    path = cluster.server.kubeconfig
    kubeconfig = yaml.safe_load(path.read_text())
    kubeconfig["contexts"][0]["context"]["namespace"] = builders.NAMESPACE
    path.write_text(yaml.safe_dump(kubeconfig))
    assert "JobSet/train" in (await cluster.run("status", namespace=False)).stdout


async def test_missing_gang_is_named(cluster: Cluster) -> None:
    result = await cluster.run("status", "train")
    assert (result.exit_code, result.stdout) == (UNKNOWN, "")
    assert result.stderr == "Error: there is no gang train in namespace team: kubemend status -A lists them\n"


async def test_without_the_resource_members_and_a_note_are_shown(empty_cluster: Cluster) -> None:
    await empty_cluster.put(pod("train-0", conditions=HEALTHY))
    result = await empty_cluster.run("status")
    assert result.exit_code == UNKNOWN
    row, note = result.stdout.splitlines()[1:]
    assert row.split()[:3] == ["team", "JobSet/train", "1/1"]
    assert note == f"note: {reaching.NOT_INSTALLED}; rounds and budgets are unknown"


async def test_without_rights_to_restarts_the_missing_right_is_named(cluster: Cluster) -> None:
    await cluster.put(pod("train-0", conditions=HEALTHY))
    cluster.server.fail_next(1, status=403, path="/restarts")
    result = await cluster.run("status")
    assert result.exit_code == UNKNOWN
    assert "JobSet/train" in result.stdout
    assert 'allow verb "list" on resource "restarts.restarts.kubemend.io"' in result.stdout.splitlines()[-1]


async def test_without_rights_to_pods_it_is_one_line(cluster: Cluster) -> None:
    cluster.server.fail_next(1, status=403, path="/pods")
    result = await cluster.run("status")
    assert (result.exit_code, result.stdout) == (UNKNOWN, "")
    (line,) = result.stderr.splitlines()
    assert 'allow verb "list" on resource "pods"' in line


def test_without_a_kubeconfig_it_is_one_line(tmp_path: Path) -> None:
    environ = {"HOME": str(tmp_path), "KUBECONFIG": None, "KUBERNETES_SERVICE_HOST": None}
    result = CliRunner(env=environ).invoke(main, ["status"])
    assert (result.exit_code, result.stdout) == (UNKNOWN, "")
    assert result.stderr == (
        "Error: cannot find the API server: not in a pod, and no kubeconfig: "
        "run in a pod with a service account, or name a kubeconfig\n"
    )


def test_namespace_and_all_namespaces_exclude_each_other() -> None:
    assert CliRunner().invoke(main, ["status", "-A", "-n", "team"]).exit_code == USAGE


@pytest.mark.parametrize(
    ("text", "namespace"),
    [
        (
            "current-context: b\ncontexts:\n- {name: a, context: {namespace: x}}\n- {name: b, context: {namespace: y}}",
            "y",
        ),
        ("current-context: b\ncontexts:\n- {name: b, context: {cluster: c}}", "default"),
        ("current-context: b\ncontexts: []", "default"),
        ("current-context: b\ncontexts: 5", "default"),
        ("[]", "default"),
        ("not: [yaml", "default"),
        ("\x00", "default"),
    ],
)
def test_the_current_namespace_is_the_contexts(tmp_path: Path, text: str, namespace: str) -> None:
    path = tmp_path / "kubeconfig"
    path.write_text(text)
    assert reaching.current_namespace(path, environ={}) == namespace
    assert reaching.current_namespace(None, environ={"KUBECONFIG": str(path)}) == namespace
