"""Define the steps of restart rules. A rule maps the runtime's listing to the next step, or to concurrent steps."""

import enum
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary


class StepKind(enum.Enum):
    """The action of a step."""

    STOP = "stop"
    RESERVE = "reserve"
    CREATE = "create"
    START = "start"
    REMOVE = "remove"
    WAIT = "wait"
    DONE = "done"


class StepReason(enum.Enum):
    """Why this is the next step; for DONE, how the restart ended."""

    OLD_RUNS = "OldRuns"
    OLD_LEFT = "OldLeft"
    NAME_FREE = "NameFree"
    GIVEN_BACK = "GivenBack"
    NO_SUCCESSOR = "NoSuccessor"
    SUCCESSOR_READY = "SuccessorReady"
    ON_STANDBY = "OnStandby"
    KUBELET_WON = "KubeletWon"
    OUT_OF_TURN = "OutOfTurn"
    SEEMS_NEWER = "SeemsNewer"
    UNDOING = "Undoing"
    KUBELET_STARTS_ITS_OWN = "KubeletStartsItsOwn"
    KUBELET_CREATES = "KubeletCreates"
    OLD_ON_DEVICE = "OldOnDevice"
    INIT_RUNS = "InitRuns"
    LAUNCHER_RESTARTS = "LauncherRestarts"
    NOT_STARTED = "StartupProbeOpen"
    NOT_SHOWN = "NotShownByKubelet"
    STATE_UNKNOWN = "StateUnknown"
    SWAPPED = "Swapped"
    ADOPTED = "Adopted"
    RERUN = "Rerun"
    CLEARED = "Cleared"
    TRIGGERED = "Triggered"
    INIT_FAILED = "InitFailed"
    SIDECAR_EXITED = "SidecarExited"
    LEFT_TO_KUBELET = "LeftToKubelet"
    SUCCESSOR_EXITED = "SuccessorExited"
    RELAUNCHED = "Relaunched"
    LAUNCHER_WON = "LauncherWon"
    LAUNCHER_SILENT = "LauncherSilent"
    LAUNCHER_STOPS = "LauncherStops"
    ORDER_REFUSED = "OrderRefused"
    HELD_FOR_ROUND = "HeldForRound"
    UNDONE = "Undone"
    COMPLETED = "Completed"
    NOTHING_TO_CLONE = "NothingToClone"
    NOT_ALIKE = "NotAlike"
    ALREADY_REPLACED = "AlreadyReplaced"
    TRIGGER_ENDED = "TriggerEnded"
    POD_ENDS = "PodEnds"


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    ``container`` is the container that it acts on, ``name`` the container to create or the one that an end is about,
    and ``attempt`` the attempt to reserve of that name.
    """

    kind: StepKind
    reason: StepReason
    container: ContainerId | None = None
    name: str | None = None
    attempt: int | None = None


class Resolution(enum.Enum):
    """Whether to complete an intent, or undo it as far as that is safe (too old, or it cannot succeed)."""

    FINISH = "finish"
    UNDO = "undo"


LIVE = (ContainerState.CREATED, ContainerState.RUNNING, ContainerState.UNKNOWN)
"""States of a container that may run, now or later."""


def abandon(
    restart_id: str,
    seen: Iterable[ContainerSummary],
    *,
    waiting: Collection[ContainerId] = (),
    old: Collection[ContainerId] = (),
) -> tuple[Step, ...]:
    """Return the steps of a restart whose pod is terminating: remove its unstarted containers, then be done.

    They are the same for every strategy, and may be taken concurrently. Nothing is started any more: kubelet ends the
    containers that it saw when it began, and would leave later ones alone. Nothing is ended early either: running
    containers have a grace period, which kubelet controls. ``waiting`` are containers that have been started, but are
    held before their first instruction.

    An ``old`` container next to a successor that runs is frozen: the agent that held the successor has died. It is
    stopped, because it would run next to its successor if it was thawed.
    """
    seen = tuple(seen)
    run = {
        view.ref.name
        for view in seen
        if view.restart_id == restart_id and view.state is ContainerState.RUNNING and view.id not in waiting
    }
    stops = tuple(
        Step(StepKind.STOP, StepReason.POD_ENDS, view.id, view.ref.name)
        for view in seen
        if view.id in old and view.state is ContainerState.RUNNING and view.ref.name in run
    )
    removals = tuple(
        Step(StepKind.REMOVE, StepReason.POD_ENDS, view.id, view.ref.name)
        for view in seen
        if view.restart_id == restart_id
        and view.state in LIVE
        and (view.state is not ContainerState.RUNNING or view.id in waiting)
    )
    return removals + stops or (Step(StepKind.DONE, StepReason.POD_ENDS),)
