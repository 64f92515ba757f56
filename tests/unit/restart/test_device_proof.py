"""Which GPUs a restart proves, and what the results mean."""

import pytest

from kubemend.agent.model.devices import DeviceId
from kubemend.agent.restart import device_proof
from kubemend.agent.restart.device_proof import DeviceProof, ProofState
from kubemend.agent.restart.intents import Strategy

ONE, TWO, THREE = (DeviceId(f"GPU-{number}") for number in range(3))
BOTH = frozenset({ONE, TWO})


def result(device: DeviceId, state: ProofState) -> DeviceProof:
    reasons = {ProofState.PASSED: "", ProofState.FAILED: "WrongResult", ProofState.SKIPPED: "InUse"}
    return DeviceProof(device, state, reasons.get(state, "Incomplete"), "why")


@pytest.mark.parametrize(
    ("strategy", "concerned", "attempt", "expected"),
    [
        pytest.param(Strategy.SWAP, {ONE, THREE}, 0, {ONE}, id="fault-on-one-of-its-gpus"),
        pytest.param(Strategy.SWAP, set(), 1, set(), id="first-round-without-fault"),
        pytest.param(Strategy.SWAP, {TWO}, 1, {TWO}, id="first-round-with-fault"),
        pytest.param(Strategy.SWAP, set(), 2, BOTH, id="second-round"),
        pytest.param(Strategy.RERUN, set(), 7, BOTH, id="later-round"),
        pytest.param(Strategy.RESET, {ONE}, 2, set(), id="kubelet-starts-after-reset"),
        pytest.param(Strategy.RULES, {ONE}, 2, set(), id="kubelet-starts-by-rules"),
    ],
)
def test_due_gpus(strategy: Strategy, concerned: set[DeviceId], attempt: int, expected: set[DeviceId]) -> None:
    assert device_proof.due(BOTH, strategy=strategy, concerned=concerned, attempt=attempt) == expected


@pytest.mark.parametrize(
    ("states", "accused"),
    [
        pytest.param([ProofState.FAILED], 1, id="only-gpu"),
        pytest.param([ProofState.FAILED, ProofState.PASSED], 1, id="one-of-two"),
        pytest.param([ProofState.FAILED, ProofState.FAILED, ProofState.PASSED], 2, id="two-of-three"),
        pytest.param([ProofState.FAILED, ProofState.FAILED], 0, id="all"),
        pytest.param([ProofState.FAILED, ProofState.FAILED, ProofState.SKIPPED], 0, id="all-that-ran"),
        pytest.param([ProofState.FAILED, ProofState.UNKNOWN], 1, id="the-other-is-unknown"),
        pytest.param([ProofState.UNKNOWN, ProofState.SKIPPED, ProofState.PASSED], 0, id="none"),
    ],
)
def test_failures_that_all_gpus_share_accuse_none(states: list[ProofState], accused: int) -> None:
    results = [result(DeviceId(f"GPU-{number}"), state) for number, state in enumerate(states)]
    reported = device_proof.plausible(results)
    assert [each.device for each in reported] == [each.device for each in results]
    assert sum(each.state is ProofState.FAILED for each in reported) == accused
    assert bool(device_proof.unusable(reported)) == bool(accused)


def test_note_counts_and_names_the_unproved_gpus() -> None:
    states = [ProofState.PASSED, ProofState.SKIPPED, ProofState.UNKNOWN, ProofState.SKIPPED]
    results = [result(DeviceId(f"GPU-{number}"), state) for number, state in enumerate(states)]
    assert device_proof.note(results) == "proved 1 of 4 GPUs, GPU-1 InUse: why, GPU-2 Incomplete: why, 1 more"
    assert device_proof.note([]) == ""
