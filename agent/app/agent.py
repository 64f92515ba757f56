"""The agent process: every part a named task of one TaskGroup; a part that ends takes the process with it."""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from agent.app import coordinating, last_resort
from agent.app.control import ControlServer
from agent.app.device_routes import DeviceRoutes
from agent.app.holders import GpuHolders
from agent.app.reporting import Reporting
from agent.app.runtime import RuntimePart
from agent.app.watching import Outlets, Watching
from agent.control import messages
from agent.engine import announcements, ports
from agent.engine.engine import Engine
from agent.engine.fading import Fading
from agent.engine.faults import AppFaults
from agent.engine.hangs import Hangs
from agent.engine.ledger import HealthLedger
from agent.engine.lost_devices import LostDevices
from agent.engine.metrics import Metrics
from agent.engine.node_health import NodeHealth
from agent.engine.operators import Operators
from agent.engine.orders import Knowledge
from agent.engine.publishing import Publisher
from agent.engine.requests import Requests
from agent.engine.suspects import Suspects
from agent.health import catalog_file, evidence
from agent.health.catalog import Catalog, FaultKey
from agent.history.store import FILE, HistoryError, Store
from agent.model.actions import ActionClass
from agent.model.findings import Finding, FindingKind
from agent.model.workloads import PodUid
from agent.podresources.client import AllocationCache, PodResourcesClient
from agent.reporters.events import EventReporter
from agent.reporters.pod_conditions import PodConditionReporter
from agent.settings import Settings
from agent.sources.owners import OwnerLookup
from agent.sources.plugin_reports import PluginReports
from agent.sources.pods import PodChange, PodChangeKind, PodWatch
from agent.sources.processes import ProcFs
from common import aio, contained, process, process_metrics, web
from common.kube import client as kube
from common.parts import Parts, PartState, PartStatus

log = structlog.get_logger(__name__)


async def run(settings: Settings) -> None:
    """Run the agent until SIGTERM or SIGINT, which may come as early as they like.

    Raises HistoryError, CatalogError or ListenError when it cannot start; an ExceptionGroup is a defect of ours.
    Without its memory it can take nothing up: what an earlier agent has frozen is let go before.
    """
    try:
        await _run(settings)
    except HistoryError:
        await last_resort.before_the_end(settings)
        raise


async def _run(settings: Settings) -> None:
    stop = process.stop_signal()
    process.go_first()
    catalog = load_catalog(settings.catalog)
    registry = process_metrics.registry()
    metrics = Metrics(registry)
    parts = Parts(show=metrics.show_part)
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
    parts: Parts,
    store: Store,
    api: kube.KubeClient,
    allocations: AllocationCache,
) -> None:
    boot_id = _boot_id(settings.proc)
    processes = ProcFs(root=settings.proc, cgroup_root=settings.sysfs / "fs" / "cgroup")
    watching: Watching
    ledger = HealthLedger(
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
        with contained.within(contained.Part.DEVICE, "what plugins say"):
            plugins.look()
        publisher.holders_changed()

    watching = await Watching.of(
        settings,
        boot_id=boot_id,
        catalog=catalog,
        store=store,
        metrics=metrics,
        parts=parts,
        outlets=Outlets(
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
    reporting = Reporting.of(settings, api=api, pods=pods, metrics=metrics, parts=parts)
    holders = GpuHolders(cache=allocations, driver=driver)
    publisher = Publisher(
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
    hub = coordinating.hub(
        settings,
        parts=parts,
        registry=registry,
        pods=pods,
        store=store,
        holders=holders,
        driver=driver,
        ledger=ledger,
    )
    faults = AppFaults(ledger=ledger, pods=pods, devices=driver, holders=holders, processes=processes)
    gangs = hub if hub is not None else ports.NO_GANGS
    engine = Engine(
        ledger=ledger,
        publisher=publisher,
        faults=faults,
        lost=LostDevices(ledger=ledger, catalog=catalog, faults=faults, devices=driver, tell=gangs.device_lost),
        devices=driver,
        processes=processes,
        metrics=metrics,
        classify=classify,
        on_aside=lambda finding: _tell_of_oom_kill(finding, pods=pods, events=reporting.events),
    )
    fading = Fading(ledger=ledger, catalog=catalog, submit=engine.submit)
    requests = Requests(
        ledger=ledger,
        pods=pods,
        devices=driver,
        holders=holders,
        lacking=lambda: parts.all()["container-runtime"].message or "the container runtime has not been found yet",
    )
    operators = Operators(
        ledger=ledger,
        devices=driver,
        handles=watching.nvml,
        submit=engine.submit,
        forget=watching.forget,
        nics=nics,
    )
    suspects = Suspects(ledger=ledger, driver=driver, processes=processes, submit=engine.submit, classify=classify)
    runtime = RuntimePart(
        settings=settings,
        store=store,
        metrics=metrics,
        faults=faults,
        requests=requests,
        suspects=suspects,
        hangs=Hangs(ledger=ledger, devices=driver, holders=holders, reporter=reporting.pods, metrics=metrics),
        pods=pods,
        driver=driver,
        owners=OwnerLookup(api),
        knowledge=Knowledge(holders=holders, ledger=ledger, devices=driver),
        gangs=gangs,
        hub=hub,
        boot_id=boot_id,
        reporter=reporting.pods,
        announcements=reporting.events,
        processes=processes,
        now=time.time,
        report=parts.reporter("container-runtime"),
        report_heartbeats=parts.reporter("heartbeats"),
    )

    def on_pod(change: PodChange) -> None:
        if change.kind is PodChangeKind.GONE:
            reporting.pods.forget(change.pod.ref.uid)
        else:
            reporting.pods.observe(change.pod)
        publisher.holders_changed()

    pods.subscribe(on_pod)
    pods.subscribe(plugins.take)
    async with (  # only now: whoever asks what is ready must hear of every part
        web.serving(metrics=settings.listen(), probes=settings.probes(), parts=parts, registry=registry),
        ControlServer(
            path=settings.state_dir / messages.SOCKET, requests=requests, more=DeviceRoutes(operators).table()
        ) as control,
        asyncio.TaskGroup() as tasks,
    ):
        eternal = {
            "pod-watch": pods.run(),
            **reporting.works(),
            "publisher": publisher.run(),
            "engine": engine.run(),
            "suspects": suspects.run(),
            "fading": fading.run(),
            **watching.works(),
            "container-runtime": runtime.run(),
            "control": control.run(),
        }
        for name, work in eternal.items():
            aio.spawn_eternal(tasks, work, name=name)
        _keep_what_is_loaded()
        log.info("agent.started", node=settings.node_name, catalog=catalog.version, boot_id=boot_id)
        await stop.wait()
        control.close()
        await _wind_down(runtime, reporter=reporting.pods, watching=watching, grace=settings.stop_grace)
        raise process.Stop


async def _wind_down(runtime: RuntimePart, *, reporter: PodConditionReporter, watching: Watching, grace: float) -> None:
    """Let what is being done be done, say what is to be said, and remember where we were."""
    log.info("agent.stopping")
    with contextlib.suppress(TimeoutError):  # the journal finishes it at the next start
        async with asyncio.timeout(grace):
            await runtime.drained()
    await reporter.flush(timeout=2.0)
    await watching.remember()
    await runtime.leave(timeout=2.0)


def _keep_what_is_loaded() -> None:
    """Have the garbage collector not look again and again at what stays as long as the agent does: modules, above all.

    It would do so in the midst of rounds, which make much garbage at once: 40 ms in which nothing else goes on.
    """
    gc.collect()
    gc.freeze()


def _listed(status: PartStatus, plugins: PluginReports) -> None:
    if status.state is PartState.READY:
        plugins.listed()


def _tell_of_oom_kill(finding: Finding, *, pods: PodWatch, events: EventReporter) -> None:
    pod = pods.pods().get(PodUid(finding.evidence.get(evidence.POD_UID, "")))
    if pod is None:
        return
    killed = finding.evidence.get(evidence.CONTAINER_ID)
    container = next((spec.name for spec in pod.containers if killed and spec.container_id == killed), "")
    told = announcements.of_oom_kill(finding, pod=pod.ref, container=container)
    if told is not None:
        events.tell(told)


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
