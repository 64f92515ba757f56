"""Define the compared ways to restart a trainer, and a gang of trainers: objects for each, with the same program."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.peers import upstream
from hack.devnode import host_python, images, jobsets
from hack.devnode.node import DevNode

Json = dict[str, Any]

RECORDS: Final = "/records"
CACHE: Final = "/root/.cache/jax"
"""The trainer's own directory for compiled code, in the container's writable layer."""

_GPU: Final = "nvidia.com/gpu"
_HERE: Final = Path(__file__).resolve().parent
_LAUNCHER: Final = _HERE.parents[1] / "launcher" / "kubemend_run.py"
_RESTARTS: Final = 100
_SHARED_CACHE: Final = f"{RECORDS}/cache"
"""JAX's cache of several processes: only the first one writes it, so it must be on a volume that all share."""


_ONCE: Final = "exec {python} {train}"
_LOOP: Final = "until {python} {train}; do :; done"


@dataclass(frozen=True, slots=True)
class Arm:
    """Define one way. ``command`` is what runs the trainer; ``{python}`` and ``{train}`` stand for their paths.

    ``own_cache``: the trainer sets its cache directory itself. ``survives``: its faults are Xids that do not end it.
    ``prepares``: the trainer takes from its prepare function what a spare has built and compiled.
    """

    name: str
    what: str
    command: str = _ONCE
    annotations: Mapping[str, str] = field(default_factory=dict)
    restart_policy: str = "OnFailure"
    own_cache: bool = True
    by_job: bool = False
    survives: bool = False
    prepares: bool = False

    @property
    def has_spare(self) -> bool:
        """Return whether a launcher keeps a spare for the trainer."""
        return "{launcher}" in self.command


_OPTED_IN: Final = {"kubemend.io/restart": "InPlace"}
_LAUNCHED: Final = f"exec {{python}} {{launcher}} --max-restarts {_RESTARTS}"

ARMS: Final = (
    Arm("job", "the Job controller creates another pod", restart_policy="Never", by_job=True),
    Arm("kubelet", "kubelet restarts the container"),
    Arm("process", "a loop in the container starts the process again, as torchrun --max-restarts does", _LOOP),
    Arm("swap", "kubemend's swap, caches in the writable layer", annotations={**_OPTED_IN, "kubemend.io/cache": "Off"}),
    Arm(
        "swap-caches",
        "kubemend's swap with the component caches (the third finds them emptied: two young deaths)",
        annotations=_OPTED_IN,
        own_cache=False,
    ),
    Arm(
        "spare",
        "kubemend's launcher with a warm spare",
        f"{_LAUNCHED} {{spare}} -- {{python}} {{train}}",
    ),
    Arm(
        "spare-prepared",
        "kubemend's launcher with a warm spare that has called the trainer's prepare function",
        f"{_LAUNCHED} {{spare}} --prepare prepared:prepare -- {{python}} {{train}}",
        prepares=True,
    ),
    Arm(
        "agent-process",
        "an Xid that the program survives: the agent has the launcher restart it (strategy process)",
        f"{_LAUNCHED} {{spare}} -- {{python}} {{train}}",
        annotations={**_OPTED_IN, "kubemend.io/strategy": "process"},
        survives=True,
    ),
)


class Restarter(enum.Enum):
    """What restarts a gang's processes after a fault of one."""

    UPSTREAM_RECREATE = "upstream's JobSet controller creates all pods again"
    UPSTREAM_IN_PLACE = "upstream's JobSet controller with InPlaceRestart: kubelet restarts all containers"
    LOOPS = "a loop in each container starts its process again, after JAX has noticed the fault"
    KUBEMEND = "kubemend's round restarts all containers in place"


@dataclass(frozen=True, slots=True)
class GangArm:
    """Define one way to restart a gang."""

    name: str
    restarter: Restarter

    @property
    def what(self) -> str:
        """Return the description."""
        return self.restarter.value


GANG_ARMS: Final = (
    GangArm("gang-recreate", Restarter.UPSTREAM_RECREATE),
    GangArm("gang-in-place", Restarter.UPSTREAM_IN_PLACE),
    GangArm("gang-loops", Restarter.LOOPS),
    GangArm("gang-kubemend", Restarter.KUBEMEND),
)


@dataclass(frozen=True, slots=True)
class Program:
    """Define the trainer's program. ``own_cache`` is the environment that gives it a cache of its own.

    ``first`` are shell commands that run before it in a container. ``gpus`` is how many it gets.
    """

    file: str = "train.py"
    environment: Mapping[str, str] = field(default_factory=lambda: {"JAX_PLATFORMS": "cpu"})
    own_cache: Mapping[str, str] = field(default_factory=lambda: {"JAX_COMPILATION_CACHE_DIR": CACHE})
    first: str = ""
    gpus: int = 0


@dataclass(frozen=True, slots=True)
class Plan:
    """Set what every trainer does: it fails after each ``every`` steps, ``faults`` times.

    ``spare_cpu`` is the percentage of the time in which a spare imports.
    """

    python: Path
    layers: int
    faults: int
    every: int
    spare_after: str
    spare_cpu: int = 10
    program: Program = field(default_factory=Program)


def pod_spec(arm: Arm, plan: Plan, *, node: str, records: Path) -> Json:
    """Return the spec of an arm's pod. ``records`` is a directory on the node, for the trainer's records."""
    environment = dict(plan.program.own_cache) if arm.own_cache else {}
    if arm.survives:
        environment["STEPS_SURVIVES"] = "1"
    if arm.has_spare:
        environment["STEPS_TRIGGER"] = "1"
    if arm.prepares:
        environment["STEPS_PREPARED"] = "1"
    spec = _spec(arm.command, plan, environment=environment, records=records)
    return {**spec, "nodeName": node, "restartPolicy": arm.restart_policy}


def gang(arm: GangArm, plan: Plan, *, members: int, node: DevNode, records: Path) -> Json:
    """Return the JobSet that runs an arm's gang; ``records`` as for ``pod_spec``."""
    environment = {"STEPS_WORLD": str(members), "JAX_COMPILATION_CACHE_DIR": _SHARED_CACHE}
    command = _LOOP if arm.restarter is Restarter.LOOPS else _ONCE
    spec = _spec(command, plan, environment=environment, records=records)
    (container,) = spec["containers"]
    container["env"].append({"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    recreated = arm.restarter is Restarter.UPSTREAM_RECREATE
    spec["restartPolicy"] = "Never" if recreated else "OnFailure"
    if arm.restarter is Restarter.UPSTREAM_IN_PLACE:
        spec = upstream.with_agent(spec, node)
    job = jobsets.job(members=members, pod={"spec": spec}, backoff_limit=0 if recreated else jobsets.MOST)
    workers = {"name": "workers", "replicas": 1, "template": job}
    made = jobsets.jobset(arm.name, workers, max_restarts=_RESTARTS)
    if arm.restarter is not Restarter.KUBEMEND:
        del made["spec"]["managedBy"]
    if recreated:
        made["spec"]["failurePolicy"]["restartStrategy"] = "Recreate"
    return made


def _spec(command: str, plan: Plan, *, environment: Mapping[str, str], records: Path) -> Json:
    program = plan.program.first + command.format(
        python=plan.python,
        train=_HERE / plan.program.file,
        launcher=_LAUNCHER,
        spare=f"--spare-after {plan.spare_after} --spare-cpu {plan.spare_cpu}",
    )
    environment = {
        "STEPS_RECORDS": RECORDS,
        "STEPS_LAYERS": str(plan.layers),
        "STEPS_FAULTS": str(plan.faults),
        "STEPS_FAULT_EVERY": str(plan.every),
        **plan.program.environment,
        **environment,
    }
    volumes, mounts = host_python.shared(plan.python, _HERE, _LAUNCHER.parent)
    return {
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "containers": [
            {
                "name": "trainer",
                "image": images.BUSYBOX,
                "imagePullPolicy": "Never",
                "command": ["/bin/sh", "-c", program],
                "env": [{"name": name, "value": value} for name, value in environment.items()],
                "resources": {"limits": {_GPU: plan.program.gpus}} if plan.program.gpus else {},
                "volumeMounts": [
                    {"name": "records", "mountPath": RECORDS},
                    *mounts,
                ],
            }
        ],
        "volumes": [
            {"name": "records", "hostPath": {"path": str(records)}},
            *volumes,
        ],
    }


def objects(arm: Arm, plan: Plan, *, node: str, records: Path) -> tuple[str, Json]:
    """Return the resource and the object that runs an arm's trainer."""
    spec = pod_spec(arm, plan, node=node, records=records)
    metadata: Json = {"name": arm.name, "namespace": "default"}
    if not arm.by_job:
        annotated = {**metadata, "annotations": dict(arm.annotations)}
        return "pods", {"apiVersion": "v1", "kind": "Pod", "metadata": annotated, "spec": spec}
    template = {"spec": {"backoffLimit": _RESTARTS, "template": {"spec": spec}}}
    return "jobs", {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, **template}
