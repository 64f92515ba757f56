"""Define the compared ways to restart a trainer: a pod for each, with the same trainer."""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from hack.devnode import images

Json = dict[str, Any]

RECORDS: Final = "/records"
CACHE: Final = "/root/.cache/jax"
"""The trainer's own directory for compiled code, in the container's writable layer."""

_HERE: Final = Path(__file__).resolve().parent
_LAUNCHER: Final = _HERE.parents[1] / "launcher" / "kubemend_run.py"
_LIBRARIES: Final = ("/usr", "/lib", "/lib64")
_RESTARTS: Final = 100


@dataclass(frozen=True, slots=True)
class Arm:
    """Define one way. ``command`` is what runs the trainer; ``{python}`` and ``{train}`` stand for their paths.

    ``own_cache``: the trainer sets its cache directory itself.
    """

    name: str
    what: str
    command: str = "exec {python} {train}"
    annotations: Mapping[str, str] = field(default_factory=dict)
    restart_policy: str = "OnFailure"
    own_cache: bool = True
    by_job: bool = False


_OPTED_IN: Final = {"kubemend.io/restart": "InPlace"}
_LOOP: Final = "until {python} {train}; do :; done"
_LAUNCHED: Final = f"exec {{python}} {{launcher}} --max-restarts {_RESTARTS}"

ARMS: Final = (
    Arm("job", "the Job controller creates another pod", restart_policy="Never", by_job=True),
    Arm("kubelet", "kubelet restarts the container"),
    Arm("process", "a loop in the container starts the process again, as torchrun --max-restarts does", _LOOP),
    Arm("swap", "kubemend's swap, caches in the writable layer", annotations={**_OPTED_IN, "kubemend.io/cache": "Off"}),
    Arm("swap-caches", "kubemend's swap with the component caches", annotations=_OPTED_IN, own_cache=False),
    Arm(
        "spare",
        "kubemend's launcher with a warm spare",
        f"{_LAUNCHED} --spare-after {{spare_after}} -- {{python}} {{train}}",
    ),
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Set what every trainer does: it fails after each ``every`` steps, ``faults`` times."""

    python: Path
    layers: int
    faults: int
    every: int
    spare_after: str


def pod_spec(arm: Arm, plan: Plan, *, node: str, records: Path) -> Json:
    """Return the spec of an arm's pod. ``records`` is a directory on the node, for ``train.records``."""
    command = arm.command.format(
        python=plan.python, train=_HERE / "train.py", launcher=_LAUNCHER, spare_after=plan.spare_after
    )
    environment = {
        "STEPS_RECORDS": f"{RECORDS}/train.records",
        "STEPS_LAYERS": str(plan.layers),
        "STEPS_FAULTS": str(plan.faults),
        "STEPS_FAULT_EVERY": str(plan.every),
        "JAX_PLATFORMS": "cpu",
        **({"JAX_COMPILATION_CACHE_DIR": CACHE} if arm.own_cache else {}),
    }
    shared = [(f"host-{number}", path) for number, path in enumerate(_host_paths(plan.python))]
    return {
        "nodeName": node,
        "restartPolicy": arm.restart_policy,
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [
            {
                "name": "trainer",
                "image": images.BUSYBOX,
                "imagePullPolicy": "Never",
                "command": ["/bin/sh", "-c", command],
                "env": [{"name": name, "value": value} for name, value in environment.items()],
                "volumeMounts": [
                    {"name": "records", "mountPath": RECORDS},
                    *({"name": name, "mountPath": str(path), "readOnly": True} for name, path in shared),
                ],
            }
        ],
        "volumes": [
            {"name": "records", "hostPath": {"path": str(records)}},
            *({"name": name, "hostPath": {"path": str(path.resolve())}} for name, path in shared),
        ],
    }


def _host_paths(python: Path) -> Sequence[Path]:
    """Return what a container needs of the node to run this Python: an image would contain it."""
    wanted = [Path(each) for each in _LIBRARIES if Path(each).is_dir()]
    for path in (Path(sys.base_prefix), python.parent.parent, _HERE, _LAUNCHER.parent):
        if not any(path.is_relative_to(each) for each in wanted):
            wanted.append(path)
    return wanted


def objects(arm: Arm, plan: Plan, *, node: str, records: Path) -> tuple[str, Json]:
    """Return the resource and the object that runs an arm's trainer."""
    spec = pod_spec(arm, plan, node=node, records=records)
    metadata: Json = {"name": arm.name, "namespace": "default"}
    if not arm.by_job:
        annotated = {**metadata, "annotations": dict(arm.annotations)}
        return "pods", {"apiVersion": "v1", "kind": "Pod", "metadata": annotated, "spec": spec}
    template = {"spec": {"backoffLimit": _RESTARTS, "template": {"spec": spec}}}
    return "jobs", {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, **template}
