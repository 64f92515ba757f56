"""The whole ``status`` of a pod for the API, and the two things kubelet refuses to tell. Pure.

Kubelet drops every status update of a pod in which a container leaves ``terminated`` although it may not restart
(``checkContainerStateTransition``), and holds a terminal phase back while containers may still run
(``mergePodStatus``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from agent.model.workloads import ContainerRole, ContainerState, RestartPolicy
from hack.devnode.kubelet import conditions, phase, quantities, rules, statuses
from hack.devnode.kubelet.observed import Runtime
from hack.devnode.kubelet.spec import RESTART_ALL, Container, Json, Pod


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a status is made of. ``previous`` is the status that was reported last; ``now`` an API time."""

    pod: Pod
    runtime: Runtime
    previous: Json
    failures: Mapping[str, statuses.StartFailure]
    probes: rules.ProbeResults
    host_ip: str
    now: str
    all_stopped: bool = False


def generate(inputs: Inputs) -> Json:
    """Return the status that the API should have."""
    pod, runtime, previous = inputs.pod, inputs.runtime, inputs.previous
    asked = restarting_all(pod=pod, runtime=runtime, previous=previous)
    converter = statuses.Converter(
        pod=pod, runtime=runtime, previous=by_name(previous), failures=inputs.failures, restarting_all=asked
    )
    raw_inits, raw_mains = converter.statuses(pod.inits), converter.statuses(pod.mains)
    current = phase.phase_of(
        pod=pod,
        statuses={item["name"]: item for item in (*raw_inits, *raw_mains)},
        main_active=any(runtime.in_newest_sandbox(container.name) for container in pod.mains),
        all_stopped=inputs.all_stopped,
    )
    current = _sticky(current, previous, pod.status)
    inits, mains = (
        [_probed(item, pod=pod, probes=inputs.probes) for item in group] for group in (raw_inits, raw_mains)
    )
    ip = _ip(pod=pod, runtime=runtime, previous=previous, host_ip=inputs.host_ip)
    status: Json = {
        "phase": current,
        "containerStatuses": mains,
        "conditions": conditions.conditions(
            pod=pod,
            statuses={item["name"]: item for item in (*inits, *mains)},
            phase=current,
            sandbox_ready=rules.sandbox_ready(pod, runtime),
            restarting_all=asked and any(runtime.newest(item.name) for item in pod.containers()),
            previous=[*pod.status.get("conditions", ()), *previous.get("conditions", ())],
            now=inputs.now,
        ),
        "qosClass": quantities.qos_class([dict(item.raw) for item in pod.containers()]),
        "hostIP": inputs.host_ip,
        "hostIPs": [{"ip": inputs.host_ip}],
        "startTime": previous.get("startTime") or pod.status.get("startTime") or inputs.now,
        "observedGeneration": pod.raw["metadata"].get("generation", 1),
    }
    if inits:
        status["initContainerStatuses"] = inits
    if ip:
        status |= {"podIP": ip, "podIPs": [{"ip": ip}]}
    for key in ("reason", "message"):
        if previous.get("phase") == current and previous.get(key):
            status[key] = previous[key]
    return status


def by_name(status: Json) -> dict[str, Json]:
    """Return the container statuses of a pod's status, init containers too, by name."""
    return {
        item["name"]: item for key in ("initContainerStatuses", "containerStatuses") for item in status.get(key) or ()
    }


def restarting_all(*, pod: Pod, runtime: Runtime, previous: Json) -> bool:
    """Whether RestartAllContainers is under way: its condition says so, or an exit asks for it (KEP-5532)."""
    reported = {
        name: item["state"]["terminated"]["exitCode"]
        for name, item in by_name(previous).items()
        if "terminated" in item["state"]
    }
    marked = any(
        item["type"] == "AllContainersRestarting" and item["status"] == "True"
        for item in previous.get("conditions") or ()
    )
    return marked or rules.wants_restart_all(pod=pod, runtime=runtime, reported_exits=reported)


def illegal_transition(*, pod: Pod, old: Json, new: Json) -> str | None:
    """Return the name of a container that may not leave ``terminated``: then nothing of ``new`` is told."""
    if pod.restart_policy is RestartPolicy.ALWAYS or _could_restart_all(pod.containers()):
        return None
    after = by_name(new)
    for name, before in by_name(old).items():
        container = pod.container(name)
        ended = before["state"].get("terminated")
        if ended is None or container is None or container.role is ContainerRole.SIDECAR:
            continue
        if rules.restarts_after(ended["exitCode"], container=container, pod=pod):
            continue
        if name in after and "terminated" not in after[name]["state"]:
            return name
    return None


def hold_back_end(*, runtime: Runtime, old: Json, new: Json) -> Json:
    """Return ``new``, but in the old phase while containers run although the new phase would be terminal."""
    ending = new["phase"] in phase.TERMINAL and old.get("phase") not in phase.TERMINAL
    if not ending or not any(item.state is ContainerState.RUNNING for item in runtime.containers):
        return new
    held = {key: value for key, value in new.items() if key not in ("reason", "message")}
    return {**held, "phase": old.get("phase", phase.PENDING)}


def _could_restart_all(containers: Iterable[Container]) -> bool:
    return any(rule.action == RESTART_ALL for item in containers for rule in item.rules)


def _sticky(current: str, *earlier: Json) -> str:
    """A pod never leaves a terminal phase."""
    if current in phase.TERMINAL:
        ended = earlier[-1].get("phase")
        return str(ended) if ended in phase.TERMINAL else current
    return next((str(item["phase"]) for item in earlier if item.get("phase") in phase.TERMINAL), current)


def _probed(status: Json, *, pod: Pod, probes: rules.ProbeResults) -> Json:
    container = pod.container(status["name"])
    assert container is not None, "statuses are made from the spec's containers"
    return statuses.apply_probes(status, container=container, probes=probes)


def _ip(*, pod: Pod, runtime: Runtime, previous: Json, host_ip: str) -> str | None:
    if pod.host_network:
        return host_ip
    return runtime.ip or previous.get("podIP")
