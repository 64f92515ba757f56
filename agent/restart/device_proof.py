"""Decide which GPUs a restart proves before anything new starts on them, and what the results mean. Pure.

The proof itself is ``agent.prove``. It accuses a GPU only by evidence. Everything else is reported and blocks nothing:
a proof that was skipped, was not finished in time, or was inconclusive.
"""

import enum
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kubemend.agent.model.devices import DeviceId
from kubemend.agent.restart import strategies
from kubemend.agent.restart.intents import Strategy

FRESH: Final = 60.0
"""Seconds for which a fault concerns a restart, although it is over by then: a program that died of it has ended."""

SECOND_ROUND: Final = 2
"""The number of a gang's round from which on all GPUs of its members are proved."""


class ProofState(enum.Enum):
    """The state of a GPU after its proof."""

    PASSED = "Passed"
    FAILED = "Failed"
    SKIPPED = "Skipped"
    UNKNOWN = "Unknown"


@dataclass(frozen=True, slots=True)
class DeviceProof:
    """The result of one GPU. ``reason`` is stable (``agent.prove.verdicts.Reason``), empty if it passed."""

    device: DeviceId
    state: ProofState
    reason: str = ""
    detail: str = ""


INTERRUPTED: Final = "Interrupted"
"""The reason of a proof that ended early, because a container was started by kubelet or the restart ended."""

NOT_FREE: Final = "NotFree"
"""The reason of a proof that did not begin, because it is unknown whether the old process has left the GPU."""

DEVICES_UNKNOWN: Final = "DevicesUnknown"
"""The reason why a resumed restart proves nothing: kubelet did not report in time which devices its containers hold."""

IMPLAUSIBLE: Final = "Implausible"
"""The reason of failures that all GPUs of a restart share: the driver, or the proof, is the likelier cause."""


def due(
    devices: frozenset[DeviceId], *, strategy: Strategy, concerned: Collection[DeviceId], attempt: int
) -> frozenset[DeviceId]:
    """Return the GPUs to prove.

    ``concerned`` are those that a fault concerns; ``attempt`` is the number of the gang's round, 0 outside rounds.
    """
    if not strategies.SPECS[strategy].starts_containers:
        return frozenset()  # kubelet waits for no proof
    return devices if attempt >= SECOND_ROUND else devices & frozenset(concerned)


def plausible(results: Sequence[DeviceProof]) -> tuple[DeviceProof, ...]:
    """Return the results as far as they accuse a GPU: that several fail at once, and none passes, accuses none."""
    failed = [each for each in results if each.state is ProofState.FAILED]
    passed = any(each.state is ProofState.PASSED for each in results)
    if len(failed) < 2 or passed:
        return tuple(results)
    return tuple(
        replace(
            each,
            state=ProofState.UNKNOWN,
            reason=IMPLAUSIBLE,
            detail=f"all {len(failed)} GPUs failed, so the driver may be the cause: {each.reason}: {each.detail}",
        )
        if each.state is ProofState.FAILED
        else each
        for each in results
    )


def unusable(results: Sequence[DeviceProof]) -> str:
    """Return why nothing may start on the devices; empty if nothing speaks against it."""
    failed = [f"{each.reason} on {each.device}: {each.detail}" for each in results if each.state is ProofState.FAILED]
    return "; ".join(failed)


def by_device(results: Sequence[DeviceProof]) -> dict[str, str]:
    """Return each GPU's stable reason, or the state of one that has none."""
    return {each.device: each.reason or each.state.value for each in results}


def note(results: Sequence[DeviceProof]) -> str:
    """Return one line about the results for people; empty if nothing was proved."""
    if not results:
        return ""
    passed = [each for each in results if each.state is ProofState.PASSED]
    rest = [each for each in results if each.state is not ProofState.PASSED]
    parts = [f"proved {len(passed)} of {len(results)} GPUs"]
    parts += [f"{each.device} {each.reason}: {each.detail}" for each in rest[:_MOST_NOTED]]
    parts += [f"{len(rest) - _MOST_NOTED} more"] if len(rest) > _MOST_NOTED else []
    return ", ".join(parts)


_MOST_NOTED = 2
