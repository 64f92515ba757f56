import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.workloads import (
    ContainerRole,
    ExecHook,
    Hook,
    HttpHook,
    OwnerRef,
    PodRef,
    PodUid,
    PodView,
    Probe,
    ReportedHealth,
    RestartPolicy,
    RestartRule,
    RuleAction,
    SleepHook,
    UnsupportedHook,
)
from kubemend.agent.restart import options
from kubemend.agent.sources import pod_objects, pods
from kubemend.common.kube import informer, shares

RULES: dict[str, Any] = {
    "restartPolicyRules": [
        {"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [137]}},
        {"action": "Restart", "exitCodes": {"operator": "NotIn", "values": [0]}},
        {"action": "Novel"},
    ]
}
POD: dict[str, Any] = {
    "metadata": {
        "namespace": "ml",
        "name": "trainer-0",
        "uid": "u1",
        "resourceVersion": "7",
        "labels": {"app": "x", "kubemend.io/gang": "g"},
        "annotations": {
            "kubemend.io/restart": "InPlace",
            "kubernetes.io/config.mirror": "abc",
            "kubectl.kubernetes.io/last-applied-configuration": "{...}",
        },
        "ownerReferences": [
            {"apiVersion": "v1", "kind": "ConfigMap", "name": "c"},
            {"apiVersion": "batch/v1", "kind": "Job", "name": "trainer", "controller": True},
        ],
    },
    "spec": {
        "nodeName": "n1",
        "restartPolicy": "OnFailure",
        "initContainers": [{"name": "setup"}, {"name": "proxy", "restartPolicy": "Always"}],
        "containers": [{"name": "main", "restartPolicy": "Never"} | RULES],
        "ephemeralContainers": [{"name": "debug"}],
    },
    "status": {
        "phase": "Running",
        "podIP": "10.0.0.5",
        "initContainerStatuses": [{"name": "proxy", "containerID": "cri-o://p1", "state": {"running": {}}}],
        "containerStatuses": [
            {"name": "main", "containerID": "containerd://m1", "restartCount": 3, "state": {"terminated": {}}}
        ],
        "conditions": [
            {"type": "Ready", "status": "False"},
            {"type": "kubemend.io/DevicesHealthy", "status": "False", "reason": "Xid79", "message": "gone"},
            {"type": "kubemend.io/Odd", "status": "Perhaps"},
        ],
    },
}


def test_pod_is_converted_completely() -> None:
    view = pod_objects.pod_view(POD)
    assert view.ref == PodRef("ml", "trainer-0", PodUid("u1"))
    assert (view.phase, view.restart_policy, view.pod_ip) == ("Running", RestartPolicy.ON_FAILURE, "10.0.0.5")
    assert (view.node_name, view.resource_version, view.deleting) == ("n1", "7", False)
    assert view.owner == OwnerRef(api_group="batch", kind="Job", name="trainer")
    assert dict(view.labels) == {"kubemend.io/gang": "g"}


def test_annotations_are_kept_except_copy_of_the_pod() -> None:
    view = pod_objects.pod_view(POD)
    assert dict(view.annotations) == {"kubemend.io/restart": "InPlace", "kubernetes.io/config.mirror": "abc"}


def test_containers_have_roles_policies_and_status() -> None:
    setup, proxy, main = pod_objects.pod_view(POD).containers
    assert (setup.role, setup.restart_policy, setup.container_id, setup.running) == (
        ContainerRole.INIT, None, None, False,
    )  # fmt: skip
    assert (proxy.role, proxy.restart_policy, proxy.container_id, proxy.running) == (
        ContainerRole.SIDECAR, RestartPolicy.ALWAYS, "p1", True,
    )  # fmt: skip
    assert (main.role, main.restart_policy) == (ContainerRole.MAIN, RestartPolicy.NEVER)
    assert (main.container_id, main.restart_count, main.running) == ("m1", 3, False)


@pytest.mark.parametrize(
    ("state", "succeeded"),
    [({"terminated": {"exitCode": 0}}, True), ({"terminated": {"exitCode": 1}}, False), ({"running": {}}, False)],
)
def test_container_that_has_ended_with_0_has_succeeded(state: dict[str, Any], succeeded: bool) -> None:
    status = {"containerStatuses": [{"name": "main", "state": state}]}
    assert pod_objects.pod_view(POD | {"status": status}).containers[2].succeeded is succeeded


def test_restart_rules_are_read_and_first_match_applies() -> None:
    main = pod_objects.pod_view(POD).containers[2]
    assert main.restart_rules == (
        RestartRule(RuleAction.RESTART_ALL, frozenset({137})),
        RestartRule(RuleAction.RESTART, frozenset({0}), inverted=True),
        RestartRule(RuleAction.OTHER, frozenset()),
    )
    actions = [rule.action if (rule := main.rule_for(code)) is not None else None for code in (137, 1, 0)]
    assert actions == [RuleAction.RESTART_ALL, RuleAction.RESTART, None]


def test_probes_hooks_and_started_are_read() -> None:
    pod = copy.deepcopy(POD)
    pod["spec"]["initContainers"][1] |= {
        "startupProbe": {"exec": {"command": ["true"]}, "initialDelaySeconds": 5},
        "livenessProbe": {"httpGet": {"port": 80}, "periodSeconds": 2, "failureThreshold": 6},
        "lifecycle": {"preStop": {"exec": {"command": ["sync"]}}},
    }
    pod["status"]["initContainerStatuses"][0]["started"] = True
    setup, proxy, _ = pod_objects.pod_view(pod).containers
    assert (proxy.has_startup_probe, proxy.started, proxy.pre_stop) == (True, True, ExecHook(("sync",)))
    assert (proxy.startup, proxy.liveness) == (Probe(5.0, 10.0, 3), Probe(0.0, 2.0, 6))
    assert (setup.startup, setup.liveness) == (None, None)
    assert (setup.has_startup_probe, setup.started, setup.pre_stop) == (False, False, None)


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s restarting failed container"}}, True),
        ({"waiting": {"reason": "CreateContainerError"}}, False),
        ({"waiting": {}}, False),
        ({"running": {"startedAt": "2026-11-01T00:00:00Z"}}, False),
        (None, False),
    ],
)
def test_backoff_of_kubelet_is_read(state: dict[str, object] | None, expected: bool) -> None:
    pod = copy.deepcopy(POD)
    pod["status"]["containerStatuses"][0]["state"] = state
    name = pod["status"]["containerStatuses"][0]["name"]
    spec = pod_objects.pod_view(pod).container(name)
    assert spec is not None
    assert spec.backs_off is expected


def test_only_kubemend_conditions_are_kept() -> None:
    assert pod_objects.pod_view(POD).conditions == (
        Condition("kubemend.io/DevicesHealthy", ConditionStatus.FALSE, "Xid79", "gone"),
        Condition("kubemend.io/Odd", ConditionStatus.UNKNOWN, ""),
    )


def test_plugin_health_of_devices_is_kept() -> None:
    pod = copy.deepcopy(POD)
    resources = [{"resourceID": "GPU-a", "health": "Unhealthy"}]
    pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"] = [{"name": "gpu", "resources": resources}]
    (found,) = pod_objects.pod_view(pod).resource_health
    assert (found.resource, found.id, found.health) == ("gpu", "GPU-a", ReportedHealth.UNHEALTHY)


@pytest.mark.parametrize(
    ("status", "leaving"),
    [
        pytest.param({"phase": "Failed", "reason": "Evicted"}, "Evicted", id="node-pressure"),
        pytest.param({"phase": "Failed", "reason": "Preempting"}, "Preempting", id="for-a-critical-pod"),
        pytest.param({"phase": "Failed", "reason": "Terminated"}, "Terminated", id="graceful-node-shutdown"),
        pytest.param({"phase": "Failed", "reason": "DeadlineExceeded"}, "", id="its-own-end"),
        pytest.param(
            {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}]},
            "EvictionByEvictionAPI",
            id="drained",
        ),
        pytest.param({"conditions": [{"type": "DisruptionTarget", "status": "False"}]}, "", id="no-longer"),
        pytest.param({"phase": "Running"}, "", id="stays"),
    ],
)
def test_pod_ended_by_kubernetes_is_leaving(status: dict[str, Any], leaving: str) -> None:
    obj = {"metadata": {"namespace": "team", "name": "train-0", "uid": "u"}, "spec": {}, "status": status}
    assert pod_objects.pod_view(obj).leaving == leaving


def test_deletion_is_read() -> None:
    pod = copy.deepcopy(POD)
    pod["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert pod_objects.pod_view(pod).deleting


@pytest.mark.parametrize(
    ("handler", "expected"),
    [
        (None, None),
        ({"exec": {"command": ["sh", "-c", "true"]}}, ExecHook(("sh", "-c", "true"))),
        ({"sleep": {"seconds": 5}}, SleepHook(5)),
        ({"httpGet": {"port": 8080}}, HttpHook(port=8080)),
        ({"httpGet": {"port": "web"}}, HttpHook(port=8000)),
        ({"httpGet": {"port": "9000"}}, HttpHook(port=9000)),
        (
            {
                "httpGet": {
                    "port": 1,
                    "path": "/x",
                    "scheme": "HTTPS",
                    "host": "h",
                    "httpHeaders": [{"name": "A", "value": "b"}],
                }
            },
            HttpHook(port=1, path="/x", scheme="HTTPS", host="h", headers=(("A", "b"),)),
        ),
    ],
)
def test_post_start_hooks_are_resolved(handler: dict[str, Any] | None, expected: Hook | None) -> None:
    assert _hook(handler) == expected


@pytest.mark.parametrize(
    "handler", [{"tcpSocket": {"port": 1}}, {"httpGet": {"port": "nowhere"}}, {"httpGet": {}}, {"novel": {}}, {}]
)
def test_unsupported_hooks_are_marked(handler: dict[str, Any]) -> None:
    assert isinstance(_hook(handler), UnsupportedHook)


def _hook(handler: dict[str, Any] | None) -> Hook | None:
    pod = copy.deepcopy(POD)
    pod["spec"]["containers"][0] |= {
        "ports": [{"name": "web", "containerPort": 8000}],
        "lifecycle": {"postStart": handler},
    }
    return pod_objects.pod_view(pod).container("main").post_start  # type: ignore[union-attr]


@given(
    dropped=st.sets(st.sampled_from(["labels", "annotations", "ownerReferences", "resourceVersion"])),
    nulls=st.booleans(),
)
def test_optional_fields_may_be_missing(dropped: set[str], *, nulls: bool) -> None:
    metadata = {key: value for key, value in POD["metadata"].items() if key not in dropped}
    bare = {"metadata": metadata, "spec": {}, "status": None if nulls else {}}
    view = pod_objects.pod_view(bare)
    assert (view.phase, view.restart_policy, view.containers) == ("Pending", RestartPolicy.ALWAYS, ())


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the paths of all values nested in an object."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, each in below for found in ((*path, key), *places(each, (*path, key)))]


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@given(place=st.sampled_from(places(POD)), other=ANY_JSON)
def test_pod_with_arbitrary_values_is_converted_or_rejected(place: tuple[str | int, ...], other: Any) -> None:
    """Any other exception would end the agent."""
    pod = copy.deepcopy(POD)
    at: Any = pod
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = other
    with contextlib.suppress(*informer.INVALID):
        assert isinstance(pod_objects.pod_view(pod), PodView)


USED_OF_A_CONTAINER = {
    "name", "image", "restartPolicy", "restartPolicyRules", "lifecycle", "startupProbe", "livenessProbe", "ports",
    "resources",
}  # fmt: skip


def test_only_these_fields_of_a_pod_are_used() -> None:
    """Fields not listed here may be arbitrarily large: they are dropped when the pod is received."""
    asked = ReadFields()
    pod_objects.pod_view(asked.about(FULL))
    assert asked.fields == {
        *("metadata", "metadata.namespace", "metadata.name", "metadata.uid", "metadata.annotations", "metadata.labels"),
        *("metadata.ownerReferences", "metadata.resourceVersion", "metadata.deletionTimestamp"),
        *("spec.volumes", "spec.volumes[].downwardAPI", "spec.volumes[].projected"),
        *("spec", "spec.restartPolicy", "spec.nodeName", "spec.initContainers", "spec.containers"),
        *(f"spec.{kind}[].{field}" for kind in ("initContainers", "containers") for field in USED_OF_A_CONTAINER),
        *("status", "status.phase", "status.reason", "status.podIP", "status.conditions", "status.containerStatuses"),
        *("status.initContainerStatuses",),
        *(
            f"status.containerStatuses[].{field}"
            for field in ("name", "containerID", "restartCount", "state", "started", "allocatedResourcesStatus")
        ),
    }


FULL: dict[str, Any] = {
    "metadata": {"namespace": "a", "name": "b", "uid": "c", "managedFields": [{"x": "y"}]},
    "spec": {
        "containers": [{"name": "m", "env": [{"name": "A"}], "lifecycle": {"preStop": {"httpGet": {"port": "web"}}}}],
        "initContainers": [{"name": "i", "args": ["x"], "lifecycle": {"preStop": {"httpGet": {"port": "web"}}}}],
        "volumes": [{"name": "v"}],
    },
    "status": {"containerStatuses": [{"name": "m", "image": "x"}]},
}


class ReadFields:
    """Objects that record which of their fields are read; ``[]`` stands for any item of a list."""

    def __init__(self) -> None:
        self.fields: set[str] = set()

    def about(self, obj: Any, path: str = "") -> Any:
        if isinstance(obj, list):
            return [self.about(each, f"{path}[]") for each in obj]
        return Noting(self, obj, path) if isinstance(obj, dict) and path.count(".") < 2 else obj


class Noting(dict[str, Any]):
    def __init__(self, asked: ReadFields, obj: dict[str, Any], path: str) -> None:
        super().__init__({key: asked.about(value, f"{path}.{key}".lstrip(".")) for key, value in obj.items()})
        self._asked, self._path = asked, path

    def _note(self, key: object) -> None:
        self._asked.fields.add(f"{self._path}.{key}".lstrip("."))

    def __getitem__(self, key: str) -> Any:
        self._note(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._note(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._note(key)
        return super().__contains__(key)


def test_annotations_are_kept_only_if_used_and_up_to_limit() -> None:
    given = {"example.com/big": "x" * 250_000, "kubemend.io/restart": "InPlace", "kubemend.io/clean": "x" * 250_000}
    view = pod_objects.pod_view({**POD, "metadata": POD["metadata"] | {"annotations": given}})
    assert view.annotations.keys() == {"kubemend.io/restart", "kubemend.io/clean"}
    with pytest.raises(options.BadAnnotationError, match="too long"):
        options.parse(view.annotations)


def test_finished_pod_is_kept_without_its_hooks() -> None:
    hook = {"exec": {"command": ["x" * 100_000]}}
    container = {"name": "main", "lifecycle": {"preStop": hook, "postStart": hook}} | RULES
    healths = [{"name": "nvidia.com/gpu", "resources": [{"resourceID": "GPU-0", "health": "Healthy"}]}]
    status = {"phase": "Failed", "containerStatuses": [{"name": "main", "allocatedResourcesStatus": healths}]}
    view = pod_objects.pod_view({**POD, "spec": {"containers": [container]}, "status": status})
    assert shares.weight(view) < 5000
    assert (view.phase, view.ref.name, view.annotations["kubemend.io/restart"]) == ("Failed", "trainer-0", "InPlace")
    assert view.container("main") is not None
    assert not view.resource_health


def test_finished_pods_of_many_namespaces_keep_their_bound() -> None:
    """Annotations of any number and size, on one node: 14 namespaces once took 435 MiB."""
    watched = shares.Shares(pods.BOUNDS)
    annotations = {f"kubemend.io/{number}": "x" * 1000 for number in range(200)} | {
        name: chr(0x1F600) * 1000 for name in options.USED
    }
    total = 0
    for number in range(14 * 160):
        about = {"name": "p", "uid": str(number), "namespace": f"n{number % 14}", "annotations": annotations}
        pod = pod_objects.pod_view({"metadata": about, "spec": {}, "status": {"phase": "Failed"}})
        kept = watched.fit(str(number), pod, namespace=pod.ref.namespace)
        total += shares.weight(kept) if not watched.is_bare(str(number)) else 0
    assert 0.9 * pod_objects.MOST_OF_ALL < total <= pod_objects.MOST_OF_ALL


def test_every_annotation_that_the_agent_reads_is_kept() -> None:
    names = {each for each in vars(options).values() if isinstance(each, str) and each.startswith(options.PREFIX)}
    names.remove(options.PREFIX)
    assert names == options.KNOWN
    view = pod_objects.pod_view({**POD, "metadata": POD["metadata"] | {"annotations": dict.fromkeys(names, "x")}})
    assert view.annotations.keys() == options.USED


def test_names_of_a_few_unknown_annotations_are_kept() -> None:
    given = {f"kubemend.io/{number}": "x" * 1000 for number in range(100)} | {"example.com/restart": "x"}
    view = pod_objects.pod_view({**POD, "metadata": POD["metadata"] | {"annotations": given}})
    assert dict(view.annotations) == {f"kubemend.io/{number}": "" for number in range(8)}


def test_oversized_pod_keeps_its_identity_and_cannot_be_restarted() -> None:
    whole = pod_objects.pod_view(POD)
    view = pod_objects.bare(whole)
    assert (view.ref, view.phase, view.deleting) == (whole.ref, whole.phase, whole.deleting)
    with pytest.raises(options.BadAnnotationError, match=r"not kept: the pod has more than 256 KiB of hooks"):
        options.parse(view.annotations)


@pytest.mark.parametrize(
    "huge",
    [
        {"metadata": POD["metadata"] | {"ownerReferences": [
            {"apiVersion": "v1", "kind": "K", "name": "x" * 10**6, "controller": True}]}},
        {"spec": {"containers": [{"name": f"c{number}"} for number in range(20_000)]}},
        {"spec": {"containers": [{"name": "c", "lifecycle": {"preStop": {"exec": {"command": ["x" * 10**6]}}}}]}},
    ],
    ids=["owner", "containers", "hook"],
)  # fmt: skip
def test_huge_fields_are_not_kept(huge: dict[str, Any]) -> None:
    kept = shares.Shares(pods.BOUNDS)
    view = kept.fit("u1", pod_objects.pod_view({**POD, **huge}), namespace="ml")
    assert kept.is_bare("u1")
    assert shares.weight(view) < 5000


@pytest.mark.parametrize("field", ["labels", "annotations"])
def test_labels_and_annotations_that_nothing_uses_take_no_room(field: str) -> None:
    many = POD["metadata"][field] | {f"example.com/{number}": "x" * 60 for number in range(20_000)}
    view = pod_objects.pod_view({**POD, "metadata": POD["metadata"] | {field: many}})
    assert view == pod_objects.pod_view(POD)
    assert shares.weight(view) < 10_000
