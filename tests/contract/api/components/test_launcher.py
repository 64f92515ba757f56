"""The component launcher: it runs the Python command of containers that a pod names, from the agent's image."""

import json
import subprocess
from typing import Any

import pytest

from kubemend.common import exit_codes
from kubemend.common.kube import client
from launcher import kubemend_run
from tests import eventually
from tests.contract.api import objects
from tests.contract.api.installation import Cluster
from tests.unit.daemonset import kubectl

WANTED = {"kubemend.io/launcher": "trainer"}
LAUNCHER = "/opt/kubemend-launcher/launcher/kubemend_run.py"
MOUNT = {"name": "kubemend-launcher", "mountPath": "/opt/kubemend-launcher", "readOnly": True}
TRAIN = ["python3.11", "-u", "train.py"]
AGENTS = "/apis/apps/v1/namespaces/kubemend/daemonsets/kubemend-agent"

Json = dict[str, Any]


def wanted(containers: Json, *, annotations: Json = WANTED) -> Json:
    pod = objects.pod("x", annotations=annotations)
    pod["spec"]["containers"] = [{"name": name, "image": "busybox:1", **more} for name, more in containers.items()]
    return pod


async def created(api: client.KubeClient, containers: Json, *, annotations: Json = WANTED) -> Json:
    """Return the pod that the API server would create."""
    return await api.create(f"{objects.pods('default')}?dryRun=All", wanted(containers, annotations=annotations))


def commands(pod: Json) -> dict[str, list[str] | None]:
    return {each["name"]: each.get("command") for each in pod["spec"]["containers"]}


async def test_named_program_is_run_by_the_launcher_of_the_agents_image(api: client.KubeClient) -> None:
    pod = await created(api, {"trainer": {"command": TRAIN, "args": ["--lr", "0.1"]}})
    (agent,) = (await api.get(AGENTS))["spec"]["template"]["spec"]["containers"]
    assert pod["spec"]["volumes"] == [
        {"name": "kubemend-launcher", "image": {"reference": agent["image"], "pullPolicy": "IfNotPresent"}}
    ]
    assert commands(pod) == {"trainer": ["python3.11", LAUNCHER, "--", *TRAIN]}
    assert pod["spec"]["containers"][0]["args"] == ["--lr", "0.1"]
    assert pod["spec"]["containers"][0]["volumeMounts"] == [MOUNT]


@pytest.mark.parametrize("python", ["python", "python3", "/usr/bin/python3.8", "python3.14", "/a/bin/python3.13t"])
async def test_each_python_that_the_launcher_supports_runs_it(api: client.KubeClient, python: str) -> None:
    pod = await created(api, {"trainer": {"command": [python, "train.py"]}})
    assert commands(pod) == {"trainer": [python, LAUNCHER, "--", python, "train.py"]}
    assert kubemend_run.program_of([python, "train.py"]) is not None


@pytest.mark.parametrize("text", [" --max-restarts 0  --no-spare", "--max-restarts\t0\r\n--no-spare\n"])
async def test_options_come_from_the_pod(api: client.KubeClient, text: str) -> None:
    """Also from a YAML block (``|``), which ends with a newline."""
    annotations = {**WANTED, "kubemend.io/launcher-options": text}
    pod = await created(api, {"trainer": {"command": ["/usr/bin/python", "-m", "train"]}}, annotations=annotations)
    options = ["--max-restarts", "0", "--no-spare"]
    assert commands(pod) == {"trainer": ["/usr/bin/python", LAUNCHER, *options, "--", "/usr/bin/python", "-m", "train"]}


@pytest.mark.parametrize(
    ("annotation", "value", "options"),
    [
        ("keep-cache", "true", ["--keep-cache"]),
        ("keep-cache", "false", []),
        ("cache", "Off", ["--keep-cache"]),
        ("cache", "On", []),
    ],
)
async def test_cache_that_the_agent_keeps_is_kept_by_the_launcher(
    api: client.KubeClient, annotation: str, value: str, options: list[str]
) -> None:
    annotations = {**WANTED, f"kubemend.io/{annotation}": value}
    pod = await created(api, {"trainer": {"command": TRAIN}}, annotations=annotations)
    assert commands(pod) == {"trainer": ["python3.11", LAUNCHER, *options, "--", *TRAIN]}
    assert kubemend_run.parser().parse_args(options).keep_cache is bool(options)


@pytest.mark.parametrize(
    ("codes", "options"),
    [
        ("42, 64 - 78", ["--fatal-exit-codes", "42, 64 - 78"]),
        *((each, ["--fatal-exit-codes", each]) for each in ("255", "007,", " 1,,2", "3-3")),
        *((each, []) for each in ("", "0", "256", "78-64", "1-256", "0-3", "a", "1;2", "-3", "1-2-3")),
    ],
)
async def test_exit_codes_that_are_fatal_for_the_agent_are_so_for_the_launcher(
    api: client.KubeClient, codes: str, options: list[str]
) -> None:
    """Options of the pod come later, and count. With a value that it does not know the launcher would not start."""
    annotations = {**WANTED, "kubemend.io/fatal-exit-codes": codes, "kubemend.io/launcher-options": "--no-spare"}
    pod = await created(api, {"trainer": {"command": TRAIN}}, annotations=annotations)
    assert commands(pod) == {"trainer": ["python3.11", LAUNCHER, *options, "--no-spare", "--", *TRAIN]}
    for words in filter(None, [options]):
        assert kubemend_run.parser().parse_args(words).fatal_exit_codes == exit_codes.parse(codes)


async def test_only_named_containers_with_a_python_command_change_and_their_order_stays(api: client.KubeClient) -> None:
    containers = {
        "log-shipper": {"command": ["python", "ship.py"]},
        "trainer": {"command": TRAIN},
        "evaluator": {"command": ["sh", "-c", "python evaluate.py"]},
        "server": {"args": ["python"]},
    }
    pod = await created(api, containers, annotations={"kubemend.io/launcher": "server, evaluator,trainer,absent"})
    expected = {name: each.get("command") for name, each in containers.items()}
    assert commands(pod) == {**expected, "trainer": ["python3.11", LAUNCHER, "--", *TRAIN]}
    assert [*commands(pod)] == [*containers]
    assert all("volumeMounts" not in each for each in pod["spec"]["containers"] if each["name"] != "trainer")


@pytest.mark.parametrize(
    "command",
    [
        ["sh", "-c", "python train.py"],
        ["/opt/pythonic/run"],
        ["/usr/bin/python2.7", "train.py"],
        ["python3.7", "train.py"],
        ["python", "/launcher/kubemend_run.py", "--", *TRAIN],
        None,
    ],
    ids=["shell", "other program", "python 2", "too old", "has the launcher", "image's own"],
)
async def test_pod_without_a_program_to_launch_is_left_alone(api: client.KubeClient, command: list[str] | None) -> None:
    pod = await created(api, {"trainer": {"command": command} if command else {}})
    assert commands(pod) == {"trainer": command}
    assert "volumes" not in pod["spec"]


async def test_pod_that_names_no_container_is_left_alone(api: client.KubeClient) -> None:
    pod = await created(api, {"trainer": {"command": TRAIN}}, annotations={})
    assert commands(pod) == {"trainer": TRAIN}


async def test_launched_pod_is_launched_once(api: client.KubeClient) -> None:
    """A pod that was copied from a running one has the launcher, its volume and its mount already."""
    pod = await created(api, {"trainer": {"command": TRAIN}})
    copied = wanted({})
    copied["spec"] |= {key: pod["spec"][key] for key in ("containers", "volumes")}
    again = await api.create(f"{objects.pods('default')}?dryRun=All", copied)
    assert (commands(again), again["spec"]["volumes"]) == (commands(pod), pod["spec"]["volumes"])


def warnings(cluster: Cluster, pod: Json) -> str:
    """Return kubectl's warnings for the user that creates the pod."""
    arguments = (
        kubectl.program(),
        "--kubeconfig",
        str(cluster.server.kubeconfig),
        "create",
        "--dry-run=server",
        "-f",
        "-",
    )
    manifest = json.dumps({"apiVersion": "v1", "kind": "Pod", **pod})
    made = subprocess.run(arguments, input=manifest, capture_output=True, text=True, timeout=60, check=True)
    return made.stderr


@pytest.mark.usefixtures("api")
async def test_missed_container_is_a_warning_to_the_user(cluster: Cluster) -> None:
    missed, launched = wanted({"trainer": {}}), wanted({"trainer": {"command": TRAIN}})
    await eventually.true(lambda: "without the launcher: trainer." in warnings(cluster, missed))
    assert "launcher" not in warnings(cluster, launched)
