"""The rights of the agents' and the controller's accounts in a full installation, with their real tokens.

Each case is one call, allowed or refused; the text of a refusal identifies the rule.
"""

import asyncio
import difflib
import functools
import os
import re
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hack.devnode import loopback, processes
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.event_messages import EventMessage
from kubemend.agent.model.workloads import PodRef, PodUid
from kubemend.agent.reporters.events import EventReporter, Outcome
from kubemend.agent.reporters.node_condition import NodeConditionReporter
from kubemend.agent.reporters.node_condition import Outcome as NodeWritten
from kubemend.agent.reporters.pod_conditions import Outcome as Written
from kubemend.agent.reporters.pod_conditions import PodConditionReporter
from kubemend.agent.restarts.slots import Slots
from kubemend.common.kube import client, errors, paths
from kubemend.controller.certificates.keeper import Keeper, KeeperOptions
from kubemend.controller.jobset.placement import device_taints
from kubemend.controller.jobset.spec import model
from kubemend.controller.model import members
from kubemend.controller.model.rounds import Recreate
from kubemend.controller.restarts import pod_replacer
from tests import background, eventually
from tests.contract.api import (
    admission_agents,
    admission_controllers,
    admission_people,
    admission_scene,
    installation,
    jobsets,
    objects,
)
from tests.contract.api.admission_calls import HERE, RULES, THERE, Case, Scene, event, job, taint_rule
from tests.contract.api.installation import Cluster
from tests.control_plane import DEADLINES

CASES = (*admission_agents.CASES, *admission_controllers.CASES, *admission_people.CASES)
ALLOWED = [case for case in CASES if not case.refused]
REFUSED = [case for case in CASES if case.refused]

KIND = "kubemend.io/DevicesHealthy"
TRY = "?dryRun=All"
ONLY_PATCHES = "denied request: the controller creates and deletes no nodes, and does not write their status"
RBAC = "rbac.authorization.k8s.io"
NAMED = {"metadata": {"name": "x"}}
POLICIES = paths.collection("validatingadmissionpolicies", group="admissionregistration.k8s.io")

NEVER = (
    Case("agent-status", "agent", lambda api, _: api.patch(f"{paths.NODES}/{THERE}/status{TRY}", {"status": {}})),
    Case("agent-events", "agent",
         lambda api, scene: api.create(f"{scene.of('events')}{TRY}", event(scene, node=THERE))),
    Case("agent-device-taints", "agent", lambda api, _: api.create(f"{RULES}{TRY}", taint_rule(THERE))),
    Case("controller-pods", "controller", lambda api, scene: api.delete(f"{scene.pod('owned')}{TRY}")),
    Case("controller-nodes", "controller",
         lambda api, _: api.patch(f"{paths.NODES}/{THERE}{TRY}", {"metadata": {"labels": {"zone": "x"}}})),
    Case("controller-jobsets", "controller",
         lambda api, scene: api.create(f"{scene.of('jobs', 'batch')}{TRY}", job("x"))),
    Case("controller-events", "controller",
         lambda api, scene: api.create(f"{scene.of('events')}{TRY}", event(scene, component="kubelet"))),
    Case("controller-own", "controller",
         lambda api, _: api.create(f"{paths.collection('secrets', namespace='kubemend')}{TRY}", NAMED)),
    Case("rounds", "person", admission_people.creates(admission_people.IMITATED, query=TRY)),
)  # fmt: skip
"""For each policy a call that it alone refuses, and that has no effect if it does not."""

Callers = dict[str, client.KubeClient]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    options = ("--runtime-config=resource.k8s.io/v1beta2=true", "--feature-gates=DRADeviceTaintRules=true")
    with installation.installed(tmp_path_factory.mktemp("admission"), options=options) as made:
        made.kubectl("apply", "--server-side", "--filename", str(jobsets.MANIFESTS / "crd.yaml"))
        made.kubectl("wait", "--for=condition=Established", "customresourcedefinition/jobsets.jobset.x-k8s.io")
        yield made


@pytest.fixture
async def administrator(cluster: Cluster) -> AsyncIterator[client.KubeClient]:
    async with cluster.administrator() as api:
        yield api


@pytest.fixture(scope="module")
def accounts(cluster: Cluster) -> Mapping[str, Path]:
    """The accounts' kubeconfigs: an agent's, the same account's without a pod, the controller's, and a person's."""

    async def written() -> Mapping[str, Path]:
        async with cluster.administrator() as administrator:
            pods = {node: await admission_scene.there_is_an_agent(administrator, node) for node in (HERE, THERE)}
        return {
            "agent": await cluster.kubeconfig(installation.AGENT, pod=pods[HERE]),
            "unbound": await cluster.kubeconfig(installation.AGENT),
            "controller": await cluster.kubeconfig(installation.CONTROLLER),
            "person": cluster.server.kubeconfig,
        }

    return asyncio.run(written())


@pytest.fixture(scope="module")
def namespace_of_refusals(cluster: Cluster, accounts: Mapping[str, Path]) -> str:
    """The namespace of a scene for all refused calls, which leave it as it is; every policy is in force."""

    async def built() -> str:
        async with cluster.administrator() as administrator, connected(accounts) as found:
            await jobsets.install(administrator)  # it is defined: this waits until it is served
            made = await admission_scene.built(administrator)
            for case in NEVER:
                await in_force(case, found, made)
            return made.namespace

    return asyncio.run(built())


@pytest.fixture
async def callers(accounts: Mapping[str, Path], namespace_of_refusals: str) -> AsyncIterator[Callers]:
    """The accounts' clients; every policy is in force."""
    async with connected(accounts) as found:
        yield found


@asynccontextmanager
async def connected(accounts: Mapping[str, Path]) -> AsyncIterator[Callers]:
    """Provide a client of each account."""
    async with AsyncExitStack() as stack:
        yield {
            name: await stack.enter_async_context(client.connect(kubeconfig=kubeconfig, deadlines=DEADLINES))
            for name, kubeconfig in accounts.items()
        }


@pytest.fixture
async def scene(administrator: client.KubeClient) -> Scene:
    return await admission_scene.built(administrator)


async def in_force(never: Case, callers: Callers, scene: Scene) -> None:
    """Return when a policy refuses: the API server needs a moment to notice it."""

    async def refuses() -> bool:
        try:
            await never.call(callers[never.caller], scene)
        except errors.ForbiddenError as error:
            return f"'kubemend-{never.name}'" in str(error)
        return False

    await eventually.true(refuses)


async def named(api: client.KubeClient, scene: Scene, name: str) -> str:
    """Return a pod's UID."""
    return str((await api.get(scene.pod(name)))["metadata"]["uid"])


@pytest.mark.parametrize("case", ALLOWED, ids=lambda case: f"{case.caller}: {case.name}")
async def test_allowed(case: Case, callers: Callers, scene: Scene) -> None:
    await case.call(callers[case.caller], scene)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: f"{case.caller}: {case.name}")
async def test_refused(
    case: Case, callers: Callers, administrator: client.KubeClient, namespace_of_refusals: str
) -> None:
    scene = Scene(namespace_of_refusals, administrator)
    with pytest.raises(errors.ForbiddenError) as refusal:
        await case.call(callers[case.caller], scene)
    assert case.refused in str(refusal.value)


async def test_every_rule_refuses_in_some_case(callers: Callers, administrator: client.KubeClient) -> None:
    policies = (await administrator.list(POLICIES)).items
    assert {policy["metadata"]["name"] for policy in policies} == {f"kubemend-{case.name}" for case in NEVER}
    for policy in policies:
        for rule in policy["spec"]["validations"]:
            assert any(is_message(rule, refused) for refused in (ONLY_PATCHES, *(case.refused for case in REFUSED))), (
                rule
            )


async def test_controller_that_was_given_rights_to_nodes_only_patches_them(
    callers: Callers, administrator: client.KubeClient
) -> None:
    """Without these rights RBAC refuses the calls before the policy does."""
    named = {"metadata": {"name": "test-nodes"}}
    rule = {"apiGroups": [""], "resources": ["nodes", "nodes/status"], "verbs": ["create", "delete", "patch"]}
    account = {"kind": "ServiceAccount", "namespace": "kubemend", "name": installation.CONTROLLER}
    role = {"apiGroup": RBAC, "kind": "ClusterRole", **named["metadata"]}
    await administrator.create(paths.collection("clusterroles", group=RBAC), {**named, "rules": [rule]})
    binding = {**named, "roleRef": role, "subjects": [account]}
    await administrator.create(paths.collection("clusterrolebindings", group=RBAC), binding)
    api, node = callers["controller"], f"{paths.NODES}/{THERE}"
    for call in (
        lambda: api.create(f"{paths.NODES}{TRY}", NAMED),
        lambda: api.delete(f"{node}{TRY}"),
        lambda: api.patch(f"{node}/status{TRY}", {"status": {"phase": "Running"}}),
    ):
        await eventually.true(functools.partial(refused_with, call, ONLY_PATCHES))
    await administrator.delete(f"{paths.collection('clusterrolebindings', group=RBAC)}/test-nodes")
    await administrator.delete(f"{paths.collection('clusterroles', group=RBAC)}/test-nodes")
    await eventually.true(functools.partial(refused_with, lambda: api.delete(f"{node}{TRY}"), "cannot delete"))


async def refused_with(call: Callable[[], Awaitable[Any]], text: str) -> bool:
    """Return whether a call is refused with this text."""
    try:
        await call()
    except errors.ForbiddenError as error:
        return text in str(error)
    return False


def is_message(rule: Mapping[str, Any], refused: str) -> bool:
    """Return whether this text of a refusal is of the rule's message, or of its expression for one."""
    if "message" in rule:
        return refused.rpartition("denied request: ")[2] in rule["message"]
    return any(shared(each, refused) > 15 for each in re.findall(r"'([^']*)'", rule["messageExpression"]))


def shared(one: str, other: str) -> int:
    """Return the length of the longest text that is in both."""
    return difflib.SequenceMatcher(None, one, other, autojunk=False).find_longest_match().size


async def test_expressions_have_correct_types(administrator: client.KubeClient) -> None:
    async def checked() -> bool:
        return all("observedGeneration" in policy["status"] for policy in (await administrator.list(POLICIES)).items)

    await eventually.true(checked)
    for policy in (await administrator.list(POLICIES)).items:
        assert policy["status"]["typeChecking"] == {}, policy["metadata"]["name"]


async def test_agents_reporters_are_allowed(callers: Callers, administrator: client.KubeClient, scene: Scene) -> None:
    pod = PodRef(scene.namespace, "here", PodUid(await named(administrator, scene, "here")))
    outcomes: asyncio.Queue[Any] = asyncio.Queue()
    api, took = callers["agent"], outcomes.put_nowait
    pods = PodConditionReporter(api=api, look_up=lambda _: None, slots=Slots(8), on_outcome=took)
    node = NodeConditionReporter(api=api, node_name=HERE, report=lambda _: None, on_outcome=took)
    events = EventReporter(api=api, node_name=HERE, report=lambda _: None, on_outcome=lambda outcome, _: took(outcome))
    async with (
        background.running(pods.run()),
        background.running(node.run()),
        background.running(events.run()),
        asyncio.timeout(60),
    ):
        pods.set(pod, Condition(KIND, ConditionStatus.FALSE, "Xid79", "fell off the bus"))
        assert await outcomes.get() is Written.WRITTEN
        node.set(Condition(KIND, ConditionStatus.FALSE, "Xid79", "fell off the bus"))
        assert await outcomes.get() is NodeWritten.WRITTEN
        for about in (pod, None):
            events.record(EventMessage(about, "DeviceUnhealthy", scene.namespace, 1_000.0))
            assert await outcomes.get() is Outcome.WRITTEN


async def test_the_controller_has_a_pod_recreated(
    callers: Callers, administrator: client.KubeClient, scene: Scene
) -> None:
    pod = members.PodRef(scene.namespace, "asked", members.PodUid(await named(administrator, scene, "asked")))
    outcomes: asyncio.Queue[pod_replacer.Outcome] = asyncio.Queue()
    replacer = pod_replacer.PodReplacer(
        api=callers["controller"], on_outcome=lambda _, outcome, __: outcomes.put_nowait(outcome)
    )
    async with background.running(replacer.run()), asyncio.timeout(60):
        replacer.recreate(Recreate(pod, reason="DeviceFailure", message="Xid79", device_failure=True))
        assert await outcomes.get() is pod_replacer.Outcome.DELETED


async def test_the_controller_keeps_its_certificates(callers: Callers) -> None:
    await Keeper(callers["controller"], KeeperOptions(namespace="kubemend")).refresh()


async def test_the_controller_taints_a_node_and_lets_pods_back(
    callers: Callers, administrator: client.KubeClient
) -> None:
    path = f"{paths.NODES}/{THERE}"
    for change in (lambda node: device_taints.AddTaint(node, 1_000.0, "Xid79"), device_taints.RemoveTaint):
        node = device_taints.node(await administrator.get(path))
        wanted = change(node)
        await callers["controller"].patch(path, device_taints.patch(wanted), content_type=client.Patch.MERGE)
        tainted = device_taints.node(await administrator.get(path))
        assert tainted.is_tainted == isinstance(wanted, device_taints.AddTaint)


async def test_large_objects_stay_within_the_cost_of_rules(
    callers: Callers, administrator: client.KubeClient, scene: Scene
) -> None:
    """An expression that costs too much refuses (k8s.io/apiserver, pkg/apis/cel): objects get no larger than this."""
    images = [{"names": [f"registry.example.com/{n}/{i}:1" for i in range(5)], "sizeBytes": 1} for n in range(50)]
    conditions = [objects.condition(f"example.com/{n}", message="x" * 1024) for n in range(40)]
    of_node = {"conditions": conditions, "images": images, "capacity": {f"example.com/{n}": "1" for n in range(40)}}
    await administrator.patch_status(f"{paths.NODES}/{HERE}", {"status": of_node})
    waiting = {"waiting": {"reason": "ImagePullBackOff", "message": "x" * 1024}}
    containers = [{"name": f"c{n}", "image": "a", "imageID": "", "ready": False, "restartCount": 0, "state": waiting}
                  for n in range(100)]  # fmt: skip
    of_pod = {"status": {"conditions": conditions, "containerStatuses": containers}}
    for name in ("here", "asked"):
        await administrator.patch_status(scene.pod(name), of_pod)
    ours = {"status": {"conditions": [objects.condition(KIND, message="x" * 1024)]}}
    await callers["agent"].patch_status(scene.pod("here"), ours)
    await callers["agent"].patch_status(f"{paths.NODES}/{HERE}", ours)
    marked = {"status": {"conditions": [objects.condition("DisruptionTarget")]}}
    await callers["controller"].patch_status(scene.pod("asked"), marked)


@asynccontextmanager
async def controller(cluster: Cluster, directory: Path) -> AsyncIterator[Path]:
    """Run the controller as a process with its account's token; yields its log."""
    log = directory / "controller.log"
    flags = {
        "kubeconfig": await cluster.kubeconfig(installation.CONTROLLER),
        "pod-name": "controller-1",
        "hub-address": f"127.0.0.1:{loopback.free_port()}",
        "metrics-address": f"127.0.0.1:{loopback.free_port()}",
    }
    child = processes.Child.start(
        [sys.executable, "-m", "kubemend.cli", "controller", *(f"--{name}={value}" for name, value in flags.items())],
        name="kubemend controller",
        log=log,
        pid_file=directory / "controller.pid",
        environment={**os.environ, "POD_NAMESPACE": "kubemend"},
    )
    try:
        yield log
    finally:
        await child.stop(grace=30.0)


async def test_the_controllers_process_leads_and_runs_a_jobset(
    cluster: Cluster, administrator: client.KubeClient, callers: Callers, scene: Scene, tmp_path: Path
) -> None:
    made = admission_scene.jobset("made", manager=model.MANAGED_BY)
    await administrator.create(jobsets.collection(scene.namespace), made)

    async def is_run() -> bool:
        listed = [await administrator.list(scene.of(*each)) for each in (("jobs", "batch"), ("services",))]
        status = (await administrator.get(f"{jobsets.collection(scene.namespace)}/made")).get("status", {})
        return all("made" in str(objects.names(each.items)) for each in listed) and "conditions" in status

    async with controller(cluster, tmp_path) as log:
        await eventually.true(is_run, look_again=0.2)
    assert "forbidden" not in log.read_text()
