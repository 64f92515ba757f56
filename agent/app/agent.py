"""The agent process: every component is a task of one TaskGroup, and if one ends, the process exits."""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from kubemend.agent import ports
from kubemend.agent.app import health_checks, hub_wiring, last_resort
from kubemend.agent.app.control import ControlServer
from kubemend.agent.app.device_routes import DeviceRoutes
from kubemend.agent.app.device_sources import DeviceSources, SourceCallbacks
from kubemend.agent.app.reporting import Reporting
from kubemend.agent.app.restart_proofs import RestartProofs
from kubemend.agent.app.runtime_services import RuntimeServices
from kubemend.agent.clients.journal.store import FILE, HistoryError, Store
from kubemend.agent.clients.podresources.client import AllocationCache, GpuHolders, PodResourcesClient
from kubemend.agent.control import messages
from kubemend.agent.devices import event_messages
from kubemend.agent.devices.condition_publisher import ConditionPublisher
from kubemend.agent.devices.degradation_expiry import DegradationExpiry
from kubemend.agent.devices.node_health import NodeHealth
from kubemend.agent.devices.operator_commands import OperatorCommands
from kubemend.agent.devices.suspicion import SuspicionTracker
from kubemend.agent.devices.verdict_store import VerdictStore
from kubemend.agent.faults.app_faults import AppFaultHandler
from kubemend.agent.faults.hangs import Hangs
from kubemend.agent.faults.lost_devices import LostDevices
from kubemend.agent.faults.pipeline import FindingPipeline
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.health.catalog.catalog import Catalog, FaultKey
from kubemend.agent.health.state import evidence
from kubemend.agent.metrics import Metrics
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import Finding, FindingKind
from kubemend.agent.model.workloads import PodUid
from kubemend.agent.reporters.events import EventReporter
from kubemend.agent.reporters.pod_conditions import PodConditionReporter
from kubemend.agent.restarts.manual_requests import ManualRestarts
from kubemend.agent.restarts.runtime_access import RuntimeAccess
from kubemend.agent.rounds.order_resolver import DeviceFacts
from kubemend.agent.settings import Settings
from kubemend.agent.sources.nodes import NodeWatch
from kubemend.agent.sources.owners import OwnerLookup
from kubemend.agent.sources.plugin_reports import PluginReports
from kubemend.agent.sources.pods import PodChange, PodChangeKind, PodWatch
from kubemend.agent.sources.processes import ProcFs
from kubemend.common import aio, contained, process, process_metrics, web
from kubemend.common.components import ComponentRegistry, ComponentState, ComponentStatus
from kubemend.common.kube import client as kube

log = structlog.get_logger(__name__)


async def run(settings: Settings) -> None:
    """Run the agent until SIGTERM or SIGINT, which may arrive at any time.

    Raises HistoryError, CatalogError or ListenError when it cannot start; an ExceptionGroup is an internal error.
    Without its journal the agent cannot resume anything, so it first releases what a previous agent has frozen.
    """
    try:
        with process.raised_priority():
            await _run(settings)
    except HistoryError:
        await last_resort.before_the_end(settings)
        raise


async def _run(settings: Settings) -> None:
    stop = process.stop_signal()
    catalog = load_catalog(settings.catalog)
    registry = process_metrics.registry()
    metrics = Metrics(registry)
    parts = ComponentRegistry(show=metrics.show_part)
    async with (
        _opened(settings.state_dir / FILE) as store,
        kube.connect(kubeconfig=settings.kubeconfig) as api,
        PodResourcesClient(settings.pod_resources_socket, report=parts.reporter("pod-resources")) as pod_resources,
    ):
        try:
            await _run_parts(
                settings,
                stop=stop,
                catalog=catalog,
                registry=registry,
                metrics=metrics,
                parts=parts,
                store=store,
                api=api,
                allocations=AllocationCache(pod_resources.list),
            )
        except* process.Stop:
            log.info("agent.stopped")


async def _run_parts(
    settings: Settings,
    *,
    stop: asyncio.Event,
    catalog: Catalog,
    registry: CollectorRegistry,
    metrics: Metrics,
    parts: ComponentRegistry,
    store: Store,
    api: kube.KubeClient,
    allocations: AllocationCache,
) -> None:
    boot_id = _boot_id(settings.proc)
    processes = ProcFs(root=settings.proc, cgroup_root=settings.sysfs / "fs" / "cgroup")
    watching: DeviceSources
    ledger = VerdictStore(
        store=store,
        metrics=metrics,
        boot_id=boot_id,
        catalog=catalog,
        is_there=lambda device: watching.nearby.is_there(device),
    )
    await ledger.load()

    def classify(kind: FindingKind, code: str) -> ActionClass:
        return catalog.action(FaultKey(kind, code))

    def devices_changed() -> None:
        with contained.within(contained.Part.DEVICE, "device plugin reports"):
            plugins.update()
        publisher.holders_changed()

    watching = await DeviceSources.of(
        settings,
        boot_id=boot_id,
        catalog=catalog,
        store=store,
        metrics=metrics,
        parts=parts,
        outlets=SourceCallbacks(
            emit=lambda finding: engine.submit(finding),
            idle=lambda: engine.idle,
            devices_changed=devices_changed,
            kernel_log_is=lambda status: fading.kernel_log_is(status),
        ),
    )
    driver = watching.driver

    def nics() -> list[str]:
        return [str(nic.pci) for nic in watching.network.inventory.nics]

    plugins = PluginReports(
        emit=lambda finding: engine.submit(finding),
        classify=classify,
        locate=lambda uuid: driver.inventory.by_uuid(uuid),
        held=lambda: ledger.held(FindingKind.REPORTED_UNHEALTHY),
    )
    pods = PodWatch(
        api=api,
        node_name=settings.node_name,
        report=parts.reporter("kubernetes-api", also=lambda status: _listed(status, plugins)),
        bare=metrics.bare_pods.set,
    )
    node = NodeWatch(
        api=api, node_name=settings.node_name, shutdown=pods.node_shuts_down, report=parts.reporter("node")
    )
    reporting = Reporting.of(settings, api=api, pods=pods, metrics=metrics, parts=parts)
    holders = GpuHolders(cache=allocations, inventory=lambda: driver.inventory)
    publisher = ConditionPublisher(
        ledger=ledger,
        pods=pods,
        devices=driver,
        holders=holders,
        reporter=reporting.pods,
        nics=watching.nearby,
        node=NodeHealth(
            ledger=ledger,
            devices=driver,
            condition=reporting.node,
            events=reporting.events,
            taints=reporting.taints,
            nics=nics,
        ),
    )
    hub = hub_wiring.hub(
        settings,
        parts=parts,
        registry=registry,
        pods=pods,
        store=store,
        holders=holders,
        driver=driver,
        ledger=ledger,
    )
    access: aio.Promise[RuntimeAccess] = aio.Promise()
    faults = AppFaultHandler(
        ledger=ledger, pods=pods, devices=driver, holders=holders, processes=processes, access=access
    )
    gangs = hub if hub is not None else ports.NO_GANGS
    engine = FindingPipeline(
        ledger=ledger,
        publisher=publisher,
        faults=faults,
        lost=LostDevices(
            ledger=ledger, catalog=catalog, faults=faults, devices=driver, report_to_hub=gangs.device_lost
        ),
        devices=driver,
        processes=processes,
        metrics=metrics,
        classify=classify,
        on_aside=lambda finding: _record_oom_kill(finding, pods=pods, events=reporting.events),
    )
    fading = DegradationExpiry(ledger=ledger, catalog=catalog, submit=engine.submit)
    requests = ManualRestarts(
        ledger=ledger,
        pods=pods,
        devices=driver,
        holders=holders,
        access=access,
        lacking=lambda: parts.all()["container-runtime"].message or "the container runtime has not been found yet",
    )
    operators = OperatorCommands(
        ledger=ledger,
        devices=driver,
        handles=watching.nvml,
        submit=engine.submit,
        forget=watching.forget,
        nics=nics,
    )
    suspects = SuspicionTracker(
        ledger=ledger, driver=driver, processes=processes, submit=engine.submit, classify=classify
    )
    runtime = RuntimeServices(
        settings=settings,
        store=store,
        metrics=metrics,
        access=access,
        suspects=suspects,
        api=api,
        hangs=Hangs(ledger=ledger, devices=driver, holders=holders, reporter=reporting.pods, metrics=metrics),
        pods=pods,
        driver=driver,
        owners=OwnerLookup(api),
        knowledge=DeviceFacts(holders=holders, ledger=ledger, devices=driver),
        gangs=gangs,
        hub=hub,
        boot_id=boot_id,
        reporter=reporting.pods,
        announcements=reporting.events,
        processes=processes,
        prover=RestartProofs(
            nvml=watching.nvml,
            ledger=ledger,
            holders=holders,
            processes=processes,
            submit=engine.submit,
            classify=classify,
            metrics=metrics,
            timeout=settings.proof_timeout,
        ),
        now=time.time,
        report=parts.reporter("container-runtime"),
        report_heartbeats=parts.reporter("heartbeats"),
    )

    health_check_works = health_checks.works(
        settings,
        parts=parts,
        metrics=metrics,
        processes=processes,
        access=access,
        holders=holders,
        verdicts_of=publisher.verdicts_of,
    )

    def on_pod(change: PodChange) -> None:
        if change.kind is PodChangeKind.GONE:
            reporting.pods.forget(change.pod.ref.uid)
        else:
            reporting.pods.observe(change.pod)
            reporting.counts.observe(change.pod)
        publisher.holders_changed()

    pods.subscribe(on_pod)
    pods.subscribe(plugins.take)
    async with (  # only now: all components must be registered before /readyz is served
        web.serving(metrics=settings.listen(), probes=settings.probes(), parts=parts, registry=registry),
        ControlServer(
            path=settings.state_dir / messages.SOCKET, requests=requests, more=DeviceRoutes(operators).table()
        ) as control,
        asyncio.TaskGroup() as tasks,
    ):
        eternal = {
            "pod-watch": pods.run(),
            "node-watch": node.run(),
            **reporting.works(),
            "publisher": publisher.run(),
            "engine": engine.run(),
            "suspects": suspects.run(),
            "fading": fading.run(),
            **watching.works(),
            "container-runtime": runtime.run(),
            "control": control.run(),
            **health_check_works,
        }
        for name, work in eternal.items():
            aio.spawn_eternal(tasks, work, name=name)
        _keep_what_is_loaded()
        log.info("agent.started", node=settings.node_name, catalog=catalog.version, boot_id=boot_id)
        await stop.wait()
        control.close()
        await _wind_down(runtime, reporter=reporting.pods, watching=watching, grace=settings.shutdown_timeout)
        raise process.Stop


async def _wind_down(
    runtime: RuntimeServices, *, reporter: PodConditionReporter, watching: DeviceSources, grace: float
) -> None:
    """Wait for restarts in progress, publish pending conditions, save the state, and leave the hub."""
    log.info("agent.stopping")
    with contextlib.suppress(TimeoutError):  # the journal completes it at the next start
        async with asyncio.timeout(grace):
            await runtime.drained()
    await reporter.flush(timeout=2.0)
    await watching.remember()
    await runtime.leave(timeout=2.0)


def _keep_what_is_loaded() -> None:
    """Exclude long-lived objects, mostly modules, from garbage collection.

    Otherwise they would be scanned in the middle of rounds, which create much garbage at once: a pause of 40 ms.
    """
    gc.collect()
    gc.freeze()


def _listed(status: ComponentStatus, plugins: PluginReports) -> None:
    if status.state is ComponentState.READY:
        plugins.listed()


def _record_oom_kill(finding: Finding, *, pods: PodWatch, events: EventReporter) -> None:
    pod = pods.pods().get(PodUid(finding.evidence.get(evidence.POD_UID, "")))
    if pod is None:
        return
    killed = finding.evidence.get(evidence.CONTAINER_ID)
    container = next((spec.name for spec in pod.containers if killed and spec.container_id == killed), "")
    message = event_messages.of_oom_kill(finding, pod=pod.ref, container=container)
    if message is not None:
        events.record(message)


@contextlib.asynccontextmanager
async def _opened(path: Path) -> AsyncIterator[Store]:
    store = await Store.open(path)
    try:
        yield store
    finally:
        await store.close()


def load_catalog(overrides: Path | None) -> Catalog:
    """Return the built-in catalog with the operator's changes. Raises CatalogError."""
    catalog = catalog_file.builtin()
    if overrides is None:
        return catalog
    try:
        return catalog_file.merged(catalog, overrides.read_text())
    except OSError as error:
        raise catalog_file.CatalogError(f"cannot read the catalog file {overrides}: {error.strerror}") from error


def _boot_id(proc: Path) -> str:
    return (proc / "sys" / "kernel" / "random" / "boot_id").read_text().strip()
