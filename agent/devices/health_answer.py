"""Answer the question whether a pod may use its devices, as NVIDIA's resiliency extension (NVRx) asks it. Pure.

NVRx's launcher asks before each rendezvous, and knows two results. If ``success`` is false, ``fail_count`` is not 0 or
``output`` is not JSON with a ``fail_count``, the node leaves the rendezvous. In all other cases it joins, also after a
gRPC error: the check then counts as unavailable and is skipped, with a warning in the launcher's log. So

- failed: a device that kubemend itself would not start a container on (``ActionClass.leaves_device_usable``);
- success: every device of the pod is known, answers, and is none of those. Degraded devices pass: they work;
- no answer (``Undetermined``): anything else. It is neither a success, which would be a guess, nor a failure, with
  which an upgrade of kubelet or the agent would take healthy nodes out of their jobs.
"""

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final

from kubemend.agent.model.verdicts import Health, Verdict

FAILED: Final = 2
"""Exit code of a failed check, as in ``kubemend scan``."""

_LONGEST_TEXT: Final = 500
"""Characters of a verdict's message, which can quote a line of the kernel log."""


@dataclass(frozen=True, slots=True)
class Answer:
    """The fields of nvhcd's ``HealthCheckResponse``."""

    success: bool
    exit_code: int
    output: str
    error: str = ""


@dataclass(frozen=True, slots=True)
class Undetermined:
    """The health of the pod's devices could not be determined; ``reason`` is one line for people."""

    reason: str


def of(
    own: Sequence[Verdict], *, near: Sequence[Verdict] = (), all_known: bool, returning: Collection[str] = ()
) -> Answer | Undetermined:
    """Answer for a pod that holds these devices.

    ``near`` are NICs next to its GPUs, which it may or may not use: those with a fault are listed, and never fail the
    check. ``all_known``: whether ``own`` has every GPU that the pod holds. ``returning`` are devices that may come back
    by themselves (``pod_conditions.may_come_back``).
    """
    failed = [verdict for verdict in own if must_not_be_used(verdict, returning=returning)]
    if not failed:
        if not all_known:
            return Undetermined("kubelet names a GPU of the pod in a form that cannot be matched with a device")
        if not own:
            return Undetermined("kubelet reports no GPU and no NIC of the pod")
        for verdict in own:
            if verdict.health is Health.UNKNOWN:
                return Undetermined(f"{verdict.device}: {_message(verdict)}")
    faulty = [verdict for verdict in near if verdict.health in (Health.DEGRADED, Health.UNHEALTHY)]
    return Answer(
        success=not failed,
        exit_code=FAILED if failed else 0,
        output=json.dumps(
            {
                "fail_count": len(failed),
                "failed_checks": [f"{verdict.device} {verdict.reason}" for verdict in failed],
                "devices": [_fields(verdict) for verdict in (*own, *faulty)],
            }
        ),
        error="; ".join(f"{verdict.device}: {_message(verdict)}" for verdict in failed),
    )


def must_not_be_used(verdict: Verdict, *, returning: Collection[str]) -> bool:
    """Return whether a fault forbids starting a process on the device.

    A link that has just gone down does not: most come back by themselves.
    """
    return not verdict.action.leaves_device_usable and verdict.device not in returning


def _fields(verdict: Verdict) -> dict[str, str | float]:
    return {
        "device": verdict.device,
        "health": verdict.health.value,
        "action": verdict.action.value,
        "reason": verdict.reason,
        "message": _message(verdict),
        "since": verdict.since,
    }


def _message(verdict: Verdict) -> str:
    """Return the message as protobuf and gRPC take it: short, and valid Unicode."""
    return verdict.message[:_LONGEST_TEXT].encode(errors="replace").decode()
