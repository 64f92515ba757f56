"""Build the objects of a gang: an Indexed Job, and the pods that its controller would create. Pure."""

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hack.devnode import host_python, images, pulse
from kubemend.common import gangs

NAMESPACE = "default"
CONTAINER = "trainer"
_LIVES = "/lives"
_LAUNCHER = Path(__file__).resolve().parents[2] / "launcher" / "kubemend_run.py"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """Describe the kind of gang. ``annotations`` are added to its pods' opt-in; ``gpus`` is per member.

    ``launched``: kubemend's launcher runs the worker in each container.
    """

    members: int = 4
    restart_policy: str = "OnFailure"
    gpus: int = 1
    annotations: Mapping[str, str] = field(default_factory=dict)
    launched: bool = False


@dataclass(frozen=True, slots=True)
class Template:
    """Hold the common fields of a gang's pods. ``lives`` is a directory of the machine."""

    name: str
    shape: Shape
    lives: Path

    @property
    def key(self) -> gangs.GangKey:
        """Return the gang."""
        return gangs.GangKey(NAMESPACE, "JobSet", self.name)

    @property
    def job(self) -> str:
        """Return the name of the gang's one Job."""
        return f"{self.name}-workers-0"

    def member(self, index: int) -> str:
        """Return a member's name, which its replacement has, too: its pod's host name."""
        return f"{self.job}-{index}"

    def job_object(self) -> Json:
        """Return the Job."""
        labels = {gangs.JOBSET_NAME: self.name}
        spec = self._spec()
        if self.shape.restart_policy == "Always":  # allowed in the pods, which are created here, but not in a Job
            spec["restartPolicy"] = "OnFailure"
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": self.job, "namespace": NAMESPACE, "labels": labels},
            "spec": {
                "completionMode": "Indexed",
                "completions": self.shape.members,
                "parallelism": self.shape.members,
                "backoffLimit": 2**31 - 1,  # else each round would have to query the Job's limit
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }

    def pod(self, index: int, *, name: str, node: str, job_uid: str) -> Json:
        """Return a member's pod, bound to a node."""
        labels = {gangs.JOBSET_NAME: self.name, gangs.JOB_NAME: self.job, gangs.JOB_INDEX: str(index)}
        owner = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "name": self.job,
            "uid": job_uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                "annotations": {"kubemend.io/restart": "InPlace", **self.shape.annotations},
                "labels": labels,
                "ownerReferences": [owner],
            },
            "spec": {"nodeName": node, "hostname": self.member(index), **self._spec()},
        }

    def _spec(self) -> Json:
        container: Json = {
            "name": CONTAINER,
            "image": images.BUSYBOX,
            "imagePullPolicy": "Never",
            "command": list(pulse.command(_LIVES)),
            "volumeMounts": [{"name": "lives", "mountPath": _LIVES}],
        }
        if self.shape.gpus:
            container["resources"] = {"limits": {"nvidia.com/gpu": str(self.shape.gpus)}}
        volumes: list[Json] = [{"name": "lives", "hostPath": {"path": str(self.lives)}}]
        if self.shape.launched:
            python = Path(sys.executable)
            container["command"] = [str(python), str(_LAUNCHER), "--max-restarts", "0", "--", *container["command"]]
            shared, mounts = host_python.shared(python, _LAUNCHER.parent)
            volumes += [*shared, {"name": "kubemend-cache", "emptyDir": {}}]
            container["volumeMounts"] += [*mounts, {"name": "kubemend-cache", "mountPath": "/var/cache/kubemend"}]
        return {
            "restartPolicy": self.shape.restart_policy,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [container],
            "volumes": volumes,
        }
