"""Prove all idle GPUs of this machine: one worker process for each, then one for the copies between them.

The worker of one GPU sees no other, so a GPU that hangs or breaks its process delays and spoils no other's proof.
"""

import asyncio
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kubemend.agent.health.catalog.catalog import Catalog
from kubemend.agent.model.devices import DeviceId, Gpu, PciAddress
from kubemend.agent.prove import judging, measurements, workers
from kubemend.agent.prove.measurements import Measured
from kubemend.agent.prove.report import GpuRow, PairRow, Report
from kubemend.agent.prove.verdicts import Outcome, Reason, Verdict
from kubemend.agent.scan import gpus as scanned
from kubemend.agent.scan.report import GpusFound, Unseen
from kubemend.agent.sources.processes import is_initial_pid_namespace

_NVML_SHARE, _WORKER_SHARE, _CALL_SHARE = 0.3, 0.35, 0.25
"""Shares of the timeout: for NVML, for each of the two rounds of workers, and for one CUDA call in them."""

_MPS_PIPES: Final = "/tmp/nvidia-mps"  # noqa: S108 - the default of nvidia-cuda-mps-control
_PEERS: Final = "peers"


@dataclass(frozen=True, slots=True)
class Machine:
    """How the machine's state is read.

    ``mps_pipes`` is the directory of an MPS control daemon, if one runs. ``pid_namespace`` is the link of this
    process's PID namespace: the driver lists the processes of that alone (``osFindNsPid`` in NVIDIA's kernel module).
    """

    sysfs: Path
    mps_pipes: Path
    pid_namespace: Path = Path("/proc/self/ns/pid")

    @classmethod
    def here(cls, sysfs: Path) -> "Machine":
        """Return this machine."""
        return cls(sysfs=sysfs, mps_pipes=Path(os.environ.get("CUDA_MPS_PIPE_DIRECTORY") or _MPS_PIPES))

    @property
    def lists_all(self) -> bool:
        """Whether the driver lists all processes of the machine here; False if that is unknown."""
        try:
            return is_initial_pid_namespace(self.pid_namespace)
        except OSError:
            return False


async def prove(machine: Machine, *, catalog: Catalog, timeout: float, wanted: Sequence[str] = ()) -> Report:
    """Prove the GPUs once, in ``timeout`` seconds and a few more at most.

    ``wanted``: indexes, UUIDs or PCI addresses of the GPUs; empty: all. A worker that hangs in the driver is left
    behind to end by itself.
    """
    found = await scanned.check(machine.sysfs, catalog=catalog, timeout=_NVML_SHARE * timeout)
    gpus, missing = _chosen(found.inventory.gpus, wanted)
    mps, lists_all = (machine.mps_pipes / "control").exists(), machine.lists_all
    verdicts = {
        gpu.uuid: judging.obstacle(gpu, found.answers.get(gpu.uuid), mps=mps, lists_all=lists_all) for gpu in gpus
    }
    idle = [gpu for gpu in gpus if verdicts[gpu.uuid] is None]
    measured = await _measured(idle, timeout=timeout)
    judged = {uuid: judging.judge(uuid, each) for uuid, each in measured.items()}
    if any(verdict.reason is Reason.SLOW_MEMORY for verdict in judged.values()):
        again = await scanned.check(machine.sysfs, catalog=catalog, timeout=_NVML_SHARE * timeout)
        judged = {uuid: judging.judge(uuid, each, alone=_alone(uuid, again)) for uuid, each in measured.items()}
    rows = tuple(_row(gpu, verdicts[gpu.uuid] or judged[gpu.uuid]) for gpu in gpus)
    pairs, not_paired = await _pairs([row for row in rows if row.verdict.outcome is Outcome.PASSED], timeout=timeout)
    return Report(gpus=rows, pairs=pairs, unseen=(*found.unseen, *missing, *not_paired), notes=found.notes)


def _chosen(gpus: Sequence[Gpu], wanted: Sequence[str]) -> tuple[list[Gpu], list[Unseen]]:
    ordered = sorted(gpus, key=lambda gpu: gpu.index)
    if not wanted:
        return ordered, []
    named = {name: [gpu for gpu in ordered if _is_named(gpu, name)] for name in wanted}
    hint = "kubemend scan lists the GPUs"
    missing = [Unseen("gpu", f"{name}: NVML shows no such GPU", hint) for name, found in named.items() if not found]
    return [gpu for gpu in ordered if any(gpu in found for found in named.values())], missing


def _is_named(gpu: Gpu, name: str) -> bool:
    if name in (str(gpu.index), gpu.uuid):
        return True
    try:
        return PciAddress.parse(name) == gpu.pci
    except ValueError:
        return False


def _alone(uuid: DeviceId, found: GpusFound) -> bool:
    answer = found.answers.get(uuid)
    return answer is not None and answer.processes == ()


def _row(gpu: Gpu, verdict: Verdict) -> GpuRow:
    return GpuRow(uuid=gpu.uuid, label=f"GPU {gpu.index}", name=gpu.name, pci=str(gpu.pci), verdict=verdict)


async def _measured(gpus: Sequence[Gpu], *, timeout: float) -> Mapping[DeviceId, Measured]:
    async with asyncio.TaskGroup() as tasks:
        running = {
            gpu.uuid: tasks.create_task(
                _run(measurements.ONE_GPU, [gpu.uuid], timeout=timeout), name=f"prove {gpu.uuid}"
            )
            for gpu in gpus
        }
    return {uuid: task.result() for uuid, task in running.items()}


async def _pairs(rows: Sequence[GpuRow], *, timeout: float) -> tuple[tuple[PairRow, ...], tuple[Unseen, ...]]:
    """Copy between the GPUs that have passed."""
    if len(rows) < 2:
        return (), ()
    labels = {row.uuid.removeprefix("GPU-"): row.label for row in rows}
    measured = await _run(measurements.PEERS, [row.uuid for row in rows], timeout=timeout)

    def label(uuid: str) -> str:
        return labels.get(uuid.removeprefix("GPU-"), uuid)

    pairs = [
        PairRow(source=label(source), target=label(target), verdict=verdict)
        for (source, target), verdict in judging.pairs(measured)
    ]
    problem = judging.unfinished_pairs(measured)
    unseen = (Unseen(_PEERS, f"not all copies between GPUs were tried: {problem}", "run it again"),) if problem else ()
    return tuple(pairs), unseen


async def _run(what: str, uuids: Sequence[DeviceId], *, timeout: float) -> Measured:
    """Run one worker and return its reports within its share of ``timeout``."""
    return await workers.run(what, uuids, deadline=_CALL_SHARE * timeout, timeout=_WORKER_SHARE * timeout)
