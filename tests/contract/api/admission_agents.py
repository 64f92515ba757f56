"""Cases of what an agent's token allows and does not allow."""

from typing import Final

from kubemend.common.kube import client, paths
from kubemend.controller.restarts import names
from tests.contract.api import objects, restarts
from tests.contract.api.admission_calls import (
    HERE,
    RULES,
    THERE,
    Case,
    Scene,
    changes_event,
    condition,
    deleted,
    makes,
    owned,
    patched,
    records_event,
    status,
    taint_rule,
    taints,
)

OURS: Final = "kubemend.io/DevicesHealthy"

SPEAKS: Final = (
    "kubemend-agent-status' denied request: the agent of node node-here may write only about that node and its pods"
)
NO_OTHERS: Final = (
    "kubemend-agent-status' denied request: an agent writes conditions whose type begins with kubemend.io/"
)
NOTHING_BUT: Final = "kubemend-agent-status' denied request: an agent may write only the conditions of a status"
NO_METADATA: Final = (
    "kubemend-agent-status' denied request: an agent changes no labels, annotations, finalizers or owners"
)
IN_ITS_NAME: Final = (
    "kubemend-agent-events' denied request: the agent of node node-here may record Events only as kubemend"
)
OF_ITS_NODE: Final = (
    "kubemend-agent-events' denied request: the agent of node node-here may record Events only of pods and"
)
ONLY_TIME: Final = (
    "kubemend-agent-events' denied request: an agent may change only message, count and time of an existing"
)
NO_NODE: Final = "denied request: the token names no node"
NO_RIGHT: Final = 'User "system:serviceaccount:kubemend:kubemend-agent" cannot {} resource "{}"'


async def untaints_another_node(api: client.KubeClient, scene: Scene) -> None:
    """Delete the rule that another node's agent has created."""
    made = await scene.administrator.create(RULES, taint_rule(THERE))
    await api.delete(f"{RULES}/{made['metadata']['name']}")


async def asks_for_a_token(api: client.KubeClient, _: Scene) -> None:
    """Request the controller's token."""
    accounts = paths.collection("serviceaccounts", namespace="kubemend")
    await api.create(f"{accounts}/kubemend-controller/token", {"spec": {}})


CASES = (
    Case("its pod's condition", "agent", status("here", condition(OURS))),
    Case("changes its pod's condition", "agent", status("reported", condition(OURS, "False"))),
    Case("a condition of a pod that ends", "agent", status("ending", condition("kubemend.io/DeviceFailure"))),
    Case("its node's condition", "agent", status(HERE, condition(OURS))),
    Case("an Event about its pod", "agent", records_event()),
    Case("an Event about its node", "agent", records_event(where="default", about={"kind": "Node", "name": HERE})),
    Case("counts its Event on", "agent", changes_event(HERE, {"count": 2, "message": "again"})),
    Case("lists pods", "agent", lambda api, scene: api.list(scene.of("pods"))),
    Case("taints its node's device", "agent", taints()),
    Case("another node's pod", "agent", status("there", condition(OURS)), SPEAKS),
    Case("a pod of no node", "agent", status("nowhere", condition(OURS)), SPEAKS),
    Case("another node", "agent", status(THERE, condition(OURS)), SPEAKS),
    Case("its pod is ready", "agent", status("here", condition("Ready")), NO_OTHERS),
    Case("its pod is a target of disruption", "agent", status("here", condition("DisruptionTarget")), NO_OTHERS),
    Case("its node is ready", "agent", status(HERE, condition("Ready", "False")), NO_OTHERS),
    Case("drops kubelet's condition", "agent",
         status("reported", {"conditions": [{"type": "Ready", "$patch": "delete"}]}), NO_OTHERS),
    Case("its pod's phase", "agent", status("here", {"phase": "Failed"}), NOTHING_BUT),
    Case("its pod's address", "agent", status("here", {"podIP": "10.0.0.1", "podIPs": [{"ip": "10.0.0.1"}]}),
         NOTHING_BUT),
    Case("its node's capacity", "agent", status(HERE, {"capacity": {"nvidia.com/gpu": "64"}}),
         NOTHING_BUT),
    Case("its pod's labels by its status", "agent", status("here", condition(OURS), labels={"app": "db"}), NO_METADATA),
    Case("its pod opts in by its status", "agent",
         status("here", condition(OURS), annotations={"kubemend.io/restart": "InPlace"}), NO_METADATA),
    Case("its pod's restart counts", "agent",
         status("here", {}, annotations={"kubemend.io/restarts": "trainer=3"})),
    Case("its pod's restart counts, and more", "agent",
         status("here", {}, annotations={"kubemend.io/restarts": "x=1", "kubemend.io/restart": "InPlace"}),
         NO_METADATA),
    Case("too long restart counts", "agent",
         status("here", {}, annotations={"kubemend.io/restarts": "x" * 4097}), NO_METADATA),
    Case("another node's pod's restart counts", "agent",
         status("there", {}, annotations={"kubemend.io/restarts": "trainer=3"}), SPEAKS),
    Case("its node's restart counts", "agent", status(HERE, {}, annotations={"kubemend.io/restarts": "x=1"}),
         NO_METADATA),
    Case("its pod's finalizers by its status", "agent", status("here", {}, finalizers=["a.b/c"]), NO_METADATA),
    Case("its node's labels by its status", "agent", status(HERE, condition(OURS), labels={"zone": "x"}), NO_METADATA),
    Case("its node's owner by its status", "agent", status(HERE, {}, **owned()), NO_METADATA),
    Case("token of no pod", "unbound", status("here", condition(OURS)), NO_NODE),
    Case("token of no pod, for a node", "unbound", status(HERE, condition(OURS)), NO_NODE),
    Case("token of no pod, an Event", "unbound", records_event(), NO_NODE),
    Case("an Event in another node's name", "agent", records_event(node=THERE), IN_ITS_NAME),
    Case("an Event as kubelet", "agent", records_event(component="kubelet"), IN_ITS_NAME),
    Case("an Event about another node", "agent", records_event(where="default", about={"kind": "Node", "name": THERE}),
         OF_ITS_NODE),
    Case("an Event about a Deployment", "agent",
         records_event(where="default", about={"kind": "Deployment", "name": "a", "namespace": "default"}),
         OF_ITS_NODE),
    Case("another node's Event", "agent", changes_event(THERE, {"message": "all is well"}), IN_ITS_NAME),
    Case("turns its Event upon another pod", "agent", changes_event(HERE, {"involvedObject": {"name": "there"}}),
         ONLY_TIME),
    Case("the reason of its Event", "agent", changes_event(HERE, {"reason": "Killing"}), ONLY_TIME),
    Case("taints another node's device", "agent", taints(THERE), "belong to that node"),
    Case("evicts by a device's taint", "agent", taints(effect="NoExecute"), "and the effect NoSchedule"),
    Case("taints all devices of a driver", "agent", taints(device=""), "taints single devices"),
    Case("another node's taint", "agent", untaints_another_node, "belong to that node"),
    Case("deletes a pod", "agent", deleted("here"), NO_RIGHT.format("delete", "pods")),
    Case("changes a pod", "agent", patched("here", {"metadata": {"labels": {"app": "db"}}}),
         NO_RIGHT.format("patch", "pods")),
    Case("drains its node", "agent", patched(HERE, {"spec": {"unschedulable": True}}),
         NO_RIGHT.format("patch", "nodes")),
    Case("runs a pod", "agent", makes("pods", objects.pod("x")), NO_RIGHT.format("create", "pods")),
    Case("reads Secrets", "agent", lambda api, scene: api.list(scene.of("secrets")),
         NO_RIGHT.format("list", "secrets")),
    Case("reads the hub's key", "agent",
         lambda api, _: api.get(f"{paths.collection('secrets', namespace='kubemend')}/kubemend-hub-tls"),
         NO_RIGHT.format("get", "secrets")),
    Case("makes itself the controller", "agent", asks_for_a_token,
         NO_RIGHT.format("create", "serviceaccounts/token")),
    Case("asks for a round", "agent", makes("restarts", restarts.restart("x"), group=names.GROUP, version="v1alpha1"),
         NO_RIGHT.format("create", "restarts")),
)  # fmt: skip
