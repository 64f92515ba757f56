"""The pod's phase from its container statuses (kubelet's ``getPhase``). Pure."""

from collections.abc import Mapping
from dataclasses import dataclass

from agent.model.workloads import ContainerRole
from hack.devnode.kubelet import rules
from hack.devnode.kubelet.spec import Container, Json, Pod
from hack.devnode.kubelet.statuses import RESTARTING_ALL

PENDING, RUNNING, SUCCEEDED, FAILED = "Pending", "Running", "Succeeded", "Failed"
TERMINAL = frozenset({SUCCEEDED, FAILED})


@dataclass(slots=True)
class _Count:
    pending_init: int = 0
    pending_sidecar: int = 0
    failed_init: int = 0
    unknown: int = 0
    running: int = 0
    waiting: int = 0
    stopped: int = 0
    stopped_for_good: int = 0
    succeeded: int = 0


def phase_of(*, pod: Pod, statuses: Mapping[str, Json], main_active: bool, all_stopped: bool) -> str:
    """Return the phase. ``main_active`` is whether a main container is running or created in the runtime;
    ``all_stopped`` is whether kubelet has stopped the whole pod, so that nothing will be restarted."""
    count = _Count()
    for container in pod.containers():
        _COUNTERS[container.role](count, container, pod, statuses.get(container.name))
    if count.failed_init:
        return FAILED
    if count.pending_init or count.waiting or (count.pending_sidecar and not main_active):
        return PENDING
    if count.running and not count.unknown:
        return RUNNING
    if count.stopped and not count.unknown:
        if not all_stopped and count.stopped != count.stopped_for_good:
            return RUNNING
        return SUCCEEDED if count.stopped == count.succeeded else FAILED
    return PENDING


def _for_good(container: Container, pod: Pod, terminated: Json) -> bool:
    again = rules.restarts_after(terminated["exitCode"], container=container, pod=pod)
    return not again and terminated.get("reason") != RESTARTING_ALL


def _last_exit(status: Json) -> Json | None:
    """The exit that counts: that of a terminated container, or the last one of a waiting container."""
    state = status["state"]
    source = state if "terminated" in state else (status.get("lastState") or {}) if "waiting" in state else {}
    exit_: Json | None = source.get("terminated")
    return exit_


def _count_init(count: _Count, container: Container, pod: Pod, status: Json | None) -> None:
    exit_ = _last_exit(status) if status is not None else None
    if exit_ is None:
        count.pending_init += 1
    elif exit_["exitCode"] != 0 and _for_good(container, pod, exit_):
        count.failed_init += 1


def _count_sidecar(count: _Count, _container: Container, _pod: Pod, status: Json | None) -> None:
    if status is None:
        count.unknown += 1
    elif "running" in status["state"]:
        count.running += 1
        count.pending_sidecar += not status.get("started")
    elif _last_exit(status) is None:
        count.pending_sidecar += 1
        count.waiting += 1


def _count_main(count: _Count, container: Container, pod: Pod, status: Json | None) -> None:
    if status is None:
        count.unknown += 1
    elif "running" in status["state"]:
        count.running += 1
    elif (exit_ := _last_exit(status)) is None:
        count.waiting += 1
    else:
        count.stopped += 1
        count.stopped_for_good += _for_good(container, pod, exit_)
        count.succeeded += "terminated" in status["state"] and exit_["exitCode"] == 0


_COUNTERS = {
    ContainerRole.INIT: _count_init,
    ContainerRole.SIDECAR: _count_sidecar,
    ContainerRole.MAIN: _count_main,
}
