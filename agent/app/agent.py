"""The agent process: every component is a task of one TaskGroup, and if one ends, the process exits."""

import asyncio
import contextlib
import gc
from collections.abc import AsyncIterator
from pathlib import Path

import structlog

from kubemend.agent.app import last_resort
from kubemend.agent.app.control import ControlServer
from kubemend.agent.app.device_routes import DeviceRoutes
from kubemend.agent.app.device_sources import DeviceSources
from kubemend.agent.app.node_services import NodeServices, Resources
from kubemend.agent.app.persisted_state import StateCheck, boot_id
from kubemend.agent.app.runtime_services import RuntimeServices
from kubemend.agent.clients.journal.store import FILE, JournalError, Store
from kubemend.agent.clients.podresources.client import AllocationCache, PodResourcesClient
from kubemend.agent.control import messages
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.metrics import Metrics
from kubemend.agent.reporters.pod_conditions import PodConditionReporter
from kubemend.agent.settings import Settings
from kubemend.agent.sources.processes import ProcFs
from kubemend.common import aio, footprint, process, process_metrics, web
from kubemend.common.components import ComponentRegistry
from kubemend.common.kube import client as kube

log = structlog.get_logger(__name__)

_STEP = 2.0
"""Seconds for each step of the end after the restarts."""
_RETURN_MEMORY_SECONDS = 30.0


async def run(settings: Settings) -> None:
    """Run the agent until SIGTERM or SIGINT, which may arrive at any time.

    Raises JournalError, CatalogError, BootIdError or ListenError when it cannot start; an ExceptionGroup is an internal
    error. Without its journal the agent cannot resume anything, so it first releases the containers that a previous
    agent has frozen.
    """
    try:
        with process.raised_priority():
            await _run(settings)
    except JournalError:
        await last_resort.before_the_end(settings)
        raise


async def _run(settings: Settings) -> None:
    stop = process.stop_signal()
    async with _opened(settings) as shared:
        try:
            await _run_services(shared, stop=stop)
        except* process.Stop:
            log.info("agent.stopped")


@contextlib.asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[Resources]:
    """Open what all services share, and close it after them."""
    catalog = catalog_file.load(settings.catalog)
    registry = process_metrics.registry()
    metrics = Metrics(registry)
    parts = ComponentRegistry(show=metrics.show_part)
    async with (
        _journal(settings.state_dir / FILE) as store,
        kube.connect(kubeconfig=settings.kubeconfig) as api,
        PodResourcesClient(settings.pod_resources_socket, report=parts.reporter("pod-resources")) as pod_resources,
    ):
        yield Resources(
            settings=settings,
            boot_id=boot_id(settings.proc),
            catalog=catalog,
            registry=registry,
            metrics=metrics,
            parts=parts,
            store=store,
            api=api,
            allocations=AllocationCache(pod_resources.list),
            allocatable=pod_resources.allocatable,
            processes=ProcFs(root=settings.proc, cgroup_root=settings.sysfs / "fs" / "cgroup"),
        )


async def _run_services(shared: Resources, *, stop: asyncio.Event) -> None:
    settings = shared.settings
    node = await NodeServices.of(shared)
    runtime = RuntimeServices(shared, node)
    state = StateCheck(shared.store, report=shared.parts.reporter("state-directory"))
    async with (  # only now: all components must be registered before /readyz is served
        web.serving(metrics=settings.listen(), probes=settings.probes(), parts=shared.parts, registry=shared.registry),
        ControlServer(
            path=settings.state_dir / messages.SOCKET,
            requests=node.requests,
            more=DeviceRoutes(node.operators).table(),
        ) as control,
        asyncio.TaskGroup() as tasks,
    ):
        eternal = {
            "container-runtime": runtime.run(),
            "control": control.run(),
            "memory": _return_memory(),
            "state-directory": state.run(),
        }
        for name, work in {**node.tasks(), **eternal}.items():
            aio.spawn_eternal(tasks, work, name=name)
        _keep_what_is_loaded()
        log.info("agent.started", node=settings.node_name, catalog=shared.catalog.version, boot_id=shared.boot_id)
        await stop.wait()
        control.close()
        await _wind_down(runtime, reporter=node.reporting.pods, sources=node.sources, grace=settings.shutdown_timeout)
        raise process.Stop


async def _wind_down(
    runtime: RuntimeServices, *, reporter: PodConditionReporter, sources: DeviceSources, grace: float
) -> None:
    """Wait for restarts in progress, publish pending conditions, save the state, and leave the hub."""
    log.info("agent.stopping")
    with contextlib.suppress(TimeoutError):  # the journal completes it at the next start
        async with asyncio.timeout(grace):
            await runtime.drained()
    await reporter.flush(timeout=_STEP)
    with contextlib.suppress(TimeoutError):  # a disk that hangs must not keep the hub waiting for this agent
        async with asyncio.timeout(_STEP):
            await sources.remember()
    await runtime.leave(timeout=_STEP)


def _keep_what_is_loaded() -> None:
    """Exclude long-lived objects, mostly modules, from garbage collection.

    Otherwise they would be scanned in the middle of rounds, which create much garbage at once: a pause of 40 ms.
    """
    gc.collect()
    gc.freeze()


async def _return_memory() -> None:
    """Return free memory to the kernel, again and again: the start leaves some, and so does every burst of work."""
    async for _ in aio.ticks(period=_RETURN_MEMORY_SECONDS):
        footprint.return_free_memory()


@contextlib.asynccontextmanager
async def _journal(path: Path) -> AsyncIterator[Store]:
    store = await Store.open(path)
    try:
        yield store
    finally:
        await store.close()
