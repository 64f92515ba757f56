"""Build the services that need no container runtime: from the sources to verdicts, conditions and Events.

They are built in one direction, each from those before it. Calls in the other direction are subscriptions: to findings
(the queue), to components' reports and to changes of pods.
"""

from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from prometheus_client import CollectorRegistry

from kubemend.agent import ports
from kubemend.agent.app import health_checks, hub_wiring
from kubemend.agent.app.device_sources import DeviceSources
from kubemend.agent.app.reporting import Reporting
from kubemend.agent.app.restart_proofs import RestartProofs
from kubemend.agent.clients.journal.store import Store
from kubemend.agent.clients.podresources.client import AllocationCache, GpuHolders
from kubemend.agent.devices import event_messages
from kubemend.agent.devices.condition_publisher import ConditionPublisher
from kubemend.agent.devices.degradation_expiry import DegradationExpiry
from kubemend.agent.devices.node_health import NodeHealth
from kubemend.agent.devices.operator_commands import OperatorCommands
from kubemend.agent.devices.suspicion import SuspicionTracker
from kubemend.agent.devices.verdict_store import VerdictStore
from kubemend.agent.faults.app_faults import AppFaultHandler
from kubemend.agent.faults.finding_queue import FindingQueue
from kubemend.agent.faults.hangs import Hangs
from kubemend.agent.faults.lost_devices import LostDevices
from kubemend.agent.faults.pipeline import FindingPipeline
from kubemend.agent.health.catalog.catalog import Catalog
from kubemend.agent.health.state import evidence
from kubemend.agent.metrics import Metrics
from kubemend.agent.model.devices import DeviceId, Gpu
from kubemend.agent.model.findings import Finding, FindingKind
from kubemend.agent.model.workloads import PodChange, PodChangeKind, PodUid
from kubemend.agent.reporters.events import EventReporter
from kubemend.agent.restarts.annotation_reports import AnnotationReports
from kubemend.agent.restarts.dependencies import DeviceFacts
from kubemend.agent.restarts.manual_requests import ManualRestarts
from kubemend.agent.restarts.runtime_access import RuntimeAccess
from kubemend.agent.settings import Settings
from kubemend.agent.sources.nodes import NodeWatch
from kubemend.agent.sources.owners import OwnerLookup
from kubemend.agent.sources.plugin_reports import PluginReports
from kubemend.agent.sources.pods import PodWatch
from kubemend.agent.sources.processes import ProcFs
from kubemend.common import aio
from kubemend.common.components import ComponentRegistry, ComponentState, ComponentStatus
from kubemend.common.kube import client as kube

if TYPE_CHECKING:
    from kubemend.agent.hub.client import Hub


@dataclass(frozen=True, slots=True)
class Resources:
    """What all services share."""

    settings: Settings
    boot_id: str
    catalog: Catalog
    registry: CollectorRegistry
    metrics: Metrics
    parts: ComponentRegistry
    store: Store
    api: kube.KubeClient
    allocations: AllocationCache
    allocatable: Callable[[], Awaitable[frozenset[str]]]
    processes: ProcFs


@dataclass(frozen=True, slots=True)
class NodeServices:
    """The services. ``hub`` is None without one; ``access`` is fulfilled when the runtime has been found."""

    sources: DeviceSources
    verdict_store: VerdictStore
    pods: PodWatch
    node: NodeWatch
    reporting: Reporting
    holders: GpuHolders
    publisher: ConditionPublisher
    hub: "Hub | None"
    access: aio.Promise[RuntimeAccess]
    pipeline: FindingPipeline
    expiry: DegradationExpiry
    suspects: SuspicionTracker
    hangs: Hangs
    prover: RestartProofs
    requests: ManualRestarts
    operators: OperatorCommands
    plugins: PluginReports
    owners: OwnerLookup
    device_facts: DeviceFacts
    health_checks: dict[str, Coroutine[Any, Any, None]]

    @classmethod
    async def of(cls, shared: Resources) -> Self:
        """Create all services. Raises JournalError when the state saved by a previous agent cannot be read."""
        queue = FindingQueue(metrics=shared.metrics)
        sources = await DeviceSources.of(
            shared.settings,
            boot_id=shared.boot_id,
            catalog=shared.catalog,
            store=shared.store,
            metrics=shared.metrics,
            parts=shared.parts,
            queue=queue,
        )
        driver = sources.driver
        verdict_store = await _verdicts(shared, sources)
        pods = _pods(shared)
        node = NodeWatch(
            api=shared.api,
            node_name=shared.settings.node_name,
            shutdown=pods.node_shuts_down,
            report=shared.parts.reporter("node"),
        )
        reporting = Reporting.of(shared.settings, api=shared.api, pods=pods, metrics=shared.metrics, parts=shared.parts)
        AnnotationReports(pods=pods, conditions=reporting.pods, events=reporting.events).begin()
        holders = GpuHolders(cache=shared.allocations, inventory=lambda: driver.inventory)
        publisher = _publisher(
            shared, sources, verdict_store=verdict_store, pods=pods, holders=holders, reporting=reporting
        )
        hub = hub_wiring.build_hub_client(
            shared.settings,
            parts=shared.parts,
            registry=shared.registry,
            pods=pods,
            store=shared.store,
            holders=holders,
            driver=driver,
            verdict_store=verdict_store,
        )
        plugins = _plugin_reports(shared, queue=queue, driver=driver, verdict_store=verdict_store)
        access: aio.Promise[RuntimeAccess] = aio.Promise()
        faults = AppFaultHandler(
            verdict_store=verdict_store,
            catalog=shared.catalog,
            pods=pods,
            devices=driver,
            holders=holders,
            processes=shared.processes,
            access=access,
            knows_pids=shared.processes.has_pids_of(shared.settings.kernel_log),
        )
        made = cls(
            sources=sources,
            verdict_store=verdict_store,
            pods=pods,
            node=node,
            reporting=reporting,
            holders=holders,
            publisher=publisher,
            hub=hub,
            access=access,
            pipeline=FindingPipeline(
                queue=queue,
                verdict_store=verdict_store,
                publisher=publisher,
                faults=faults,
                lost=LostDevices(
                    verdict_store=verdict_store,
                    catalog=shared.catalog,
                    faults=faults,
                    devices=driver,
                    report_to_hub=_gangs(hub).device_lost,
                ),
                devices=driver,
                processes=shared.processes,
                metrics=shared.metrics,
                classify=shared.catalog.classify,
                on_aside=lambda finding: _record_oom_kill(finding, pods=pods, events=reporting.events),
            ),
            expiry=DegradationExpiry(verdict_store=verdict_store, catalog=shared.catalog, submit=queue.submit),
            suspects=SuspicionTracker(
                verdict_store=verdict_store,
                driver=driver,
                processes=shared.processes,
                submit=queue.submit,
                classify=shared.catalog.classify,
            ),
            hangs=Hangs(
                verdict_store=verdict_store,
                devices=driver,
                holders=holders,
                metrics=shared.metrics,
            ),
            prover=RestartProofs(
                nvml=sources.nvml,
                verdict_store=verdict_store,
                holders=holders,
                processes=shared.processes,
                submit=queue.submit,
                classify=shared.catalog.classify,
                metrics=shared.metrics,
                timeout=shared.settings.proof_timeout,
            ),
            requests=ManualRestarts(
                verdict_store=verdict_store,
                pods=pods,
                devices=driver,
                holders=holders,
                access=access,
                lacking=lambda: _missing_runtime(shared.parts),
            ),
            operators=OperatorCommands(
                verdict_store=verdict_store,
                devices=driver,
                handles=sources.nvml,
                submit=queue.submit,
                forget=(sources.forget, plugins.forget),
                others=sources.other_names,
                unobserved=sources.nvml.unobserved,
            ),
            plugins=plugins,
            owners=OwnerLookup(shared.api),
            device_facts=DeviceFacts(holders=holders, verdict_store=verdict_store, devices=driver),
            health_checks=health_checks.tasks(
                shared.settings,
                parts=shared.parts,
                metrics=shared.metrics,
                processes=shared.processes,
                access=access,
                holders=holders,
                verdicts_of=publisher.verdicts_of,
            ),
        )
        made._subscribe(shared.parts)
        return made

    def _subscribe(self, parts: ComponentRegistry) -> None:
        def on_devices(_: ComponentStatus) -> None:
            self.publisher.holders_changed()
            self.plugins.update()

        def on_api_server(status: ComponentStatus) -> None:
            if status.state is ComponentState.READY:
                self.plugins.listed()

        parts.subscribe("nvml", on_devices)
        parts.subscribe("network", on_devices)
        parts.subscribe("kernel-log", self.expiry.kernel_log_is)
        parts.subscribe("kubernetes-api", on_api_server)
        self.pods.subscribe(self._on_pod)
        self.pods.subscribe(self.plugins.apply)

    def _on_pod(self, change: PodChange) -> None:
        if change.kind is PodChangeKind.GONE:
            self.reporting.pods.forget(change.pod.ref.uid)
        else:
            self.reporting.pods.observe(change.pod)
            self.reporting.counts.observe(change.pod)
        self.publisher.holders_changed()

    @property
    def gangs(self) -> ports.Gangs:
        """The component that restarts gangs together."""
        return _gangs(self.hub)

    def tasks(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return the tasks that must run indefinitely, by name."""
        return {
            "pod-watch": self.pods.run(),
            "node-watch": self.node.run(),
            **self.reporting.tasks(),
            "publisher": self.publisher.run(),
            "engine": self.pipeline.run(),
            "suspects": self.suspects.run(),
            "fading": self.expiry.run(),
            "plugin-reports": self.plugins.run(),
            **self.sources.tasks(),
            **self.health_checks,
        }


async def _verdicts(shared: Resources, sources: DeviceSources) -> VerdictStore:
    verdict_store = VerdictStore(
        store=shared.store,
        boot_id=shared.boot_id,
        catalog=shared.catalog,
        is_there=sources.nearby.is_there,
    )
    await verdict_store.load(places=sources.places_before)
    return verdict_store


def _pods(shared: Resources) -> PodWatch:
    return PodWatch(
        api=shared.api,
        node_name=shared.settings.node_name,
        report=shared.parts.reporter("kubernetes-api"),
        bare=shared.metrics.bare_pods.set,
    )


def _publisher(
    shared: Resources,
    sources: DeviceSources,
    *,
    verdict_store: VerdictStore,
    pods: PodWatch,
    holders: GpuHolders,
    reporting: Reporting,
) -> ConditionPublisher:
    return ConditionPublisher(
        verdict_store=verdict_store,
        pods=pods,
        devices=sources.driver,
        holders=holders,
        reporter=reporting.pods,
        nics=sources.nearby,
        node=NodeHealth(
            verdict_store=verdict_store,
            devices=sources.driver,
            condition=reporting.node,
            events=reporting.events,
            metrics=shared.metrics,
            taints=reporting.taints,
            others=sources.other_names,
        ),
    )


def _plugin_reports(
    shared: Resources, *, queue: FindingQueue, driver: ports.Devices, verdict_store: VerdictStore
) -> PluginReports:
    def locate(uuid: DeviceId) -> Gpu | None:
        return driver.inventory.by_id(uuid)

    return PluginReports(
        emit=queue.submit,
        classify=shared.catalog.classify,
        locate=locate,
        held=lambda: verdict_store.held(FindingKind.REPORTED_UNHEALTHY),
        allocatable=shared.allocatable,
    )


def _gangs(hub: "Hub | None") -> ports.Gangs:
    return hub if hub is not None else ports.NO_GANGS


def _missing_runtime(parts: ComponentRegistry) -> str:
    return parts.all()["container-runtime"].message or "the container runtime has not been found yet"


def _record_oom_kill(finding: Finding, *, pods: PodWatch, events: EventReporter) -> None:
    pod = pods.pods().get(PodUid(finding.evidence.get(evidence.POD_UID, "")))
    if pod is None:
        return
    killed = finding.evidence.get(evidence.CONTAINER_ID)
    container = next((spec.name for spec in pod.containers if killed and spec.container_id == killed), "")
    message = event_messages.of_oom_kill(finding, pod=pod.ref, container=container)
    if message is not None:
        events.record(message)
