"""The product's assumptions on a pod's life: order of starts, final exits, rules, backoff, devices."""

import contextlib

import pytest

from hack.devnode.deviceplugin import DevicePlugin
from kubemend.agent.clients.podresources.client import PodResourcesClient
from kubemend.agent.sources import allocated_resources
from kubemend.common.kube import paths
from tests import background, eventually
from tests.contract.kubelet.cluster import (
    LOOP,
    Cluster,
    Json,
    conditions,
    container,
    is_ready,
    obeying,
    restarts,
    runs_again,
    status_of,
)

pytestmark = [pytest.mark.devnode, pytest.mark.asyncio(loop_scope="package")]

VOLUME = {"volumes": [{"name": "d", "emptyDir": {}}]}
MOUNT = {"volumeMounts": [{"name": "d", "mountPath": "/d"}]}


async def test_init_then_sidecar_then_main_run_in_order(cluster: Cluster) -> None:
    pod = await cluster.running(
        container(
            "main",
            f"echo main >> /d/order; {LOOP}",
            readinessProbe={"exec": {"command": ["grep", "main", "/d/order"]}, "periodSeconds": 1},
            **MOUNT,
        ),
        inits=[
            container("init", "echo init >> /d/order", **MOUNT),
            container(
                "side",
                f"echo side >> /d/order; sleep 0.5; echo started >> /d/order; touch /tmp/up; {LOOP}",
                restartPolicy="Always",
                startupProbe={"exec": {"command": ["test", "-e", "/tmp/up"]}, "periodSeconds": 1},
                **MOUNT,
            ),
        ],
        **VOLUME,
    )
    assert cluster.volume(pod, "d").joinpath("order").read_text().split() == ["init", "side", "started", "main"]
    assert pod["status"]["phase"] == "Running"
    assert {"Initialized", "Ready", "ContainersReady", "PodReadyToStartContainers"} <= {
        kind for kind, value in conditions(pod).items() if value == "True"
    }
    assert status_of(pod, "init")["state"]["terminated"]["exitCode"] == 0
    assert [status_of(pod, name)["ready"] for name in ("init", "side", "main")] == [True, True, True]


async def test_first_crash_restarts_at_once_and_the_next_one_backs_off(cluster: Cluster) -> None:
    pod = await cluster.running(container("main", obeying()))
    await cluster.signal(pod, exit_code=3)
    once = await cluster.wait(pod, runs_again(1))
    assert status_of(once)["lastState"]["terminated"]["exitCode"] == 3
    await cluster.signal(pod, exit_code=4)
    waiting = await cluster.wait(
        pod, lambda now: status_of(now)["state"].get("waiting", {}).get("reason") == "CrashLoopBackOff"
    )
    assert waiting["status"]["phase"] == "Running"
    assert restarts(waiting) == 1
    await cluster.wait(pod, runs_again(2))


@pytest.mark.parametrize(
    ("policy", "exit_code", "phase"),
    [
        pytest.param("Never", 1, "Failed", id="never-and-error-fails"),
        pytest.param("Never", 0, "Succeeded", id="never-and-success-succeeds"),
        pytest.param("OnFailure", 0, "Succeeded", id="on-failure-and-success-succeeds"),
    ],
)
async def test_an_exit_that_is_final_ends_the_pod(cluster: Cluster, policy: str, exit_code: int, phase: str) -> None:
    pod = await cluster.running(container("main", obeying()), policy=policy)
    await cluster.signal(pod, exit_code=exit_code)
    ended = await cluster.wait(pod, lambda now: now["status"]["phase"] in ("Failed", "Succeeded"))
    assert ended["status"]["phase"] == phase
    assert status_of(ended)["state"]["terminated"]["exitCode"] == exit_code
    assert restarts(ended) == 0


async def test_a_container_rule_restarts_under_never(cluster: Cluster) -> None:
    rule = {"action": "Restart", "exitCodes": {"operator": "In", "values": [7]}}
    pod = await cluster.running(
        container("main", obeying(), restartPolicy="Never", restartPolicyRules=[rule]), policy="Never"
    )
    await cluster.signal(pod, exit_code=7)
    await cluster.wait(pod, runs_again(1))
    await cluster.signal(pod, exit_code=8)
    ended = await cluster.wait(pod, lambda now: now["status"]["phase"] == "Failed")
    assert restarts(ended) == 1


async def test_restart_all_containers_runs_everything_again(cluster: Cluster) -> None:
    rule = {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [137]}}
    pod = await cluster.running(
        container("main", obeying(), restartPolicy="Never", restartPolicyRules=[rule], **MOUNT),
        container("other", LOOP),
        inits=[container("init", "echo again >> /d/init", **MOUNT)],
        policy="Never",
        **VOLUME,
    )
    await cluster.signal(pod, exit_code=137)
    after = await cluster.wait(pod, lambda now: is_ready(now) and restarts(now, "other") > 0 and restarts(now) > 0)
    assert cluster.volume(pod, "d").joinpath("init").read_text().split() == ["again", "again"]
    assert after["status"]["phase"] == "Running"


async def test_devices_are_allocated_once_and_kept_over_restarts(cluster: Cluster) -> None:
    pod = await cluster.running(
        container("main", obeying(), resources={"limits": {"nvidia.com/gpu": "2"}}), policy="OnFailure"
    )
    await cluster.signal(pod, exit_code=1)
    await cluster.wait(pod, runs_again(1))
    async with PodResourcesClient(str(cluster.node.kubelet.pod_resources_socket), report=lambda _: None) as resources:
        held = await resources.list()
    mine = [item for item in held.items if item.pod_name == pod["metadata"]["name"]]
    assert [(item.container, item.devices) for item in mine] == [("main", frozenset(cluster.node.gpu_uuids))]


async def test_kubelet_would_allocate_only_what_its_plugin_reports_as_healthy(cluster: Cluster) -> None:
    """The only evidence about a device whose last pod has ended: nothing else says that its plugin reports it again."""
    name, one, two = "example.com/gpu", "GPU-one", "GPU-two"
    socket = str(cluster.node.kubelet.pod_resources_socket)
    plugin = DevicePlugin(cluster.node.kubelet.device_plugins, resource=name, ids=(one, two), socket="example.sock")
    async with PodResourcesClient(socket, report=lambda _: None) as resources, contextlib.AsyncExitStack() as running:

        async def offers(*devices: str) -> bool:
            return await resources.allocatable() & {one, two} == set(devices)

        async def node_offers() -> bool:
            node = await cluster.kube.get(f"{paths.NODES}/{cluster.node.name}")
            return bool(node["status"]["allocatable"].get(name) == "1")

        await running.enter_async_context(background.running(plugin.run()))
        await eventually.true(lambda: offers(one, two))
        plugin.report([two])
        await eventually.true(lambda: offers(one))
        await eventually.true(node_offers)
        pod = await cluster.running(container("main", LOOP, resources={"limits": {name: "1"}}))
        assert health(pod) == {(name, one): "Healthy"}
        plugin.report([one, two])
        await cluster.wait(pod, lambda now: health(now) == {(name, one): "Unhealthy"})
        await cluster.delete(pod)
        await cluster.gone(pod)
        assert await offers()
        plugin.report([two])
        await eventually.true(lambda: offers(one))
        await running.aclose()
        await eventually.true(offers)


def health(pod: Json) -> dict[tuple[str, str], str]:
    """Return the health of the pod's devices as the agent reads it from the pod's status."""
    return {(each.resource, each.id): each.health.value for each in allocated_resources.read(pod["status"])}
