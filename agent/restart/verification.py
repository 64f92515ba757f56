"""Verify a restart. Pure: observations in, a list of checks out, each passed, failed or unknown."""

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from kubemend.agent.model.workloads import ContainerId, ContainerRole, ContainerState, ContainerSummary, PodView


class CheckState(enum.Enum):
    """``UNKNOWN`` neither proves nor disproves the restart."""

    PASSED = "passed"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True)
class Check:
    """One observation about the restarted containers.

    ``reason`` is the reason of the pod's condition if this check fails; empty: ``VerificationFailed``.
    """

    name: str
    state: CheckState
    detail: str = ""
    reason: str = ""


def one_running(
    seen: Iterable[ContainerSummary], *, expected: Mapping[str, ContainerId], pending: frozenset[str] = frozenset()
) -> Check:
    """Check that of each name exactly one container runs, the current one; ``pending`` names have none yet."""
    running: dict[str, list[ContainerId]] = {}
    for view in seen:
        if view.state is ContainerState.RUNNING:
            running.setdefault(view.ref.name, []).append(view.id)
    wrong = [
        f"{len(running.get(name, []))} containers named {name} run"
        for name, container in sorted(expected.items())
        if running.get(name) != [container]
    ]
    return _judge("one-running", wrong=wrong, pending=pending)


def kubelet_agrees(
    pod: PodView | None, *, expected: Mapping[str, ContainerId], pending: frozenset[str] = frozenset()
) -> Check:
    """Check that kubelet's status shows the current containers, and those that do not end by themselves as running.

    Their ids alone prove nothing: kubelet shows the id of a container that it found CREATED, too, and then starts
    another one in its place (``startContainer`` of the same sync).
    """
    if pod is None:
        return Check("kubelet-agrees", CheckState.UNKNOWN, "the API server did not answer")
    wrong = []
    for name, container in sorted(expected.items()):
        spec = pod.container(name)
        if spec is None or spec.container_id != container:
            shown = spec.container_id if spec is not None else None
            wrong.append(f"kubelet reports {shown or 'no container'} for {name}")
        elif spec.role is not ContainerRole.INIT and not spec.running:
            wrong.append(f"kubelet does not report {name} as running")
    return _judge("kubelet-agrees", wrong=wrong, pending=pending)


def devices_answer(wanted: frozenset[str] | None, *, answering: frozenset[str] | None) -> Check:
    """Check that the container's devices still exist, with the same UUIDs.

    ``wanted`` None means that the devices are unknown, ``answering`` None that the driver did not answer.
    """
    if wanted is None:
        return Check("devices-answer", CheckState.UNKNOWN, "its devices are unknown, because kubelet did not answer")
    if not wanted:
        return Check("devices-answer", CheckState.PASSED, "the container holds no device")
    if answering is None:
        return Check("devices-answer", CheckState.UNKNOWN, "the driver did not answer")
    if missing := wanted - answering:
        return Check("devices-answer", CheckState.FAILED, f"no answer from {', '.join(sorted(missing))}")
    return Check("devices-answer", CheckState.PASSED)


def failed(checks: Iterable[Check]) -> tuple[Check, ...]:
    """Return the checks that disprove the restart."""
    return tuple(check for check in checks if check.state is CheckState.FAILED)


def _judge(name: str, *, wrong: list[str], pending: frozenset[str]) -> Check:
    if wrong:
        return Check(name, CheckState.FAILED, "; ".join(wrong))
    if pending:
        return Check(name, CheckState.UNKNOWN, f"kubelet has not started {', '.join(sorted(pending))} yet")
    return Check(name, CheckState.PASSED)
