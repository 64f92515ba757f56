"""The kubelet stand-in as a whole: watches its pods, gives each a worker, looks at the runtime, serves its sockets."""

import asyncio
import contextlib
import datetime as dt
from collections.abc import Iterable

import structlog

from agent.cri import errors as cri_errors
from common import aio
from common.kube import client, errors, paths, watching
from hack.devnode.kubelet import cleanup, control, podresources_server, registration
from hack.devnode.kubelet.backoff import CrashLoopBackOff
from hack.devnode.kubelet.devices import DeviceManager
from hack.devnode.kubelet.launcher import Launcher
from hack.devnode.kubelet.pleg import Change, Pleg
from hack.devnode.kubelet.probes import Prober
from hack.devnode.kubelet.progress import Progress
from hack.devnode.kubelet.reporting import Reporter
from hack.devnode.kubelet.runtime import CriRuntime
from hack.devnode.kubelet.settings import Settings
from hack.devnode.kubelet.spec import Json, Pod
from hack.devnode.kubelet.volumes import PodDirectories
from hack.devnode.kubelet.worker import Parts, PodWorker

log = structlog.get_logger(__name__)

_ORPHAN_PERIOD = 2.0


class Kubelet:
    """One stand-in. ``run`` never returns normally."""

    def __init__(self, settings: Settings, *, kube: client.KubeClient, runtime: CriRuntime) -> None:
        self._settings = settings
        self._kube = kube
        self._workers: dict[str, PodWorker] = {}
        self._tidying: set[asyncio.Task[None]] = set()
        self._listed = False
        progress = Progress()
        pleg = Pleg(runtime, period=settings.relist_period, owns=self._owns, on_change=self._changed)
        reporter = Reporter(kube, progress=progress)
        devices = DeviceManager(
            resource=settings.device_resource, ids=settings.device_ids, directory=settings.root_dir / "device-plugins"
        )
        directories = PodDirectories(root=settings.root_dir, fetch_config_map=self._config_map)
        self._parts = Parts(
            settings=settings,
            runtime=runtime,
            pleg=pleg,
            reporter=reporter,
            prober=Prober(runtime=runtime, reported=reporter.known, on_change=self._wake),
            devices=devices,
            directories=directories,
            launcher=Launcher(runtime=runtime, settings=settings, directories=directories, devices=devices),
            backoff=CrashLoopBackOff(first=settings.backoff_first, limit=settings.backoff_limit),
            progress=progress,
        )

    async def run(self) -> None:
        """Serve until cancelled. Containers go on running: a kubelet that starts again adopts them."""
        async with contextlib.AsyncExitStack() as stack:
            settings = self._settings
            stack.push_async_callback(self._parts.prober.close)
            await self._register()
            service = podresources_server.PodResources(
                devices=self._parts.devices,
                claims=podresources_server.load_claims(settings.claims_file),
                active_pods=self._active_pods,
            )
            await stack.enter_async_context(podresources_server.serve(service, socket=settings.pod_resources_socket))
            if settings.control_socket is not None:
                await stack.enter_async_context(control.serve(self._commands(), socket=settings.control_socket))
            async with asyncio.TaskGroup() as group:
                aio.spawn_eternal(group, self._parts.pleg.run(), name="pleg")
                aio.spawn_eternal(group, self._parts.reporter.run(), name="status manager")
                aio.spawn_eternal(group, self._collect_garbage(), name="garbage collector")
                aio.spawn_eternal(group, self._end_orphans(), name="orphans")
                aio.spawn_eternal(group, self._watch(group), name="pod watch")

    async def _register(self) -> None:
        version = await self._parts.runtime.version()
        now = dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        await registration.register(self._kube, registration.node(self._settings, runtime_version=version, now=now))
        log.info("node.registered", node=self._settings.node_name, runtime=version)

    async def _watch(self, group: asyncio.TaskGroup) -> None:
        """List and watch the node's pods; start over when the watch breaks or is too old."""
        backoff = aio.Backoff(first=0.2, limit=5.0)
        params = {"fieldSelector": f"spec.nodeName={self._settings.node_name}"}
        while True:
            try:
                listing = await self._kube.list(paths.PODS, params=params)
                self._replace(listing.items, group)
                backoff.reset()
                await self._follow(listing.resource_version, params=params, group=group)
            except errors.KubeError as error:
                log.warning("watch.broken", error=str(error))
                await backoff.wait()

    async def _follow(self, version: str, *, params: dict[str, str], group: asyncio.TaskGroup) -> None:
        while True:
            stream = self._kube.watch(paths.PODS, params=params, resource_version=version)
            async for event in stream:
                version = event.resource_version or version
                if event.type is watching.EventType.DELETED:
                    self._gone(event.object["metadata"]["uid"])
                elif event.type is not watching.EventType.BOOKMARK:
                    self._upsert(event.object, group)

    def _replace(self, items: list[Json], group: asyncio.TaskGroup) -> None:
        present = {item["metadata"]["uid"] for item in items}
        for uid in [uid for uid in self._workers if uid not in present]:
            self._gone(uid)
        for item in items:
            self._upsert(item, group)
        self._listed = True

    def _upsert(self, raw: Json, group: asyncio.TaskGroup) -> None:
        pod = Pod.parse(raw)
        if pod.uid in self._workers:
            self._workers[pod.uid].update(pod)
            return
        worker = self._workers[pod.uid] = PodWorker(pod=pod, parts=self._parts)
        task = group.create_task(worker.run(), name=f"pod {pod}")
        task.add_done_callback(lambda _: self._finished(pod.uid))

    def _gone(self, uid: str) -> None:
        if uid in self._workers:
            self._workers[uid].leave()

    def _finished(self, uid: str) -> None:
        self._workers.pop(uid, None)
        self._parts.progress.changed()

    def _owns(self, uid: str) -> bool:
        """Whether a pod of the runtime is this node's: other dev nodes may use the same runtime."""
        return uid in self._workers or self._parts.directories.knows(uid)

    def _wake(self, uid: str) -> None:
        if uid in self._workers:
            self._workers[uid].wake()

    def _changed(self, change: Change) -> None:
        self._wake(change.uid)
        if change.died and change.uid in self._workers:
            task = asyncio.create_task(self._after_death(change), name=f"gc after a death in {change.uid}")
            self._tidying.add(task)
            task.add_done_callback(self._tidying.discard)

    async def _after_death(self, change: Change) -> None:
        """Right after an exit kubelet keeps one dead container of that name."""
        shown = self._parts.pleg.last_seen(change.uid)
        names = [item.name for item in shown.containers if item.id in change.died]
        try:
            await cleanup.remove_all(cleanup.surplus(shown, names=names), runtime=self._parts.runtime)
        except cri_errors.CriError as error:
            log.warning("gc.failed", error=str(error))

    async def _collect_garbage(self) -> None:
        async for _ in aio.ticks(period=self._settings.gc_period):
            try:
                await self._gc()
            except cri_errors.CriError as error:
                log.warning("gc.failed", error=str(error))

    async def _gc(self) -> None:
        """Remove dead containers, and what does not run of pods that the API does not know."""
        runtime = self._parts.runtime
        for uid in list(self._parts.pleg.pods()):
            shown = await runtime.inspect(uid)
            if uid in self._workers:
                await cleanup.remove_all(cleanup.evictable(shown), runtime=runtime)
            elif self._listed and not cleanup.lives(shown):
                await cleanup.remove_containers(uid, runtime=runtime)

    async def _end_orphans(self) -> None:
        """Stop and remove pods that run here but that the API does not know (deleted while kubelet was away)."""
        async for _ in aio.ticks(period=_ORPHAN_PERIOD):
            for uid in list(self._parts.pleg.pods()) if self._listed else ():
                if uid not in self._workers:
                    try:
                        await self._end_orphan(uid)
                    except cri_errors.CriError as error:
                        log.warning("gc.failed", error=str(error))

    async def _end_orphan(self, uid: str) -> None:
        runtime = self._parts.runtime
        if cleanup.lives(await runtime.inspect(uid)):
            log.info("pod.orphan_removed", uid=uid)
            await cleanup.remove_containers(uid, runtime=runtime)
            self._parts.devices.free(uid)

    def _active_pods(self) -> Iterable[Pod]:
        return [worker.pod for worker in self._workers.values() if worker.active]

    async def _config_map(self, namespace: str, name: str) -> Json:
        return await self._kube.get(f"{paths.collection('configmaps', namespace=namespace)}/{name}")

    def _commands(self) -> dict[str, control.Command]:
        return {
            "hold": self._hold, "release": self._release, "relist": self._relist, "look": self._look,
            "resync": self._resync, "gc": self._gc,
        }  # fmt: skip

    async def _hold(self) -> None:
        await self._parts.pleg.hold()
        await self._settled()
        while any(worker.waits for worker in self._workers.values()):
            await self._relist()  # a pass that is due already would act on the test's first look, whatever that shows

    async def _release(self) -> None:
        self._parts.pleg.release()

    async def _look(self) -> None:
        await self._parts.pleg.relist()

    async def _relist(self) -> None:
        await self._look()
        await self._settled()

    async def _resync(self) -> None:
        for worker in self._workers.values():
            worker.wake()
        await self._relist()

    async def _settled(self) -> None:
        await self._parts.progress.until(
            lambda: self._parts.reporter.idle and all(worker.quiet for worker in self._workers.values())
        )
