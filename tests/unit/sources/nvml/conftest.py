"""The fake NVML, compiled once, and an NvmlSource on it whose findings and statuses can be awaited."""

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from hack.fakenvml import control
from kubemend.agent.health.gpu.gpu_inventory_state import KnownGpus
from kubemend.agent.health.gpu.limits import Limits
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, PciAddress
from kubemend.agent.model.findings import Finding, FindingKind
from kubemend.agent.sources.nvml.source import NvmlSource, Periods
from kubemend.common.components import ComponentState, ComponentStatus
from tests.unit.sources.nvml import in_process
from tests.unit.sources.nvml.in_process import Nvml

PATIENCE = 60.0  # seconds; the timeout of expected events
NEVER = 3600.0
QUICK = Periods(
    poll_period=0.2, full_period=0.2, recheck_period=0.2, reinit_period=NEVER, hang_deadline=NEVER, stop_deadline=10.0
)
"""No hang is detected: on a busy machine a worker is silent for seconds."""
HANGS = replace(QUICK, hang_deadline=5.0)
NO_PCI = Path("/nowhere")


@dataclass
class SourceEnv:
    """A running source and its results, with beginnings and ends of faults separated."""

    source: NvmlSource
    findings: asyncio.Queue[Finding]
    overs: asyncio.Queue[Finding]
    statuses: asyncio.Queue[ComponentStatus]
    inventories: asyncio.Queue[KnownGpus]

    async def finding(self, kind: FindingKind) -> Finding:
        """Wait for the next finding, which must be of this kind."""
        async with asyncio.timeout(PATIENCE):
            finding = await self.findings.get()
        assert finding.kind is kind
        return finding

    async def over(self, kind: FindingKind, *, gpu: int | None = None) -> Finding:
        """Wait for the end of a fault of this kind, on this GPU if given."""
        async with asyncio.timeout(PATIENCE):
            while True:
                finding = await self.overs.get()
                if finding.code == kind.value and (gpu is None or finding.device.uuid == control.gpu_uuid(gpu)):
                    return finding

    async def status(self, state: ComponentState) -> ComponentStatus:
        """Wait until the source is in this state."""
        async with asyncio.timeout(PATIENCE):
            while (status := await self.statuses.get()).state is not state:
                pass
        return status


Start = Callable[..., SourceEnv]


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the compiled fake libnvidia-ml.so.1."""
    return control.build(tmp_path_factory.mktemp("nvml")).parent


@pytest.fixture
def fake(nvml_library: Path, tmp_path: Path) -> Iterator[control.FakeNvml]:
    """A fake NVML with 8 healthy GPUs. No call hangs after the test."""
    with control.FakeNvml(tmp_path / "nvml-state", nvml_library) as fake:
        yield fake
        fake.resume()


@pytest.fixture
def nvml(tmp_path: Path, fake: control.FakeNvml, monkeypatch: pytest.MonkeyPatch) -> Nvml:
    """A reader in this process, on the fake."""
    monkeypatch.setenv(control.STATE_VARIABLE, str(fake.state_path))
    in_process.use(Path(shutil.copy(fake.lib_dir / control.LIBRARY, tmp_path / "own.so")), monkeypatch)
    return Nvml()


@pytest.fixture
async def start(fake: control.FakeNvml) -> AsyncIterator[Start]:
    """Start a source on the fake NVML; it is stopped after the test."""
    tasks: list[asyncio.Task[None]] = []

    def start(
        *,
        periods: Periods = QUICK,
        env: Mapping[str, str] | None = None,
        known_before: Mapping[DeviceId, PciAddress] | None = None,
        links_before: Mapping[DeviceId, frozenset[int]] | None = None,
        sysfs: Path = NO_PCI,
        unlisted: Callable[[], Collection[str]] = tuple,
        limits: Limits | None = None,
    ) -> SourceEnv:
        findings, overs = asyncio.Queue[Finding](), asyncio.Queue[Finding]()
        statuses, inventories = asyncio.Queue[ComponentStatus](), asyncio.Queue[KnownGpus]()
        source = NvmlSource(
            emit=lambda finding: (overs if finding.kind is FindingKind.FAULT_OVER else findings).put_nowait(finding),
            classify=classify,
            report=statuses.put_nowait,
            periods=periods,
            env={**os.environ, **fake.env(), **(env or {})},
            known_before=KnownGpus(known_before or {}, links_before or {}),
            on_inventory=inventories.put_nowait,
            sysfs=sysfs,
            unlisted=unlisted,
            limits=limits,
        )
        tasks.append(asyncio.create_task(source.run()))
        return SourceEnv(source=source, findings=findings, overs=overs, statuses=statuses, inventories=inventories)

    yield start
    fake.resume()
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def classify(kind: FindingKind, code: str) -> ActionClass:
    """A minimal catalog: Xid 94 calls for a restart, recovery action 1 for a reset."""
    known = {
        (FindingKind.XID, "94"): ActionClass.RESTART_APP,
        (FindingKind.RECOVERY_ACTION, "1"): ActionClass.RESET_DEVICE,
        (FindingKind.DEVICE_LOST, ""): ActionClass.REBOOT_NODE,
    }
    return known.get((kind, code), ActionClass.NONE)
