"""Fake proofs of restarts' GPUs."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from kubemend.agent.actuator.device_proof import Subject
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.restart.device_proof import DeviceProof, ProofState
from tests.environments.runtime import CriEnv
from tests.fakes import outside


@dataclass
class Proofs:
    """Prepares proofs that end at once with this result; notes whether anything ran at their begin."""

    cri_env: CriEnv
    result: DeviceProof = field(default_factory=lambda: DeviceProof(outside.GPU.uuid, ProofState.PASSED))
    subjects: list[Subject] = field(default_factory=list)
    ran_beside: list[list[Any]] = field(default_factory=list)

    @property
    def devices(self) -> frozenset[DeviceId]:
        return frozenset({outside.GPU.uuid})

    def prepare(self, subject: Subject) -> "Proofs":
        self.subjects.append(subject)
        return self

    async def run(self) -> Sequence[DeviceProof]:
        held = self.cri_env.standbys.held if self.cri_env.standbys is not None else ()
        self.ran_beside.append([view for view in await self.cri_env.running() if view.id not in held])
        return [self.result]

    def close(self) -> None:
        return

    async def ended(self) -> None:
        return
