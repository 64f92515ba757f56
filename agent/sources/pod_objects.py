"""Convert a pod object of the API to a ``PodView``. Pure; missing fields have the API's defaults.

The view has only the fields in use: most of a pod's bytes are its environment, its volumes and annotations of other
tools.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, Final

from kubemend.agent.model import conditions
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRole,
    ContainerSpec,
    ExecHook,
    Hook,
    HttpHook,
    OwnerRef,
    PodRef,
    PodUid,
    PodView,
    Probe,
    RestartPolicy,
    RestartRule,
    RuleAction,
    SleepHook,
    UnsupportedHook,
)
from kubemend.agent.restart import admission, options
from kubemend.agent.sources import allocated_resources
from kubemend.common import gangs, targets

Object = Mapping[str, Any]

MOST_OF_A_POD: Final = 256 * 1024
"""Maximum number of bytes kept of one pod; some thousand are usual. Hooks and container names can be long."""
MOST_OF_A_NAMESPACE: Final = 32 * 2**20
MOST_OF_ALL: Final = 64 * 2**20
"""Bytes kept of all pods of the node, some 18,000 ordinary ones: a sixth of the agent's limit of 384 MiB.

With 76 MiB for the agent itself, 24 MiB for the runtime's data, and 57 MiB while one huge object is read, 163 MiB are
left for devices, restarts and rounds, and for a list after an outage, which holds pods that have changed twice.
"""
_LONGEST_ANNOTATION: Final = 1001
"""Maximum number of characters kept: one more than is accepted, so that an annotation that is too long is still
refused.
"""
_MOST_UNKNOWN: Final = 8
"""Names of annotations that may be misspelled; they are reported."""
_TOO_MUCH: Final = (
    f"(not kept: the pod has more than {MOST_OF_A_POD >> 10} KiB of hooks, labels and annotations, or "
    f"those of its namespace {MOST_OF_A_NAMESPACE >> 20} MiB, or most of {MOST_OF_ALL >> 20} MiB for all; shorten them)"
)
_OF_OTHERS: Final = (
    admission.MIRROR_ANNOTATION,
    admission.CONFIG_SOURCE_ANNOTATION,
    gangs.JOBSET_ATTEMPT,
)
_OF_GANGS: Final = (
    *(gangs.GANG, gangs.JOBSET_NAME, gangs.JOB_NAME, gangs.JOB_INDEX),
    *(gangs.LWS_NAME, gangs.LWS_GROUP),
)


def pod_view(obj: Object) -> PodView:
    """Return the view of a v1 Pod. One that has ended has no hooks: nothing of it is stopped or started any more.

    Raises KeyError or ValueError when it is invalid (no name, no UID, an unknown enum).
    """
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    view = PodView(
        ref=PodRef(namespace=metadata["namespace"], name=metadata["name"], uid=PodUid(metadata["uid"])),
        phase=status.get("phase", "Pending"),
        restart_policy=RestartPolicy(spec.get("restartPolicy", "Always")),
        containers=tuple(_containers(spec, status)),
        annotations=MappingProxyType(dict(_annotations(metadata.get("annotations") or {}))),
        labels=MappingProxyType(
            {key: text for key, text in (metadata.get("labels") or {}).items() if key in _OF_GANGS}
        ),
        owner=_owner(metadata),
        deleting="deletionTimestamp" in metadata,
        leaving=_leaving(status),
        pod_ip=status.get("podIP") or None,
        node_name=spec.get("nodeName", ""),
        resource_version=metadata.get("resourceVersion", ""),
        conditions=tuple(conditions.ours(status)),
        resource_health=allocated_resources.read(status),
        reads_restarts=_reads_restarts(spec),
    )
    return _finished(view) if view.is_over else view


def bare(pod: PodView) -> PodView:
    """Return the minimal view of a pod that is too large: its identity, and that it cannot be restarted."""
    of_others = {key: text for key, text in pod.annotations.items() if key in _OF_OTHERS}
    return replace(
        pod,
        containers=(),
        annotations=MappingProxyType({**of_others, options.RESTART: _TOO_MUCH}),
        owner=None,
        resource_health=(),
    )


def _finished(pod: PodView) -> PodView:
    """Return a pod that has ended without its hooks and the health of its former devices, which are not used."""
    containers = tuple(replace(each, post_start=None, pre_stop=None) for each in pod.containers)
    return replace(pod, containers=containers, resource_health=())


def _annotations(given: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the annotations that kubemend uses, and the names of some that it does not know."""
    for key, text in given.items():
        if key in options.USED or key in _OF_OTHERS:
            yield key, text[:_LONGEST_ANNOTATION]
    for key in itertools.islice(filter(options.is_unknown, given), _MOST_UNKNOWN):
        yield key, ""


_RESTARTS_FIELD: Final = f"metadata.annotations['{options.RESTARTS}']"


def _reads_restarts(spec: Object) -> bool:
    """Return whether a downward API volume of the pod, or part of a projected one, has the annotation."""
    for volume in spec.get("volumes") or ():
        sources = [volume, *((volume.get("projected") or {}).get("sources") or ())]
        for item in (item for each in sources for item in (each.get("downwardAPI") or {}).get("items") or ()):
            if (item.get("fieldRef") or {}).get("fieldPath") == _RESTARTS_FIELD:
                return True
    return False


_LEAVES_FOR: Final = frozenset({"Evicted", "Preempting", "Terminated", "NodeShutdown", "NodeLost"})
"""``status.reason`` of pods that Kubernetes ends (pkg/kubelet: eviction, preemption, nodeshutdown; nodelifecycle)."""
_MOST_REASON: Final = 100


def _leaving(status: Object) -> str:
    """Return why Kubernetes ends a pod: the condition of KEP-3329, or kubelet's own reason. Empty: it does not."""
    for condition in status.get("conditions") or ():
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return str(condition.get("reason") or "DisruptionTarget")[:_MOST_REASON]
    reason = str(status.get("reason") or "")
    return reason if reason in _LEAVES_FOR else ""


def _containers(spec: Object, status: Object) -> Iterator[ContainerSpec]:
    for container in spec.get("initContainers") or ():
        # KEP-753: an init container that is always restarted is a sidecar.
        sidecar = container.get("restartPolicy") == RestartPolicy.ALWAYS.value
        yield _container(container, ContainerRole.SIDECAR if sidecar else ContainerRole.INIT, _statuses(status, "init"))
    for container in spec.get("containers") or ():
        yield _container(container, ContainerRole.MAIN, _statuses(status, "main"))


def _statuses(status: Object, kind: str) -> Mapping[str, Object]:
    field = "initContainerStatuses" if kind == "init" else "containerStatuses"
    return {item["name"]: item for item in status.get(field) or ()}


def _container(container: Object, role: ContainerRole, statuses: Mapping[str, Object]) -> ContainerSpec:
    status = statuses.get(container["name"], {})
    policy = container.get("restartPolicy")
    return ContainerSpec(
        name=container["name"],
        role=role,
        restart_policy=RestartPolicy(policy) if policy else None,
        restart_rules=tuple(_restart_rule(rule) for rule in container.get("restartPolicyRules") or ()),
        post_start=_hook(container, "postStart"),
        pre_stop=_hook(container, "preStop"),
        has_startup_probe=bool(container.get("startupProbe")),
        liveness=_probe(container.get("livenessProbe")),
        startup=_probe(container.get("startupProbe")),
        container_id=_container_id(status.get("containerID")),
        restart_count=int(status.get("restartCount", 0)),
        running="running" in (status.get("state") or {}),
        started=bool(status.get("started")),
        succeeded=_succeeded(status.get("state") or {}),
        backs_off=_backs_off(status.get("state") or {}),
        holds_devices=targets.holds_devices(container),
        image=str(container.get("image") or ""),
    )


def _succeeded(state: Object) -> bool:
    return (state.get("terminated") or {}).get("exitCode") == 0


def _backs_off(state: Object) -> bool:
    return (state.get("waiting") or {}).get("reason") == _BACK_OFF


def _probe(probe: Object | None) -> Probe | None:
    """Return the timing of a probe; missing fields have the API's defaults (``pkg/apis/core/v1/defaults.go``)."""
    if not probe:
        return None
    return Probe(
        initial_delay=float(probe.get("initialDelaySeconds") or 0),
        period=float(probe.get("periodSeconds") or 10),
        failure_threshold=int(probe.get("failureThreshold") or 3),
    )


_BACK_OFF: Final = "CrashLoopBackOff"  # pkg/kubelet/kuberuntime: ErrCrashLoopBackOff
_RULE_ACTIONS: Final = {action.value: action for action in RuleAction}


def _restart_rule(rule: Object) -> RestartRule:
    """Convert one rule; exit codes are its only condition (``pkg/api/v1/pod/util.go``)."""
    codes = rule.get("exitCodes") or {}
    return RestartRule(
        action=_RULE_ACTIONS.get(rule.get("action", ""), RuleAction.OTHER),
        exit_codes=frozenset(int(code) for code in codes.get("values") or ()),
        inverted=codes.get("operator") == "NotIn",
    )


def _container_id(text: str | None) -> ContainerId | None:
    """Strip the runtime's prefix: ``containerd://0123…``."""
    return ContainerId(text.rpartition("://")[2]) if text else None


def _hook(container: Object, kind: str) -> Hook | None:
    """Return the handler of a lifecycle hook, as kubelet would run it (``pkg/kubelet/lifecycle/handlers.go``)."""
    match (container.get("lifecycle") or {}).get(kind):
        case None:
            return None
        case {"exec": {"command": [*command]}}:
            return ExecHook(command=tuple(command))
        case {"httpGet": dict(action)}:
            return _http_hook(action, container, kind=kind)
        case {"sleep": {"seconds": seconds}}:
            return SleepHook(seconds=int(seconds))
        case {"tcpSocket": _}:
            return UnsupportedHook(f"{kind} tcpSocket is not supported by kubelet either: it always fails")
        case handler:
            return UnsupportedHook(f"{kind} handler of unknown form: {', '.join(handler) or 'empty'}")


def _http_hook(action: Object, container: Object, *, kind: str) -> Hook:
    port = _port(action.get("port"), container)
    if port is None:
        return UnsupportedHook(
            f"{kind} httpGet refers to port {action.get('port')!r}, which the container does not have"
        )
    return HttpHook(
        port=port,
        path=action.get("path") or "/",
        scheme=action.get("scheme") or "HTTP",
        host=action.get("host") or None,
        headers=tuple((header["name"], header.get("value", "")) for header in action.get("httpHeaders") or ()),
    )


def _port(port: int | str | None, container: Object) -> int | None:
    """Resolve a port by name among the container's own, else as a number (``probe.ResolveContainerPort``)."""
    if isinstance(port, str):
        for declared in container.get("ports") or ():
            if declared.get("name") == port:
                return int(declared["containerPort"])
        return int(port) if port.isdecimal() else None
    return port


def _owner(metadata: Object) -> OwnerRef | None:
    for reference in metadata.get("ownerReferences") or ():
        if reference.get("controller"):
            group, _, version = reference["apiVersion"].rpartition("/")
            return OwnerRef(api_group=group, kind=reference["kind"], name=reference["name"], version=version)
    return None
