"""The fake NVML, compiled once, and an NvmlSource on it whose findings and conditions can be awaited."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from agent.model.actions import ActionClass
from agent.model.findings import Finding, FindingKind
from agent.model.parts import PartState, PartStatus
from agent.sources.nvml.source import NvmlSource, Periods
from hack.fakenvml import control

PATIENCE = 30.0  # seconds; how long a test waits for what must happen
NEVER = 3600.0
QUICK = Periods(poll_period=0.2, recheck_period=0.2, reinit_period=NEVER, hang_deadline=2.0, stop_deadline=10.0)


@dataclass
class Bench:
    """A running source and what has come out of it."""

    source: NvmlSource
    findings: asyncio.Queue[Finding] = field(default_factory=asyncio.Queue)
    statuses: asyncio.Queue[PartStatus] = field(default_factory=asyncio.Queue)

    async def finding(self, kind: FindingKind) -> Finding:
        """Wait for the next finding, which must be of this kind."""
        async with asyncio.timeout(PATIENCE):
            finding = await self.findings.get()
        assert finding.kind is kind
        return finding

    async def status(self, state: PartState) -> PartStatus:
        """Wait until the source is in this state."""
        async with asyncio.timeout(PATIENCE):
            while (status := await self.statuses.get()).state is not state:
                pass
        return status


Start = Callable[..., Bench]


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the compiled fake libnvidia-ml.so.1."""
    return control.build(tmp_path_factory.mktemp("nvml")).parent


@pytest.fixture
def fake(nvml_library: Path, tmp_path: Path) -> Iterator[control.FakeNvml]:
    """A fake NVML with 8 healthy GPUs. Nothing hangs when the test is over."""
    with control.FakeNvml(tmp_path / "nvml-state", nvml_library) as fake:
        yield fake
        fake.resume()


@pytest.fixture
async def start(fake: control.FakeNvml) -> AsyncIterator[Start]:
    """Start a source on the fake NVML; it is stopped after the test."""
    tasks: list[asyncio.Task[None]] = []

    def start(*, periods: Periods = QUICK, env: Mapping[str, str] | None = None) -> Bench:
        findings: asyncio.Queue[Finding] = asyncio.Queue()
        statuses: asyncio.Queue[PartStatus] = asyncio.Queue()
        source = NvmlSource(
            emit=findings.put_nowait,
            classify=classify,
            report=statuses.put_nowait,
            periods=periods,
            env={**os.environ, **fake.env(), **(env or {})},
        )
        tasks.append(asyncio.create_task(source.run()))
        return Bench(source=source, findings=findings, statuses=statuses)

    yield start
    fake.resume()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def classify(kind: FindingKind, code: str) -> ActionClass:
    """A catalog small enough to see through: Xid 94 asks for a restart, recovery action 1 for a reset."""
    known = {
        (FindingKind.XID, "94"): ActionClass.RESTART_APP,
        (FindingKind.RECOVERY_ACTION, "1"): ActionClass.RESET_DEVICE,
        (FindingKind.DEVICE_LOST, ""): ActionClass.REBOOT_NODE,
    }
    return known.get((kind, code), ActionClass.NONE)
