"""The controller process: every part a named task of one TaskGroup; a part that ends takes the process with it."""

import asyncio
import importlib.metadata
import os
import uuid
from collections.abc import Callable

import structlog
from prometheus_client import CollectorRegistry

from common import aio, process, process_metrics, web
from common.kube import client as kube
from common.parts import Parts, PartState, PartStatus
from controller.app import garbage, traces
from controller.app.leading import Leading, Relay
from controller.app.metrics import Metrics
from controller.app.outside import JobSets, Outside, Policy, steady_clock
from controller.app.without_jobsets import NoJobSets
from controller.certificates.keeper import Keeper, KeeperOptions
from controller.hub import identity
from controller.hub.metrics import HubMetrics
from controller.hub.server import Hub, HubOptions
from controller.hub.service import Coordination
from controller.leader.election import Election
from controller.restarts.events import EventTeller
from controller.restarts.recreate import Recreator
from controller.restarts.store import RestartStore
from controller.settings import Settings
from controller.watches.members import MemberChange, MemberChangeKind, Members
from controller.watches.nodes import Nodes

log = structlog.get_logger(__name__)


async def run(settings: Settings) -> None:
    """Run the controller until SIGTERM or SIGINT, which may come as early as they like.

    Raises ListenError when it cannot start; an ExceptionGroup is a defect of ours.
    """
    stop = process.stop_signal()
    garbage.put_off()
    async with kube.connect(kubeconfig=settings.kubeconfig) as api:
        try:
            await _run_parts(settings, stop=stop, api=api)
        except* process.Stop:
            log.info("controller.stopped")


async def _run_parts(settings: Settings, *, stop: asyncio.Event, api: kube.KubeClient) -> None:
    registry = process_metrics.registry()
    metrics = Metrics(registry)
    parts = Parts(show=metrics.show_part)
    now = steady_clock()
    relay = Relay()
    members = Members(api=api, report=parts.reporter("members"), bare=metrics.bare_members.set)
    nodes = Nodes(api=api, report=parts.reporter("nodes"))
    hub = _hub(settings, api=api, relay=relay, members=members, metrics=HubMetrics(registry))
    tracing = traces.wanted(os.environ, metrics=metrics, about=_about(settings))
    events = EventTeller(api=api, report=parts.reporter("events"))
    restarts = RestartStore(
        api=api,
        report=parts.reporter("restarts"),
        is_alive=lambda gang: bool(members.of_gang(gang)),
        keeping=settings.keeping(),
    )
    outside = Outside(
        members=members,
        nodes=nodes,
        restarts=restarts,
        recreator=Recreator(api=api, on_outcome=relay.replaced),
        events=events,
        sessions=hub.sessions().get,
        metrics=metrics,
        now=now,
        policy=Policy(settings.limits(), frozenset(settings.opted_in_namespaces), dry_run=settings.dry_run),
        trace=tracing.take if tracing is not None else None,
        jobsets=_jobsets(settings, api=api, restarts=restarts, nodes=nodes, parts=parts, registry=registry, now=now),
    )
    election = Election(
        api=api,
        namespace=settings.namespace,
        name=settings.lease_name,
        identity=f"{settings.identities() or f'{settings.pod_name}_'}{uuid.uuid4().hex[:8]}",
        predecessors=settings.identities(),
        hub=settings.own_hub(),
        lead=Leading(outside=outside, hub=hub, relay=relay),
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
    """Return what traces say of this process (OpenTelemetry's resource attributes)."""
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
    parts: Parts,
    registry: CollectorRegistry,
    now: Callable[[], float],
) -> JobSets:
    if not settings.jobsets:
        return NoJobSets()
    from controller.app.jobsets import OurJobSets
    from controller.jobsets import running
    from controller.jobsets.metrics import JobSetMetrics

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


def _hub(settings: Settings, *, api: kube.KubeClient, relay: Relay, members: Members, metrics: HubMetrics) -> Hub:
    service = Coordination(
        name=settings.pod_name,
        listener=relay,
        pods=members,
        identities=identity.Identities(identity.TokenReviewer(api, user=settings.agent_user())),
        metrics=metrics,
        caps=settings.caps(),
    )
    return Hub(service, options=HubOptions(settings.hub_address))


async def _serve(hub: Hub, *, settings: Settings, api: kube.KubeClient, report: Callable[[PartStatus], None]) -> None:
    """Serve agents for ever, once there are certificates."""
    keeper = Keeper(api, KeeperOptions(settings.namespace, settings.hub_services))
    report(PartStatus(PartState.DEGRADED, "the hub's certificates are not there yet", "is the API server reachable?"))
    await keeper.ready()
    await hub.start(keeper.credentials())
    report(PartStatus(PartState.READY))
    try:
        async with asyncio.TaskGroup() as tasks:
            aio.spawn_eternal(tasks, keeper.run(), name="certificates")
            aio.spawn_eternal(tasks, hub.run(), name="streams")
    finally:
        await hub.stop()


def _bound(change: MemberChange, hub: Hub) -> None:
    """What an agent has said of a pod before we knew of it can be looked at now."""
    if change.member.node and change.kind is not MemberChangeKind.GONE:
        hub.pod_bound(change.member.pod.uid, change.member.node)
