"""Look at everything at once; what hangs holds up nothing else."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from agent.health.catalog import Catalog
from agent.scan import gpus, kernel_log, nics
from agent.scan.found import Found, GpusFound, LogFound
from agent.sources.processes import ProcFs


@dataclass(frozen=True, slots=True)
class Machine:
    """Where the machine shows itself."""

    kernel_log: Path
    proc: Path
    sysfs: Path


async def look(machine: Machine, *, catalog: Catalog, timeout: float) -> Found:
    """Look once at all of it, in ``timeout`` seconds at most."""
    async with asyncio.TaskGroup() as tasks:
        by_gpus = tasks.create_task(gpus.look(machine.sysfs, catalog=catalog, timeout=timeout))
        by_nics = tasks.create_task(nics.look(machine.sysfs, timeout=timeout))
        by_log = tasks.create_task(
            kernel_log.look(machine.kernel_log, sysfs=machine.sysfs, catalog=catalog, timeout=timeout)
        )
    driver, log = by_gpus.result(), by_log.result()
    return Found(gpus=driver, log=log, nics=by_nics.result(), started=_started(driver, log, proc=machine.proc))


def _started(driver: GpusFound, log: LogFound, *, proc: Path) -> Mapping[int, float]:
    processes = ProcFs(root=proc)
    started = {}
    for pid in set(_pids(driver, log)):
        with contextlib.suppress(OSError):  # what cannot be told of it is not shown
            if (facts := processes.look(pid)) is not None:
                started[pid] = facts.started
    return MappingProxyType(started)


def _pids(driver: GpusFound, log: LogFound) -> Iterator[int]:
    yield from (finding.pid for finding in log.findings if finding.pid is not None)
    for answer in driver.answers.values():
        yield from (process.pid for process in answer.processes or ())
