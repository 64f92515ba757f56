"""Which GPUs a restart proves, what accuses one, and how much a finding keeps of the evidence."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from kubemend.agent.app import restart_proofs
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, locator
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.prove import judging
from kubemend.agent.prove.verdicts import Outcome, Reason, Verdict
from kubemend.agent.restart.device_proof import DeviceProof, ProofState
from kubemend.agent.sources.nvml.protocol import DevicesAnswer
from kubemend.agent.sources.nvml.queries import Unknown
from kubemend.common import process
from tests.unit.prove.conftest import Machine
from tests.unit.prove.test_restart_proofs import AMPLE, ONE, Node, node, restart, timeout

__all__ = ["node", "timeout"]


@pytest.mark.parametrize("action", ActionClass)
async def test_fault_that_is_only_observed_concerns_no_restart(node: Node, action: ActionClass) -> None:
    node.verdict_store.apply(
        Finding(Source.NVML, FindingKind.XID, "31", locator(ONE), action, node.now - AMPLE - 1.0),
        inventory=node.nvml.inventory,
    )
    concerns = action not in (ActionClass.NONE, ActionClass.OBSERVE)
    node.nvml.users[ONE] = (4711,)
    assert set(await node.proved(restart(attempt=0))) == ({ONE} if concerns else set())


async def test_gpu_that_only_an_earlier_agent_has_seen_is_not_used(node: Node) -> None:
    first, second = node.nvml.inventory.gpus
    node.nvml.inventory = replace(node.nvml.inventory, gpus=(replace(first, index=-1), second))
    assert await node.proved(restart(ONE)) == {ONE: (ProofState.UNKNOWN, "NvmlUnclear")}


async def test_gpu_that_another_process_may_have_slowed_is_not_accused(
    node: Node, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.cuda.slow(100_000, gpu=0)
    asked = node.nvml.query

    async def then_used(uuids: Sequence[DeviceId], *, timeout: float) -> DevicesAnswer | Unknown:
        answer = await asked(uuids, timeout=timeout)
        node.nvml.users[ONE] = (4711,)
        return answer

    monkeypatch.setattr(node.nvml, "query", then_used)
    assert await node.proved(restart(ONE)) == {ONE: (ProofState.UNKNOWN, "SlowMemory")}
    assert node.found == []


async def test_call_that_hangs_accuses_no_gpu_however_long_the_proof_may_take(
    node: Node, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []
    real = process.helper_command

    def recorded(*arguments: str) -> list[str]:
        commands.append(list(arguments))
        return real(*arguments)

    monkeypatch.setattr(process, "helper_command", recorded)
    node.nvml.users[ONE] = (4711,)
    await node.proved(restart(ONE))
    ((_, _, _, deadline, _),) = commands
    assert float(deadline) < judging.SHORTEST_HANG
    assert restart_proofs._result(ONE, Verdict(Outcome.FAILED, Reason.DID_NOT_ANSWER)).state is ProofState.UNKNOWN


async def test_finding_keeps_a_bounded_part_of_the_evidence(node: Node) -> None:
    evidence: dict[str, Any] = {f"name-{number}": "x" * 10_000 for number in range(1000)}
    verdict = Verdict(Outcome.FAILED, Reason.WRONG_RESULT, "wrong", evidence)
    node.proofs._ended(restart(ONE), [DeviceProof(ONE, ProofState.FAILED, "WrongResult")], {ONE: verdict})
    (finding,) = node.found
    assert dict(finding.evidence) == {f"name-{number}": "x" * 200 for number in range(16)}
