"""Run all checks of a scan concurrently; a hanging one delays no other."""

import asyncio
import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from kubemend.agent.health.catalog.catalog import Catalog
from kubemend.agent.scan import gpus, kernel_log, nics
from kubemend.agent.scan.report import Found, GpusFound, LogFound
from kubemend.agent.sources.processes import ProcFs


@dataclass(frozen=True, slots=True)
class Machine:
    """The paths by which the machine's state is read."""

    kernel_log: Path
    proc: Path
    sysfs: Path


async def run(machine: Machine, *, catalog: Catalog, timeout: float) -> Found:
    """Run all checks once, in ``timeout`` seconds at most."""
    async with asyncio.TaskGroup() as tasks:
        by_gpus = tasks.create_task(gpus.check(machine.sysfs, catalog=catalog, timeout=timeout))
        by_nics = tasks.create_task(nics.check(machine.sysfs, timeout=timeout))
        by_log = tasks.create_task(
            kernel_log.check(machine.kernel_log, sysfs=machine.sysfs, catalog=catalog, timeout=timeout)
        )
    driver, log = by_gpus.result(), by_log.result()
    return Found(
        gpus=driver,
        log=log,
        nics=by_nics.result(),
        started=_started(driver, log, proc=machine.proc),
        knows_pids=ProcFs(root=machine.proc).has_pids_of(machine.kernel_log),
    )


def _started(driver: GpusFound, log: LogFound, *, proc: Path) -> Mapping[int, float]:
    processes = ProcFs(root=proc)
    started = {}
    for pid in set(_pids(driver, log)):
        with contextlib.suppress(OSError):  # a process whose facts cannot be read is omitted
            if (facts := processes.facts(pid)) is not None:
                started[pid] = facts.started
    return MappingProxyType(started)


def _pids(driver: GpusFound, log: LogFound) -> Iterator[int]:
    yield from (finding.pid for finding in log.findings if finding.pid is not None)
    for answer in driver.answers.values():
        yield from (process.pid for process in answer.processes or ())
