"""Every ``kubemend.io/`` name that the code knows, and what it means: the one place where these are described.

A test compares it with the names that there are (``hack.api_sources``).
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from agent.model import conditions
from agent.reporters import taint_rules
from agent.restart import budget, clone, intents, options
from common import gangs
from controller.gangs import wishes
from controller.jobset import conditions as jobset_conditions
from controller.jobset import keeping_off, model, naming
from controller.jobset.placement import marks
from controller.leader import lease
from controller.restarts import names, objects
from controller.rounds import states, status

_STRATEGIES: Final = ", ".join(f"`{each.value}`" for each in intents.Strategy)
_HOLD: Final = f"{states.Limits().hold_for_recreated:g}s"

AGENT_LABEL: Final = "kubemend.io/agent"
"""Known to the manifests alone: daemonset/base/daemonset.yaml."""


class Kind(enum.Enum):
    """What such a name is the name of."""

    ANNOTATION = "annotation"
    CONDITION = "condition"
    GATE = "scheduling gate"
    LABEL = "label"
    TAINT = "taint"
    VALUE = "value"


@dataclass(frozen=True, slots=True)
class Name:
    """One name. ``on`` is the kind of object that has it, ``values`` and ``default`` are for people."""

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
        "Opt in: its containers may be restarted in place, and its pod be replaced when its gang needs that.",
        "only observed",
    ),
    Name(
        gangs.GANG, Kind.LABEL, "Pod", "a name, or `None`", "Its gang; `None`: it is in none.", "JobSet or Indexed Job"
    ),
    Name(
        options.OWNER_COUNTS,
        Kind.ANNOTATION,
        "Pod",
        "`true`, `false`",
        "Whether the pod's controller may hold restarts against a limit of its own, where its kind is not known.",
        "`true`: then nothing is restarted",
    ),
    Name(options.STRATEGY, Kind.ANNOTATION, "Pod", _STRATEGIES, "How containers are restarted.", "`auto`"),
    Name(
        options.CONTAINERS,
        Kind.ANNOTATION,
        "Pod",
        "names, with commas",
        "These are swapped together when a fault hits one of them, and no others. What befalls others is no fault.",
        "the one that was hit of the main ones that ask for devices (of all main ones where none does)",
    ),
    Name(
        options.GRACE_PERIOD,
        Kind.ANNOTATION,
        "Pod",
        "`500ms`, `10s`, `2m`; at most `1h`",
        "From SIGTERM to SIGKILL for the old container. Only where no exit can be final (`restartPolicy: Always`).",
        "SIGKILL at once",
    ),
    Name(
        options.MAX_RESTARTS,
        Kind.ANNOTATION,
        "Pod",
        "a whole number of at most 9 digits",
        "Restarts of a container, or rounds of a gang, in an hour. 0: none.",
        f"{budget.Budget().limit}",
    ),
    Name(
        wishes.FATAL_EXIT_CODES,
        Kind.ANNOTATION,
        "Pod",
        "`42, 64-78`",
        "A gang member that exits with one of these is left to the workload's own policy.",
        "none",
    ),
    Name(
        wishes.HOLD,
        Kind.ANNOTATION,
        "Pod",
        "`30s`",
        "For so long the members of a gang that stayed wait for those that are recreated.",
        f"`{_HOLD}`",
    ),
    Name(
        options.HEARTBEAT_FILE,
        Kind.ANNOTATION,
        "Pod",
        "an absolute path in the container",
        "A container that does not touch it hangs, and is restarted. Goes with the next one.",
        "not watched",
    ),
    Name(
        options.HEARTBEAT_TIMEOUT,
        Kind.ANNOTATION,
        "Pod",
        f"`60s`; from `{options.SHORTEST_HEARTBEAT:g}s` to `24h`",
        "For so long it may leave the file alone.",
        "not watched",
    ),
    Name(
        options.CLEAN,
        Kind.ANNOTATION,
        "Pod",
        ", ".join(f"`{each.value}`" for each in options.Clean),
        "Emptied before the successor runs: the pod's `/dev/shm`.",
        "nothing",
    ),
    Name(
        options.RESTART,
        Kind.LABEL,
        "Namespace",
        "`allowed`",
        "With the component `restart-namespaces`: only there pods may opt in and Restarts be created.",
        "every namespace",
    ),
    Name(
        AGENT_LABEL,
        Kind.LABEL,
        "Node",
        "`true`, `false`",
        "An agent runs there whatever other labels say; none runs there.",
        "nodes with a GPU",
    ),
    Name(
        model.MANAGED_BY,
        Kind.VALUE,
        "JobSet",
        "of `spec.managedBy`",
        "The JobSet is run by kubemend's controller.",
        "upstream's",
    ),
)
"""What people write."""

WRITTEN_BY_US: Final = (
    Name(
        conditions.DEVICES_HEALTHY,
        Kind.CONDITION,
        "Pod",
        "True, False, Unknown",
        "Whether all devices that it holds answer and nothing is held against them.",
    ),
    Name(
        conditions.DEVICE_FAILURE,
        Kind.CONDITION,
        "Pod",
        "True, False",
        "True only when no restart on this node can help: for `podFailurePolicy`.",
    ),
    Name(
        conditions.IN_PLACE_RESTART,
        Kind.CONDITION,
        "Pod",
        "True, False, Unknown",
        "The last restart: how, why, how long, whether verified; or why there was none.",
    ),
    Name(
        conditions.DEVICES_HEALTHY,
        Kind.CONDITION,
        "Node",
        "True, False, Unknown",
        "The same for all devices of the node; names the worst three.",
    ),
    Name(
        keeping_off.TAINT,
        Kind.TAINT,
        "Node",
        f"the fault's code; {keeping_off.EFFECT}",
        "A JobSet's member left this node for a device's sake. Goes when its agent finds all devices healthy.",
    ),
    Name(
        jobset_conditions.IN_PLACE,
        Kind.CONDITION,
        "JobSet",
        "True, False",
        "True while a restart in place goes on; then False, with how the last one ended.",
    ),
    Name(
        jobset_conditions.VALID,
        Kind.CONDITION,
        "JobSet",
        "True, False",
        "False: it cannot be run as it is written, and nothing is done for it. One that always was valid has none.",
    ),
    Name(
        jobset_conditions.CLAIMS,
        Kind.CONDITION,
        "JobSet",
        "True, False",
        "False: a volume claim that it uses was there with another spec. One whose claims always were right has none.",
    ),
    Name(
        naming.MADE_OF,
        Kind.ANNOTATION,
        "Job",
        "hashes",
        "Of a JobSet's Job: what it was made of, to tell what a change of the template takes.",
    ),
    Name(marks.GATE, Kind.GATE, "Pod", "", "It waits for a topology domain of its own (exclusive placement)."),
    Name(marks.PLACEMENT, Kind.LABEL, "Pod", f"`{marks.EXCLUSIVE}`", "It is placed so."),
    Name(names.GANG_KIND, Kind.LABEL, "Restart", "JobSet, Job, Gang", "The kind of the gang."),
    Name(
        names.GANG_NAME,
        Kind.LABEL,
        "Restart",
        "a name",
        "Its name: `kubectl get restarts -l kubemend.io/gang-name=NAME`.",
    ),
    Name(names.ATTEMPT, Kind.ANNOTATION, "Restart", "a number", "The number of the round in its gang."),
    Name(names.CAUSE, Kind.ANNOTATION, "Restart", "`Xid31`, `Exit1`, …", "The code of the fault, or of the request."),
    Name(names.DECISION, Kind.ANNOTATION, "Restart", "`InPlace`, …", "What was decided."),
    Name(
        names.GANG_UID,
        Kind.ANNOTATION,
        "Restart",
        "a UID",
        "What the round's gang is named after: rounds of a former JobSet or Job of that name do not count.",
    ),
    Name(names.EPOCH, Kind.ANNOTATION, "Restart", "a number", "The leader that the round belongs to."),
    Name(names.ROUND, Kind.ANNOTATION, "Restart", "JSON", "The status with which it began. Not for others to read."),
    Name(lease.EPOCH, Kind.ANNOTATION, "Lease", "a number", "The epoch of the leader: agents obey no lower one."),
    Name(
        lease.HUB,
        Kind.ANNOTATION,
        "Lease",
        "`HOLDER@IP:PORT`",
        "The leader's hub: where it refuses connections, it is gone.",
    ),
    Name(
        taint_rules.TAINT_KEY,
        Kind.TAINT,
        "DRA device",
        "the reason; NoSchedule",
        "The device is unhealthy (`--device-taints`): no new claim gets it.",
    ),
    Name(taint_rules.NODE_LABEL, Kind.LABEL, "DeviceTaintRule", "the node's name", "The device's node."),
    Name(
        taint_rules.DEVICE_ANNOTATION,
        Kind.ANNOTATION,
        "DeviceTaintRule",
        "a UUID or PCI address",
        "Under which name its health is kept.",
    ),
    Name(
        clone.RESTART_ID_ANNOTATION,
        Kind.ANNOTATION,
        "container, in the runtime",
        "an id",
        "Which restart has made it: the `restart` of the logs.",
    ),
)
"""What kubemend writes. Whoever changes it changes what it believes of its own past, or nothing at all."""

VARIABLES: Final[Mapping[str, str]] = {
    clone.RESTART_COUNT_ENV: "How often it was restarted: kubelet's `restartCount` with which it began. "
    "Missing in a first container, and in one that kubelet made (after an exit of its own, or where it was faster).",
    clone.RESTART_REASON_ENV: "Why, in one word: `Xid31`, `Hung`, `Requested`, …",
}
"""What a restarted container finds in its environment. One that was not restarted by us has neither."""

RESTART_CONDITIONS: Final[Mapping[str, str]] = {
    objects.COMPLETE: "True at its end, with the phase for its reason. `kubectl wait --for=condition=Complete`.",
    status.HELD_TOGETHER: "False: something new ran, or may have, before everything old was dead.",
    status.CANCELLED: "True: somebody took it back, or its JobSet was closed.",
}
"""Conditions of a Restart."""
