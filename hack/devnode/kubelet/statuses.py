"""Container statuses for the API, from what the runtime shows and what the API was told last.

Pure; the rules are those of kubelet's ``convertToAPIContainerStatuses``: the newest two containers of a name give
``state`` and ``lastState``, a container that vanished while it ran counts as terminated by 137, ``restartCount`` never
goes down, and a container that is about to be restarted waits with the reason of the last attempt.
"""

import datetime as dt
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agent.model.workloads import ContainerRole, ContainerState
from hack.devnode.kubelet import rules
from hack.devnode.kubelet.observed import Observed, Runtime
from hack.devnode.kubelet.spec import Container, Json, Pod

RUNTIME = "containerd"
UNKNOWN = "ContainerStatusUnknown"
RESTARTING_ALL = "RestartingAllContainers"


@dataclass(frozen=True, slots=True)
class StartFailure:
    """Why the last try to start a container failed: ``CrashLoopBackOff``, ``CreateContainerError``, …"""

    reason: str
    message: str


def timestamp(nanoseconds: int) -> str | None:
    """Return an API time (whole seconds, as kubelet writes them); 0 is no time."""
    if not nanoseconds:
        return None
    moment = dt.datetime.fromtimestamp(nanoseconds // 1_000_000_000, tz=dt.UTC)
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Converter:
    """Converts the containers of one pod; ``previous`` are the statuses that the API has, by name."""

    pod: Pod
    runtime: Runtime
    previous: Mapping[str, Json]
    failures: Mapping[str, StartFailure]
    restarting_all: bool = False

    def statuses(self, containers: Sequence[Container]) -> list[Json]:
        """Return one status per container of the spec, in kubelet's order (init: the spec's; main: by name)."""
        converted = [self._status(container) for container in containers]
        if containers and containers[0].role is ContainerRole.MAIN:
            converted.sort(key=lambda status: str(status["name"]))
        return converted

    def _status(self, container: Container) -> Json:
        seen = [item for item in self.runtime.containers if item.name == container.name][:2]
        if not seen:
            status = self._missing(container)
        else:
            status = self._convert(seen[0], container)
            if len(seen) > 1:
                status["lastState"] = self._convert(seen[1], container)["state"]
        return self._about_to_start(container, status)

    def _missing(self, container: Container) -> Json:
        """No container of that name in the runtime: it never was, or somebody removed it."""
        old = self.previous.get(container.name)
        status: Json = {
            "name": container.name,
            "image": container.image,
            "imageID": "",
            "restartCount": 0,
            "lastState": {},
            "state": {"waiting": {"reason": "PodInitializing" if self.pod.inits else "ContainerCreating"}},
        }
        if old is None:
            return status
        if self.restarting_all and "waiting" not in old["state"]:
            removed = "The container is removed because RestartAllContainers in place"
            status["state"] = {"waiting": {"reason": RESTARTING_ALL, "message": removed}}
            status["lastState"] = {
                "terminated": {**_no_times(), "reason": RESTARTING_ALL, "message": removed, "exitCode": 137}
            }
            status["restartCount"] = old["restartCount"] + 1
            return status
        if "terminated" in old["state"]:
            return dict(old)
        status["restartCount"] = old["restartCount"]
        status["lastState"] = old.get("lastState") or {}
        if "running" in old["state"] and "terminated" not in status["lastState"]:
            message = "The container could not be located when the pod was deleted.  The container used to be Running"
            status["lastState"] = {
                "terminated": {**_no_times(), "reason": UNKNOWN, "message": message, "exitCode": 137}
            }
            status["restartCount"] += 0 if self.pod.deleting else 1
        return status

    def _convert(self, item: Observed, container: Container) -> Json:
        old = self.previous.get(container.name) or {}
        old_state: Json = old.get("state") or {}
        container_id = f"{RUNTIME}://{item.id}"
        status: Json = {
            "name": item.name,
            "image": item.image,
            "imageID": item.image_ref,
            "containerID": container_id,
            "restartCount": max(item.restart_count, old.get("restartCount", 0)),
            "lastState": {},
        }
        if old and old.get("containerID") != container_id and "terminated" in old_state:
            status["lastState"] = {"terminated": old_state["terminated"]}
        elif "terminated" in (old.get("lastState") or {}):
            status["lastState"] = {"terminated": old["lastState"]["terminated"]}
        if item.state is ContainerState.RUNNING:
            status["state"] = {"running": {"startedAt": timestamp(item.started_at)}}
            if "started" in old:
                status["started"] = old["started"]
            if "terminated" in old_state and old["restartCount"] >= item.restart_count:
                status["restartCount"] = old["restartCount"] + 1
        elif item.state is ContainerState.EXITED:
            status["state"] = {"terminated": _terminated(item, container_id)}
        elif item.state is ContainerState.UNKNOWN and "running" in old_state:
            message = "The container could not be located when the pod was terminated"
            reason = RESTARTING_ALL if self.restarting_all else UNKNOWN
            status["state"] = {"terminated": {**_no_times(), "reason": reason, "message": message, "exitCode": 137}}
            status["restartCount"] = old["restartCount"] + 1
        else:
            status["state"] = {"waiting": {}}
        return status

    def _about_to_start(self, container: Container, status: Json) -> Json:
        newest = self.runtime.newest(container.name)
        if container.role is not ContainerRole.MAIN:
            if newest is not None and newest.state is ContainerState.EXITED and newest.exit_code == 0:
                return status
            if self._ran_unseen(container, newest=newest, status=status):
                message = (
                    "Unable to get init container status from container runtime and pod has been initialized, "
                    "treat it as exited normally"
                )
                done = {**_no_times(), "reason": "Completed", "message": message, "exitCode": 0}
                return {**status, "state": {"terminated": done}}
        failure = self.failures.get(container.name)
        if failure is None or not rules.should_start(container, pod=self.pod, runtime=self.runtime):
            return status
        if "terminated" in status["state"]:
            status = {**status, "lastState": status["state"]}
        return {**status, "state": {"waiting": {"reason": failure.reason, "message": failure.message}}}

    def _ran_unseen(self, container: Container, *, newest: Observed | None, status: Json) -> bool:
        """Whether a plain init container is gone from runtime and API alike though the pod is past it."""
        return (
            newest is None
            and container.role is ContainerRole.INIT
            and "waiting" in status["state"]
            and rules.any_main_created(self.pod, self.runtime)
        )


def _terminated(item: Observed, container_id: str) -> Json:
    state: Json = {
        "exitCode": item.exit_code,
        "reason": item.reason,
        "startedAt": timestamp(item.started_at),
        "finishedAt": timestamp(item.finished_at),
        "containerID": container_id,
    }
    if item.message:
        state["message"] = item.message
    return state


def _no_times() -> Json:
    return {"startedAt": None, "finishedAt": None}


def apply_probes(status: Json, *, container: Container, probes: rules.ProbeResults) -> Json:
    """Return the status with ``started`` and ``ready`` as kubelet's probe manager fills them in."""
    container_id = str(status.get("containerID", "")).rpartition("/")[2]
    running = "running" in status["state"]
    started = running and (container.probe("startupProbe") is None or probes.startup.get(container_id) is True)
    if container.role is ContainerRole.INIT:
        done = status["state"].get("terminated")
        ready = done is not None and done["exitCode"] == 0
    else:
        ready = started and (container.probe("readinessProbe") is None or probes.readiness.get(container_id) is True)
    return {**status, "started": started, "ready": ready}
