"""Describe every ``kubemend.io/`` name in the code.

A test compares this list with the names in the sources (``hack.api_sources``).
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kubemend.agent.model import conditions
from kubemend.agent.reporters import restart_counts, taint_rules
from kubemend.agent.restart import budget, cache, clone, intents, keep, options
from kubemend.common import gangs
from kubemend.controller.gangs import gang_options
from kubemend.controller.jobset import conditions as jobset_conditions
from kubemend.controller.jobset.children import naming
from kubemend.controller.jobset.placement import device_taints, marks
from kubemend.controller.jobset.spec import model
from kubemend.controller.leader import lease
from kubemend.controller.restarts import names, objects
from kubemend.controller.rounds import states, status

_STRATEGIES: Final = ", ".join(f"`{each.value}`" for each in intents.Strategy)
_HOLD: Final = f"{states.Limits().hold_for_recreated:g}s"

AGENT_LABEL: Final = "kubemend.io/agent"
"""Used only by the manifests: daemonset/base/daemonset.yaml."""


class Kind(enum.Enum):
    """The kind of a name."""

    ANNOTATION = "annotation"
    CONDITION = "condition"
    GATE = "scheduling gate"
    LABEL = "label"
    TAINT = "taint"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class Name:
    """One name. ``on`` is the kind of object that has it; ``values`` and ``default`` are texts for people."""

    name: str
    kind: Kind
    on: str
    values: str
    meaning: str
    default: str = ""


WRITTEN_BY_PEOPLE: Final = (
    Name(
        options.RESTART,
        Kind.ANNOTATION,
        "Pod",
        f"`{options.IN_PLACE}`",
        "Opt in: the pod's containers may be restarted in place, and the pod may be replaced if its gang needs that.",
        "only observed",
    ),
    Name(
        gangs.GANG, Kind.LABEL, "Pod", "a name, or `None`", "The pod's gang; `None`: no gang.", "JobSet or Indexed Job"
    ),
    Name(
        options.OWNER_COUNTS,
        Kind.ANNOTATION,
        "Pod",
        "`true`, `false`",
        "Whether the pod's controller, if its kind is unknown, may count restarts towards its own limit.",
        "`true`: then nothing is restarted",
    ),
    Name(options.STRATEGY, Kind.ANNOTATION, "Pod", _STRATEGIES, "How containers are restarted.", "`auto`"),
    Name(
        options.CONTAINERS,
        Kind.ANNOTATION,
        "Pod",
        "names, separated by commas",
        "Only these containers are swapped, together, when a fault hits one of them. Faults of others are ignored.",
        "the container that was hit, among the main ones that request devices (among all main ones if none does)",
    ),
    Name(
        options.GRACE_PERIOD,
        Kind.ANNOTATION,
        "Pod",
        "`500ms`, `10s`, `2m`; at most `1h`",
        "From SIGTERM to SIGKILL for the old container. Only if no exit can be final (`restartPolicy: Always`).",
        "SIGKILL at once",
    ),
    Name(
        options.MAX_RESTARTS,
        Kind.ANNOTATION,
        "Pod",
        "a whole number of at most 9 digits",
        "Restarts of a container, or rounds of a gang, per hour. 0: none.",
        f"{budget.Budget().limit}",
    ),
    Name(
        gang_options.FATAL_EXIT_CODES,
        Kind.ANNOTATION,
        "Pod",
        "`42, 64-78`",
        "If a container exits with one of these, it is left to kubelet, a gang member to the workload's own policy.",
        "none",
    ),
    Name(
        gang_options.HOLD,
        Kind.ANNOTATION,
        "Pod",
        "`30s`",
        "How long the remaining members of a gang wait for those that are recreated.",
        f"`{_HOLD}`",
    ),
    Name(
        options.HEARTBEAT_FILE,
        Kind.ANNOTATION,
        "Pod",
        "an absolute path in the container",
        "A container that does not touch it counts as hung and is restarted. Needs `heartbeat-timeout`.",
        "not watched",
    ),
    Name(
        options.HEARTBEAT_TIMEOUT,
        Kind.ANNOTATION,
        "Pod",
        f"`60s`; from `{options.SHORTEST_HEARTBEAT:g}s` to `24h`",
        "The longest time between two touches of the heartbeat file.",
        "not watched",
    ),
    Name(
        options.CLEAN,
        Kind.ANNOTATION,
        "Pod",
        ", ".join(f"`{each.value}`" for each in options.Clean),
        "Resources that are emptied before the successor runs: the pod's `/dev/shm`.",
        "nothing",
    ),
    Name(
        options.CACHE,
        Kind.ANNOTATION,
        "Pod",
        "`On`, `Off`",
        "With the component `caches`: `Off`: no cache volume; `On`: its variables also for containers with `envFrom`.",
        "the volume, and its variables in containers without `envFrom`",
    ),
    Name(
        options.LAUNCHER,
        Kind.ANNOTATION,
        "Pod",
        "container names, separated by commas",
        "With the component `launcher`: the Python commands of these containers are run by the launcher.",
        "none",
    ),
    Name(
        options.LAUNCHER_OPTIONS,
        Kind.ANNOTATION,
        "Pod",
        "options, separated by spaces",
        "With the component `launcher`: the launcher's options, such as `--max-restarts 0`.",
        "the launcher's defaults",
    ),
    Name(
        options.KEEP_CACHE,
        Kind.ANNOTATION,
        "Pod",
        "`true`, `false`",
        f"`true`: a container's cache on the cache volume stays after {cache.YOUNG_DEATHS} young deaths in a row.",
        "`false`: it is emptied",
    ),
    Name(
        options.KEEP,
        Kind.ANNOTATION,
        "Pod",
        f"absolute paths, separated by commas; at most {keep.MOST_PATHS}",
        "Paths of the container's own file system that its successor keeps in a swap or rerun.",
        "none",
    ),
    Name(
        options.OVERLAP,
        Kind.ANNOTATION,
        "Pod",
        "`imports`",
        "The successor in a swap imports while the old program dies, up to its first opening of the GPU driver.",
        "it executes nothing until the old program is dead",
    ),
    Name(
        options.RESTART,
        Kind.LABEL,
        "Namespace",
        "`allowed`",
        "With the component `restart-namespaces`: pods may opt in, and Restarts be created, only in such namespaces.",
        "every namespace",
    ),
    Name(
        AGENT_LABEL,
        Kind.LABEL,
        "Node",
        "`true`, `false`",
        "`true`: an agent runs on the node regardless of other labels. `false`: none runs there.",
        "nodes with a GPU",
    ),
    Name(
        model.MANAGED_BY,
        Kind.VALUE,
        "JobSet",
        "of `spec.managedBy`",
        "kubemend's controller runs the JobSet.",
        "upstream's",
    ),
)
"""Names that people write."""

WRITTEN_BY_US: Final = (
    Name(
        conditions.DEVICES_HEALTHY,
        Kind.CONDITION,
        "Pod",
        "True, False, Unknown",
        "Whether all devices of the pod answer and have no active fault.",
    ),
    Name(
        conditions.DEVICE_FAILURE,
        Kind.CONDITION,
        "Pod",
        "True, False",
        "True only if no restart on this node can help: for `podFailurePolicy`.",
    ),
    Name(
        conditions.IN_PLACE_RESTART,
        Kind.CONDITION,
        "Pod",
        "True, False, Unknown",
        "The last restart: strategy, cause, duration, whether verified; or why there was none.",
    ),
    Name(
        conditions.DEVICES_HEALTHY,
        Kind.CONDITION,
        "Node",
        "True, False, Unknown",
        "The same for all devices of the node; names the worst three.",
    ),
    Name(
        device_taints.TAINT,
        Kind.TAINT,
        "Node",
        f"the fault's code; {device_taints.EFFECT}",
        "A JobSet's member left this node because of a device. Removed when its agent finds all devices healthy.",
    ),
    Name(
        jobset_conditions.IN_PLACE,
        Kind.CONDITION,
        "JobSet",
        "True, False",
        "True during a restart in place; then False, with the result of the last one.",
    ),
    Name(
        jobset_conditions.VALID,
        Kind.CONDITION,
        "JobSet",
        "True, False",
        "False: the spec is invalid, and the JobSet is not run. Absent if it was always valid.",
    ),
    Name(
        jobset_conditions.CLAIMS,
        Kind.CONDITION,
        "JobSet",
        "True, False",
        "False: a volume claim that it uses exists with another spec. Absent if all claims always matched.",
    ),
    Name(
        naming.MADE_OF,
        Kind.ANNOTATION,
        "Job",
        "hashes",
        "Of a JobSet's Job: hashes of its template, to decide what a template change requires.",
    ),
    Name(marks.GATE, Kind.GATE, "Pod", "", "The pod waits for exclusive placement in a topology domain."),
    Name(marks.PLACEMENT, Kind.LABEL, "Pod", f"`{marks.EXCLUSIVE}`", "The pod uses exclusive placement."),
    Name(names.GANG_KIND, Kind.LABEL, "Restart", "JobSet, Job, LeaderWorkerSet, Gang, Pod", "The kind of the gang."),
    Name(
        names.GANG_NAME,
        Kind.LABEL,
        "Restart",
        "a name",
        "The name of the gang: `kubectl get restarts -l kubemend.io/gang-name=NAME`.",
    ),
    Name(names.ATTEMPT, Kind.ANNOTATION, "Restart", "a number", "The number of the round in its gang."),
    Name(names.CAUSE, Kind.ANNOTATION, "Restart", "`Xid31`, `Exit1`, …", "The code of the fault, or of the request."),
    Name(names.DECISION, Kind.ANNOTATION, "Restart", "`InPlace`, …", "The decision."),
    Name(
        names.GANG_UID,
        Kind.ANNOTATION,
        "Restart",
        "a UID",
        "UID of the gang's JobSet or Job: rounds of an earlier one of the same name do not count.",
    ),
    Name(names.EPOCH, Kind.ANNOTATION, "Restart", "a number", "The epoch of the leader that owns the round."),
    Name(names.ROUND, Kind.ANNOTATION, "Restart", "JSON", "The first status of the round. Internal."),
    Name(lease.EPOCH, Kind.ANNOTATION, "Lease", "a number", "The epoch of the leader: agents reject lower ones."),
    Name(
        lease.HUB,
        Kind.ANNOTATION,
        "Lease",
        "`HOLDER@IP:PORT`",
        "The leader's hub: if it refuses connections, the leader has ended.",
    ),
    Name(
        taint_rules.TAINT_KEY,
        Kind.TAINT,
        "DRA device",
        "the reason; NoSchedule",
        "The device is unhealthy (`--device-taints`): it gets no new claims.",
    ),
    Name(taint_rules.NODE_LABEL, Kind.LABEL, "DeviceTaintRule", "the node's name", "The device's node."),
    Name(
        taint_rules.DEVICE_ANNOTATION,
        Kind.ANNOTATION,
        "DeviceTaintRule",
        "a UUID or PCI address",
        "The name of the device in health data.",
    ),
    Name(
        clone.RESTART_ID_ANNOTATION,
        Kind.ANNOTATION,
        "container, in the runtime",
        "an id",
        "The restart that created it: the `restart` of the logs.",
    ),
    Name(
        restart_counts.ANNOTATION,
        Kind.ANNOTATION,
        "Pod",
        "`trainer=3`, separated by commas",
        "Restarts of each container that restarts cover, by kubemend and by kubelet: kubelet's `restartCount`. "
        "Written only on a pod that reads it by a downward API volume (`fieldPath: "
        "metadata.annotations['kubemend.io/restarts']`); absent until the first restart, updated some seconds after "
        "a start.",
    ),
)
"""Names that kubemend writes. Manual changes alter its view of its own past, or have no effect."""

VARIABLES: Final[Mapping[str, str]] = {
    clone.RESTART_COUNT_ENV: "Number of restarts: kubelet's `restartCount` at its start. "
    "Absent in a first container, and in one that kubelet created (alone, or before the agent did).",
    clone.RESTART_REASON_ENV: "The cause: `Xid31`, `Hung`, `Requested`, …",
}
"""Environment variables of a container that kubemend restarted. Other containers have neither."""

RESTART_CONDITIONS: Final[Mapping[str, str]] = {
    objects.COMPLETE: "True at its end, with the phase as reason. `kubectl wait --for=condition=Complete`.",
    status.HELD_TOGETHER: (
        "False: a new container ran, or may have run, before all old ones were dead (`RanUnheld`, `OldMayRun`, "
        "`Rolling`), or before it was held (`HeldAfterMilliseconds`: for how long at most, and the worst member)."
    ),
    status.CANCELLED: "True: the Restart was deleted, or its JobSet was closed.",
}
"""Conditions of a Restart."""
