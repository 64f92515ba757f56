"""The objects of a gang: an Indexed Job, and the pods that its controller would make of it. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import gangs
from hack.devnode import images, pulse

NAMESPACE = "default"
CONTAINER = "trainer"
_LIVES = "/lives"

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Shape:
    """What kind of gang. ``annotations`` are its pods' and come on top of the opt-in; ``gpus`` is per member."""

    members: int = 4
    restart_policy: str = "OnFailure"
    gpus: int = 1
    annotations: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Template:
    """What all pods of a gang have in common. ``lives`` is a directory of the machine."""

    name: str
    shape: Shape
    lives: Path

    @property
    def key(self) -> gangs.GangKey:
        """The gang."""
        return gangs.GangKey(NAMESPACE, "JobSet", self.name)

    @property
    def job(self) -> str:
        """The name of the gang's one Job."""
        return f"{self.name}-workers-0"

    def member(self, index: int) -> str:
        """Return a member's name, which its replacement has, too: its pod's host name."""
        return f"{self.job}-{index}"

    def job_object(self) -> Json:
        """Return the Job."""
        labels = {gangs.JOBSET_NAME: self.name}
        return {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": self.job, "namespace": NAMESPACE, "labels": labels},
            "spec": {
                "completionMode": "Indexed",
                "completions": self.shape.members,
                "parallelism": self.shape.members,
                "backoffLimit": 2**31 - 1,  # its controller never counts restarts; else each round asks whether it may
                "template": {"metadata": {"labels": labels}, "spec": self._spec()},
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
        return {
            "restartPolicy": self.shape.restart_policy,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [container],
            "volumes": [{"name": "lives", "hostPath": {"path": str(self.lives)}}],
        }
