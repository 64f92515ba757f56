"""Define the compared ways to restart a trainer, and a gang of trainers: objects for each, with the same program."""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from bench.peers import upstream
from hack.devnode import host_python, images, jobsets
from hack.devnode.node import DevNode
from kubemend.common import gangs

Json = dict[str, Any]

RECORDS: Final = "/records"
CACHE: Final = "/root/.cache/jax"
"""The trainer's own directory for compiled code, in the container's writable layer."""
_BEAT: Final = "/beat"
"""The file in the container's writable layer that a trainer touches with each step, where its fault is a hang."""
_SILENT_SECONDS: Final = 10
"""A trainer that does not touch it for so long hangs, for kubemend and for the probes."""

_PROBES: Final[Json] = {
    "startupProbe": {
        "exec": {"command": ["/bin/sh", "-c", f"[ -e {_BEAT} ]"]},
        "periodSeconds": 1,
        "failureThreshold": 600,
    },
    "livenessProbe": {
        "exec": {"command": ["/bin/sh", "-c", f"[ $(($(date +%s) - $(stat -c %Y {_BEAT}))) -lt {_SILENT_SECONDS} ]"]},
        "periodSeconds": 2,
        "failureThreshold": 1,
        "timeoutSeconds": 10,
    },
}
"""See a hang as soon as kubemend does; Kubernetes' default period and threshold would take up to 30 s more."""

_GPU: Final = "nvidia.com/gpu"
_HERE: Final = Path(__file__).resolve().parent
_LAUNCHER: Final = _HERE.parents[1] / "launcher" / "kubemend_run.py"
_RESTARTS: Final = 100
_SHARED_CACHE: Final = f"{RECORDS}/cache"
"""JAX's cache of several processes: only the first one writes it, so it must be on a volume that all share."""


_ONCE: Final = "exec {python} {train}"
_LOOP: Final = "until {python} {train}; do :; done"


class Fault(enum.Enum):
    """A fault of a trainer: it ends, it stops without an end, or its node fails.

    A lost node is marked as out of service at once. Kubernetes has noticed a noticed one half a minute before its mark,
    from which the time counts.
    """

    EXIT = "exit"
    HANG = "hang"
    LOST_NODE = "lost-node"
    NOTICED_NODE = "noticed-node"

    @property
    def loses_node(self) -> bool:
        """Whether the node of a member fails."""
        return self in (Fault.LOST_NODE, Fault.NOTICED_NODE)


UNSEEN: Final = "never: no part of it sees a hang"
NO_NETWORK: Final = "not measured: its agents cannot share the network of a node"
NO_SPARE: Final = "not measured: the pods that are created again have no spare, and the others wait for them"


@dataclass(frozen=True, slots=True)
class Arm:
    """Define one way. ``command`` runs the trainer; ``{python}`` and ``{train}`` stand for their paths.

    ``own_cache``: the trainer sets its cache directory itself. ``keeps``: each restart moves that directory to the new
    container. ``survives``: its faults are Xids that do not end it. ``prepares``: the trainer takes from its prepare
    function what a spare has built and compiled.
    """

    name: str
    what: str
    command: str = _ONCE
    annotations: Mapping[str, str] = field(default_factory=dict)
    restart_policy: str = "OnFailure"
    own_cache: bool = True
    keeps: bool = False
    by_job: bool = False
    survives: bool = False
    prepares: bool = False

    @property
    def has_spare(self) -> bool:
        """Return whether a launcher keeps a spare for the trainer."""
        return "{launcher}" in self.command

    @property
    def sees_hangs(self) -> bool:
        """Return whether kubemend's agent or a probe watches the trainer. A probe restarts the whole container."""
        return bool(self.annotations) or self.command == _ONCE

    def fault(self, plan: "Plan") -> str:
        """Return what befalls its trainer, for people."""
        return "Xid 31" if self.survives and plan.fault is Fault.EXIT else plan.fault.value

    def not_possible(self, plan: "Plan") -> str:
        """Return why no restart follows the fault; empty if one does."""
        return UNSEEN if plan.fault is Fault.HANG and not self.sees_hangs else ""


_OPTED_IN: Final = {"kubemend.io/restart": "InPlace"}
_NO_VOLUME: Final = {**_OPTED_IN, "kubemend.io/cache": "Off"}
_BY_PROCESS: Final = {"kubemend.io/strategy": "process"}
_LAUNCHED: Final = f"exec {{python}} {{launcher}} --max-restarts {_RESTARTS}"
_LAUNCHED_MEMBER: Final = "exec {python} {launcher} --max-restarts 0 {spare} -- {python} {train}"

ARMS: Final = (
    Arm("job", "the Job controller creates another pod", restart_policy="Never", by_job=True),
    Arm("kubelet", "kubelet restarts the container"),
    Arm("process", "a loop in the container starts the process again, as torchrun --max-restarts does", _LOOP),
    Arm("swap", "kubemend's swap, caches in the writable layer", annotations=_NO_VOLUME),
    Arm(
        "swap-keep",
        "kubemend's swap, caches in the writable layer and kept by annotation",
        annotations=_NO_VOLUME,
        keeps=True,
    ),
    Arm(
        "swap-caches",
        "kubemend's swap with the component caches (emptied before the third restart)",
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
        "kubemend's launcher with a warm spare that has called the program's prepare function",
        f"{_LAUNCHED} {{spare}} --prepare prepared:prepare -- {{python}} {{train}}",
        prepares=True,
    ),
    Arm(
        "agent-process",
        "kubemend's agent has the launcher restart a program that does not end (strategy process)",
        f"{_LAUNCHED} {{spare}} -- {{python}} {{train}}",
        annotations={**_OPTED_IN, **_BY_PROCESS},
        survives=True,
    ),
)


class Restarter(enum.Enum):
    """The component that restarts a gang's processes after a fault of one."""

    UPSTREAM_RECREATE = "upstream's JobSet controller creates all pods again"
    UPSTREAM_IN_PLACE = "upstream's JobSet controller with InPlaceRestart: kubelet restarts all containers"
    LOOPS = "a loop in each container starts its process again, after JAX has noticed the fault"
    KUBEMEND = "kubemend's round restarts all containers in place"
    LAUNCHERS = "kubemend's round has launchers with warm spares restart all programs in their containers"

    @property
    def is_kubemend(self) -> bool:
        """Whether kubemend's round restarts them."""
        return self in (Restarter.KUBEMEND, Restarter.LAUNCHERS)


@dataclass(frozen=True, slots=True)
class GangArm:
    """Define one way to restart a gang."""

    name: str
    restarter: Restarter

    @property
    def what(self) -> str:
        """Return the description."""
        return self.restarter.value

    @property
    def has_spares(self) -> bool:
        """Return whether a launcher keeps a spare for each member."""
        return self.restarter is Restarter.LAUNCHERS

    def fault(self, plan: "Plan") -> str:
        """Return what befalls the gang, for people."""
        return plan.fault.value

    def not_possible(self, plan: "Plan") -> str:
        """Return why the restart after the fault is not measured; empty if it is."""
        if plan.fault is Fault.HANG and self.restarter is Restarter.LOOPS:
            return UNSEEN
        return _NOT_WITHOUT_NODE.get(self.restarter, "") if plan.fault.loses_node else ""


_NOT_WITHOUT_NODE: Final = {Restarter.UPSTREAM_IN_PLACE: NO_NETWORK, Restarter.LAUNCHERS: NO_SPARE}
_MEMBER_COMMANDS: Final = {Restarter.LOOPS: _LOOP, Restarter.LAUNCHERS: _LAUNCHED_MEMBER}

GANG_ARMS: Final = (
    GangArm("gang-recreate", Restarter.UPSTREAM_RECREATE),
    GangArm("gang-in-place", Restarter.UPSTREAM_IN_PLACE),
    GangArm("gang-loops", Restarter.LOOPS),
    GangArm("gang-kubemend", Restarter.KUBEMEND),
    GangArm("gang-launchers", Restarter.LAUNCHERS),
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
    """Set what every trainer does: it has the fault after each ``every`` steps, ``faults`` times.

    ``spare_cpu`` is the percentage of the time in which a spare imports.
    """

    python: Path
    layers: int
    faults: int
    every: int
    spare_after: str
    spare_cpu: int = 10
    program: Program = field(default_factory=Program)
    fault: Fault = Fault.EXIT


def pod_spec(arm: Arm, plan: Plan, *, node: str, records: Path) -> Json:
    """Return the spec of an arm's pod. ``records`` is a directory on the node, for the trainer's records."""
    environment = dict(plan.program.own_cache) if arm.own_cache else {}
    if arm.survives:
        environment["STEPS_SURVIVES"] = "1"
    if arm.has_spare:
        environment["STEPS_TRIGGER"] = "1"
    if arm.prepares:
        environment["STEPS_PREPARED"] = "1"
    spec = _spec(arm.command, plan, environment=environment, records=records, probed=not arm.annotations)
    return {**spec, "nodeName": node, "restartPolicy": arm.restart_policy}


def gang(arm: GangArm, plan: Plan, *, members: int, node: DevNode, records: Path) -> Json:
    """Return the JobSet that runs an arm's gang; ``records`` as for ``pod_spec``."""
    environment = {"STEPS_WORLD": str(members), "JAX_COMPILATION_CACHE_DIR": _SHARED_CACHE}
    if arm.has_spares:
        environment["STEPS_TRIGGER"] = "1"
    command = _MEMBER_COMMANDS.get(arm.restarter, _ONCE)
    ours = arm.restarter.is_kubemend
    probed = arm.restarter in (Restarter.UPSTREAM_RECREATE, Restarter.UPSTREAM_IN_PLACE)
    spec = _spec(command, plan, environment=environment, records=records, probed=probed)
    if plan.fault.loses_node:
        spec["hostNetwork"] = True  # a dev node's pods reach those of another one by the machine's own network only
        spec["topologySpreadConstraints"] = [
            {
                "maxSkew": 1,
                "topologyKey": "kubernetes.io/hostname",
                "whenUnsatisfiable": "ScheduleAnyway",
                "labelSelector": {"matchLabels": {gangs.JOBSET_NAME: arm.name}},
            }
        ]
    (container,) = spec["containers"]
    container["env"].append({"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    recreated = arm.restarter is Restarter.UPSTREAM_RECREATE
    spec["restartPolicy"] = "Never" if recreated else "OnFailure"
    if arm.restarter is Restarter.UPSTREAM_IN_PLACE:
        spec = upstream.with_agent(spec, node)
    annotations = {**(_heartbeat(plan) if ours else {}), **(_BY_PROCESS if arm.has_spares else {})}
    pod = {"metadata": {"annotations": annotations}, "spec": spec}
    job = jobsets.job(members=members, pod=pod, backoff_limit=0 if recreated else jobsets.MOST)
    workers = {"name": "workers", "replicas": 1, "template": job}
    made = jobsets.jobset(arm.name, workers, max_restarts=_RESTARTS)
    if not ours:
        del made["spec"]["managedBy"]
    if recreated:
        made["spec"]["failurePolicy"]["restartStrategy"] = "Recreate"
    return made


def _heartbeat(plan: Plan) -> dict[str, str]:
    """Return the annotations that have kubemend see a hang, if that is the fault."""
    if plan.fault is not Fault.HANG:
        return {}
    return {"kubemend.io/heartbeat-file": _BEAT, "kubemend.io/heartbeat-timeout": f"{_SILENT_SECONDS}s"}


def _spec(command: str, plan: Plan, *, environment: Mapping[str, str], records: Path, probed: bool) -> Json:
    """Return a pod's spec. ``probed``: probes watch the trainer, where its fault is a hang."""
    hangs = plan.fault is Fault.HANG
    program = plan.program.first + command.format(
        python=plan.python,
        train=_HERE / plan.program.file,
        launcher=_LAUNCHER,
        spare=f"--spare-after {plan.spare_after} --spare-cpu {plan.spare_cpu}",
    )
    environment = {
        "STEPS_RECORDS": RECORDS,
        "STEPS_LAYERS": str(plan.layers),
        "STEPS_FAULTS": "0" if plan.fault.loses_node else str(plan.faults),
        "STEPS_FAULT_EVERY": str(plan.every),
        **({"STEPS_SURVIVES": "1", "STEPS_BEAT": _BEAT} if hangs else {}),
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
                **(_PROBES if hangs and probed else {}),
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
        heartbeat = _heartbeat(plan) if arm.annotations else {}
        kept = {"kubemend.io/keep": ",".join(plan.program.own_cache.values())} if arm.keeps else {}
        annotated = {**metadata, "annotations": {**arm.annotations, **heartbeat, **kept}}
        return "pods", {"apiVersion": "v1", "kind": "Pod", "metadata": annotated, "spec": spec}
    template = {"spec": {"backoffLimit": _RESTARTS, "template": {"spec": spec}}}
    return "jobs", {"apiVersion": "batch/v1", "kind": "Job", "metadata": metadata, **template}
