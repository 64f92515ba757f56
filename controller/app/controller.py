"""Run the controller process: each component is a named task of one TaskGroup, and the process exits if one ends."""

import asyncio
import importlib.metadata
import os
import uuid
from collections.abc import Callable

import structlog
from prometheus_client import CollectorRegistry

from kubemend.common import aio, process, process_metrics, web
from kubemend.common.components import ComponentRegistry, ComponentState, ComponentStatus
from kubemend.common.kube import client as kube
from kubemend.controller.app import traces
from kubemend.controller.app.leadership import LeaderRelay, LeadershipTerms
from kubemend.controller.certificates.keeper import Keeper, KeeperOptions
from kubemend.controller.coordinator import gc_schedule
from kubemend.controller.coordinator.dependencies import Dependencies, JobSets, NoJobSets, Policy, steady_clock
from kubemend.controller.hub import identity
from kubemend.controller.hub.metrics import HubMetrics
from kubemend.controller.hub.node_policy import NodePolicy
from kubemend.controller.hub.server import Hub, HubOptions
from kubemend.controller.hub.service import Coordination
from kubemend.controller.leader.election import Election
from kubemend.controller.metrics import Metrics
from kubemend.controller.restarts.events import RoundEventRecorder
from kubemend.controller.restarts.pod_replacer import PodReplacer
from kubemend.controller.restarts.store import RestartStore
from kubemend.controller.settings import Settings
from kubemend.controller.watches.evictions import Evictions
from kubemend.controller.watches.members import MemberChange, MemberChangeKind, Members
from kubemend.controller.watches.nodes import Nodes

log = structlog.get_logger(__name__)


async def run(settings: Settings) -> None:
    """Run the controller until SIGTERM or SIGINT, which may arrive at any time.

    Raises ListenError if it cannot start. An ExceptionGroup is an internal error.
    """
    stop = process.stop_signal()
    gc_schedule.put_off()
    async with kube.connect(kubeconfig=settings.kubeconfig) as api:
        try:
            await _run_parts(settings, stop=stop, api=api)
        except* process.Stop:
            log.info("controller.stopped")


async def _run_parts(settings: Settings, *, stop: asyncio.Event, api: kube.KubeClient) -> None:
    registry = process_metrics.registry()
    metrics = Metrics(registry)
    parts = ComponentRegistry(show=metrics.show_part)
    now = steady_clock()
    relay = LeaderRelay()
    evictions = Evictions(api=api, report=parts.reporter("evictions", needed=False))
    members = Members(
        api=api,
        report=parts.reporter("members"),
        bare=metrics.bare_members.set,
        eviction_requested=evictions.requested,
    )
    evictions.subscribe(members.eviction_changed)
    nodes = Nodes(api=api, report=parts.reporter("nodes"))
    hub = _hub(settings, api=api, relay=relay, members=members, metrics=HubMetrics(registry))
    tracing = traces.from_environment(os.environ, metrics=metrics, about=_about(settings))
    events = RoundEventRecorder(api=api, report=parts.reporter("events"), clock=now)
    restarts = RestartStore(
        api=api,
        report=parts.reporter("restarts"),
        is_alive=lambda gang: bool(members.of_gang(gang)),
        keeping=settings.keeping(),
        clock=now,
    )
    dependencies = Dependencies(
        members=members,
        nodes=nodes,
        restarts=restarts,
        pod_replacer=PodReplacer(api=api, on_outcome=relay.replaced),
        events=events,
        sessions=hub.sessions().get,
        metrics=metrics,
        now=now,
        policy=Policy(settings.limits(), frozenset(settings.opt_in_namespaces), dry_run=settings.dry_run),
        trace=tracing.submit if tracing is not None else None,
        jobsets=_jobsets(settings, api=api, restarts=restarts, nodes=nodes, parts=parts, registry=registry, now=now),
    )
    election = Election(
        api=api,
        namespace=settings.namespace,
        name=settings.lease_name,
        identity=f"{settings.identities() or f'{settings.pod_name}_'}{uuid.uuid4().hex[:8]}",
        predecessors=settings.identities(),
        hub=settings.own_hub(),
        lead=LeadershipTerms(
            dependencies=dependencies,
            hub=hub,
            relay=relay,
            policy=_node_policy(settings, api=api, nodes=nodes, parts=parts),
        ),
        report=parts.reporter("leader"),
    )
    members.subscribe(lambda change: _bound(change, hub))
    async with (
        web.serving(metrics=settings.listen(), probes=settings.probes(), parts=parts, registry=registry),
        asyncio.TaskGroup() as tasks,
    ):
        eternal = {
            "members": members.run(),
            "nodes": nodes.run(),
            "evictions": evictions.run(),
            "events": events.run(),
            "election": election.run(),
            "ends of rounds": restarts.finish(),
            "hub": _serve(hub, settings=settings, api=api, report=parts.reporter("hub")),
        }
        if tracing is not None:
            eternal["traces"] = tracing.run()
        for name, work in eternal.items():
            aio.spawn_eternal(tasks, work, name=name)
        log.info("controller.started", pod=settings.pod_name, namespace=settings.namespace)
        await stop.wait()
        raise process.Stop


def _about(settings: Settings) -> dict[str, str]:
    """Return the OpenTelemetry resource attributes of this process."""
    return {
        "service.name": "kubemend-controller",
        "service.namespace": settings.namespace,
        "service.instance.id": settings.pod_name,
        "service.version": importlib.metadata.version("kubemend"),
        "k8s.namespace.name": settings.namespace,
        "k8s.pod.name": settings.pod_name,
    }


def _jobsets(
    settings: Settings,
    *,
    api: kube.KubeClient,
    restarts: RestartStore,
    nodes: Nodes,
    parts: ComponentRegistry,
    registry: CollectorRegistry,
    now: Callable[[], float],
) -> JobSets:
    if not settings.jobsets:
        return NoJobSets()
    from kubemend.controller.coordinator.jobset_rounds import OurJobSets
    from kubemend.controller.jobsets import running
    from kubemend.controller.jobsets.metrics import JobSetMetrics

    made = OurJobSets(
        lambda book: running.JobSets(
            api=api,
            report=parts.reporter("jobsets", needed=False),
            rounds=book,
            metrics=JobSetMetrics(registry),
            instance=settings.pod_name,
            parallel=settings.jobset_writes,
            tainted=nodes.kept_off,
            clock=now,
        )
    )
    restarts.subscribe(made.book.restart_changed)
    return made


def _hub(settings: Settings, *, api: kube.KubeClient, relay: LeaderRelay, members: Members, metrics: HubMetrics) -> Hub:
    service = Coordination(
        name=settings.pod_name,
        listener=relay,
        pods=members,
        identities=identity.Identities(identity.TokenReviewer(api, user=settings.agent_user())),
        metrics=metrics,
        caps=settings.caps(),
    )
    return Hub(service, options=HubOptions(settings.hub_address))


def _node_policy(
    settings: Settings, *, api: kube.KubeClient, nodes: Nodes, parts: ComponentRegistry
) -> NodePolicy | None:
    if not settings.hub_policy:
        return None
    return NodePolicy(
        api=api,
        nodes=nodes,
        namespace=settings.namespace,
        name=settings.hub_policy,
        report=parts.reporter("hub policy", needed=False),
    )


async def _serve(
    hub: Hub, *, settings: Settings, api: kube.KubeClient, report: Callable[[ComponentStatus], None]
) -> None:
    """Serve agents indefinitely, once the certificates exist."""
    keeper = Keeper(api, KeeperOptions(settings.namespace, settings.hub_services))
    report(
        ComponentStatus(
            ComponentState.DEGRADED, "the hub has no certificates yet", "Check that the API server is reachable."
        )
    )
    await keeper.ready()
    await hub.start(keeper.credentials())
    report(ComponentStatus(ComponentState.READY))
    try:
        async with asyncio.TaskGroup() as tasks:
            aio.spawn_eternal(tasks, keeper.run(), name="certificates")
            aio.spawn_eternal(tasks, hub.run(), name="streams")
    finally:
        await hub.stop()


def _bound(change: MemberChange, hub: Hub) -> None:
    """Process the reports of an agent about a pod that was not known here yet."""
    if change.member.node and change.kind is not MemberChangeKind.GONE:
        hub.pod_bound(change.member.pod.uid, change.member.node)
