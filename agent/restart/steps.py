"""The words of restart rules: a rule maps what the runtime shows to the next step, or to steps that go side by side."""

import enum
from dataclasses import dataclass

from agent.model.workloads import ContainerId, ContainerState


class StepKind(enum.Enum):
    """What to do next."""

    STOP = "stop"
    RESERVE = "reserve"
    CREATE = "create"
    START = "start"
    REMOVE = "remove"
    WAIT = "wait"
    DONE = "done"


class Why(enum.Enum):
    """Why this is the next step; for DONE, how it ended."""

    OLD_RUNS = "OldRuns"
    OLD_LEFT = "OldLeft"
    NAME_FREE = "NameFree"
    GIVEN_BACK = "GivenBack"
    NO_SUCCESSOR = "NoSuccessor"
    SUCCESSOR_READY = "SuccessorReady"
    HELD_BESIDE_OLD = "HeldBesideOld"
    KUBELET_WON = "KubeletWon"
    OUT_OF_TURN = "OutOfTurn"
    UNDOING = "Undoing"
    KUBELET_STARTS_ITS_OWN = "KubeletStartsItsOwn"
    OLD_ON_DEVICE = "OldOnDevice"
    INIT_RUNS = "InitRuns"
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
    UNDONE = "Undone"
    NOTHING_TO_CLONE = "NothingToClone"


@dataclass(frozen=True, slots=True)
class Step:
    """One step.

    ``container`` is what it acts on, ``name`` whose container to create or what an end is about, and ``attempt`` which
    one of its names to reserve.
    """

    kind: StepKind
    why: Why
    container: ContainerId | None = None
    name: str | None = None
    attempt: int | None = None


class Resolution(enum.Enum):
    """Whether to carry an intent through, or take it back as far as that is safe (too old, or it cannot succeed)."""

    FINISH = "finish"
    UNDO = "undo"


LIVE = (ContainerState.CREATED, ContainerState.RUNNING, ContainerState.UNKNOWN)
"""States of a container that may run, now or later."""
