import contextlib
import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.model.conditions import Condition, ConditionStatus
from agent.model.workloads import (
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
from agent.sources import pod_objects
from common.kube import mirror

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
        "labels": {"app": "x"},
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


def test_pod_is_seen_whole() -> None:
    view = pod_objects.pod_view(POD)
    assert view.ref == PodRef("ml", "trainer-0", PodUid("u1"))
    assert (view.phase, view.restart_policy, view.pod_ip) == ("Running", RestartPolicy.ON_FAILURE, "10.0.0.5")
    assert (view.node_name, view.resource_version, view.deleting) == ("n1", "7", False)
    assert view.owner == OwnerRef(api_group="batch", kind="Job", name="trainer")
    assert dict(view.labels) == {"app": "x"}


def test_annotations_stay_but_for_the_copy_of_the_pod() -> None:
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


def test_restart_rules_are_read_and_the_first_that_matches_counts() -> None:
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


def test_only_our_conditions_are_kept() -> None:
    assert pod_objects.pod_view(POD).conditions == (
        Condition("kubemend.io/DevicesHealthy", ConditionStatus.FALSE, "Xid79", "gone"),
        Condition("kubemend.io/Odd", ConditionStatus.UNKNOWN, ""),
    )


def test_what_plugins_say_of_devices_is_kept() -> None:
    pod = copy.deepcopy(POD)
    resources = [{"resourceID": "GPU-a", "health": "Unhealthy"}]
    pod["status"]["containerStatuses"][0]["allocatedResourcesStatus"] = [{"name": "gpu", "resources": resources}]
    (found,) = pod_objects.pod_view(pod).resource_health
    assert (found.resource, found.id, found.health) == ("gpu", "GPU-a", ReportedHealth.UNHEALTHY)


def test_deletion_is_seen() -> None:
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
def test_hooks_that_we_cannot_run_are_said_to_be(handler: dict[str, Any]) -> None:
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
def test_what_a_pod_may_lack_it_may_lack(dropped: set[str], *, nulls: bool) -> None:
    metadata = {key: value for key, value in POD["metadata"].items() if key not in dropped}
    bare = {"metadata": metadata, "spec": {}, "status": None if nulls else {}}
    view = pod_objects.pod_view(bare)
    assert (view.phase, view.restart_policy, view.containers) == ("Pending", RestartPolicy.ALWAYS, ())


def places(value: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    """Return the path of everything in an object but itself."""
    below = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [found for key, each in below for found in ((*path, key), *places(each, (*path, key)))]


ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)


@given(place=st.sampled_from(places(POD)), other=ANY_JSON)
def test_a_pod_with_anything_anywhere_is_read_or_not_understood(place: tuple[str | int, ...], other: Any) -> None:
    """Anything else that it raised would be the end of the agent."""
    pod = copy.deepcopy(POD)
    at: Any = pod
    for key in place[:-1]:
        at = at[key]
    at[place[-1]] = other
    with contextlib.suppress(*mirror.NOT_UNDERSTOOD):
        assert isinstance(pod_objects.pod_view(pod), PodView)
