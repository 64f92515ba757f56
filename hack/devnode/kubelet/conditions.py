"""The pod conditions that kubelet owns (``pkg/kubelet/status/generate.go``). Pure.

Every other condition in the API belongs to somebody else and is never touched.
"""

from collections.abc import Iterable, Mapping, Sequence

from agent.model.workloads import ContainerRole
from hack.devnode.kubelet import phase as phases
from hack.devnode.kubelet.spec import RESTART_ALL, Json, Pod

OWNED = frozenset(
    {
        "PodScheduled",
        "Initialized",
        "Ready",
        "ContainersReady",
        "PodReadyToStartContainers",
        "AllContainersRestarting",
    }
)


def conditions(
    *,
    pod: Pod,
    statuses: Mapping[str, Json],
    phase: str,
    sandbox_ready: bool,
    restarting_all: bool,
    previous: Sequence[Json],
    now: str,
) -> list[Json]:
    """Return kubelet's conditions, each with the time of its last change (``now`` is an API time)."""
    known = {item["type"]: item for item in previous}
    containers_ready = _containers_ready(pod=pod, statuses=statuses, phase=phase)
    made = [
        _condition("PodReadyToStartContainers", value=sandbox_ready),
        _initialized(pod=pod, statuses=statuses, phase=phase, was=known.get("Initialized")),
        _ready(containers_ready, pod=pod, all_conditions=previous),
        containers_ready,
        _condition("PodScheduled", value=True),
    ]
    if any(rule.action == RESTART_ALL for container in pod.containers() for rule in container.rules):
        active = restarting_all and phase not in phases.TERMINAL
        made.append(
            _condition(
                "AllContainersRestarting",
                value=active,
                reason="RestartAllContainersStarted" if active else "",
                message="container exited with restart policy rule" if active else "",
            )
        )
    generation = pod.raw["metadata"].get("generation", 1)
    return [_dated(item, before=known.get(item["type"]), now=now) | {"observedGeneration": generation} for item in made]


def _condition(kind: str, *, value: bool, reason: str = "", message: str = "") -> Json:
    made: Json = {"type": kind, "status": "True" if value else "False", "lastProbeTime": None}
    if reason:
        made["reason"] = reason
    if message:
        made["message"] = message
    return made


def _dated(made: Json, *, before: Json | None, now: str) -> Json:
    unchanged = before is not None and before["status"] == made["status"]
    return {**made, "lastTransitionTime": before["lastTransitionTime"] if unchanged and before else now}


def _containers_ready(*, pod: Pod, statuses: Mapping[str, Json], phase: str) -> Json:
    if phase in phases.TERMINAL:
        reason = "PodFailed" if phase == phases.FAILED else "PodCompleted"
        return _condition("ContainersReady", value=False, reason=reason)
    watched = [item.name for item in pod.containers() if item.role is not ContainerRole.INIT]
    unready = [name for name in watched if not (statuses.get(name) or {}).get("ready")]
    if unready:
        return _condition(
            "ContainersReady",
            value=False,
            reason="ContainersNotReady",
            message=f"containers with unready status: {_go_list(unready)}",
        )
    return _condition("ContainersReady", value=True)


def _ready(containers_ready: Json, *, pod: Pod, all_conditions: Sequence[Json]) -> Json:
    if containers_ready["status"] != "True":
        return {**containers_ready, "type": "Ready"}
    values = {item["type"]: item["status"] for item in all_conditions}
    gates = [gate["conditionType"] for gate in pod.spec.get("readinessGates") or ()]
    closed = [gate for gate in gates if values.get(gate) != "True"]
    if closed:
        return _condition(
            "Ready",
            value=False,
            reason="ReadinessGatesNotReady",
            message=", ".join(_gate_message(gate, values.get(gate)) for gate in closed),
        )
    return _condition("Ready", value=True)


def _gate_message(gate: str, value: str | None) -> str:
    if value is None:
        return f'corresponding condition of pod readiness gate "{gate}" does not exist.'
    return f'the status of pod readiness gate "{gate}" is not "True", but {value}'


def _initialized(*, pod: Pod, statuses: Mapping[str, Json], phase: str, was: Json | None) -> Json:
    if phase == phases.SUCCEEDED:
        return _condition("Initialized", value=True, reason="PodCompleted")
    missing = [
        item.name
        for item in pod.inits
        if not (statuses.get(item.name) or {}).get("started" if item.role is ContainerRole.SIDECAR else "ready")
    ]
    begun = any(_has_started(statuses.get(item.name)) for item in pod.mains)
    if not missing or begun or (was is not None and was["status"] == "True"):
        return _condition("Initialized", value=True)
    return _condition(
        "Initialized",
        value=False,
        reason="ContainersNotInitialized",
        message=f"containers with incomplete status: {_go_list(missing)}",
    )


def _has_started(status: Json | None) -> bool:
    """Whether a main container runs or has ended (``HasAnyRegularContainerStarted``)."""
    return status is not None and "waiting" not in status["state"]


def _go_list(names: Iterable[str]) -> str:
    return f"[{' '.join(names)}]"
