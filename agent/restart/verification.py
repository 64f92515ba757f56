"""Was the restart a success? Pure: what was observed in, a list of checks out, each true, false or unknown."""

import enum
from collections.abc import Iterable
from dataclasses import dataclass

from agent.model.workloads import ContainerId, ContainerState, ContainerView, PodView


class CheckState(enum.Enum):
    """``UNKNOWN`` is "could not tell": it neither proves nor disproves the restart."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One observation about the restarted container."""

    name: str
    state: CheckState
    detail: str = ""


def one_running(seen: Iterable[ContainerView], *, expected: ContainerId) -> Check:
    """Exactly one container of the name may run, and it is the survivor."""
    running = [view.id for view in seen if view.state is ContainerState.RUNNING]
    if running == [expected]:
        return Check("one-running", CheckState.PASSED)
    return Check("one-running", CheckState.FAILED, f"{len(running)} containers of that name run")


def kubelet_agrees(pod: PodView | None, *, container: str, expected: ContainerId) -> Check:
    """Kubelet's status must show the survivor."""
    spec = pod.container(container) if pod is not None else None
    if spec is None:
        return Check("kubelet-agrees", CheckState.UNKNOWN, "the API server could not be asked")
    if spec.container_id == expected:
        return Check("kubelet-agrees", CheckState.PASSED)
    return Check("kubelet-agrees", CheckState.FAILED, f"kubelet reports {spec.container_id or 'no container'}")


def devices_answer(wanted: frozenset[str], *, answering: frozenset[str] | None) -> Check:
    """The container's devices must still be there, by the same UUIDs; None means that the driver could not be asked."""
    if not wanted:
        return Check("devices-answer", CheckState.PASSED, "it holds no device")
    if answering is None:
        return Check("devices-answer", CheckState.UNKNOWN, "the driver could not be asked")
    if missing := wanted - answering:
        return Check("devices-answer", CheckState.FAILED, f"no answer from {', '.join(sorted(missing))}")
    return Check("devices-answer", CheckState.PASSED)


def failed(checks: Iterable[Check]) -> tuple[Check, ...]:
    """Return the checks that disprove the restart."""
    return tuple(check for check in checks if check.state is CheckState.FAILED)
