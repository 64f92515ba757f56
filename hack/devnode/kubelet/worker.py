"""One pod's worker: serial, woken by changes and its own timer, deciding only by what PLEG saw after its last pass.

After ``pkg/kubelet/pod_workers.go`` and ``SyncPod``/``SyncTerminatingPod``/``SyncTerminatedPod``.
"""

import asyncio
import datetime as dt
import enum
import random
from dataclasses import dataclass, field, replace

import structlog

from agent.cri import errors as cri_errors
from common.kube import errors as kube_errors
from hack.devnode.kubelet import cleanup, hooks, phase, podstatus, rules
from hack.devnode.kubelet.backoff import CrashLoopBackOff
from hack.devnode.kubelet.devices import DeviceManager, NotEnoughDevicesError
from hack.devnode.kubelet.environment import UnsupportedFieldError
from hack.devnode.kubelet.launcher import Launcher, Nest, StartFailedError
from hack.devnode.kubelet.observed import Runtime
from hack.devnode.kubelet.pleg import Pleg
from hack.devnode.kubelet.probes import Prober
from hack.devnode.kubelet.progress import Progress
from hack.devnode.kubelet.reporting import Reporter
from hack.devnode.kubelet.runtime import CriRuntime
from hack.devnode.kubelet.settings import Settings
from hack.devnode.kubelet.spec import Container, Json, Pod
from hack.devnode.kubelet.statuses import StartFailure
from hack.devnode.kubelet.volumes import PodDirectories

log = structlog.get_logger(__name__)

_HOUSEKEEPING = 2.0  # seconds between kubelet's attempts to remove what is left of pods (housekeepingPeriod)


@dataclass(frozen=True, slots=True)
class Parts:
    """What all workers share."""

    settings: Settings
    runtime: CriRuntime
    pleg: Pleg
    reporter: Reporter
    prober: Prober
    devices: DeviceManager
    directories: PodDirectories
    launcher: Launcher
    backoff: CrashLoopBackOff
    progress: Progress


class _Stage(enum.Enum):
    IDLE = "idle"
    WAITING = "waiting for a newer look at the runtime"
    SYNCING = "syncing"


class SyncFailedError(Exception):
    """A pass could not do all it wanted; it is tried again after ``retry_in`` seconds."""

    def __init__(self, why: str, *, retry_in: float) -> None:
        super().__init__(why)
        self.retry_in = retry_in


@dataclass(slots=True)
class PodWorker:
    """Keeps one pod as it should be, until its API object is gone."""

    pod: Pod
    parts: Parts
    gone: bool = False
    _awake: asyncio.Event = field(default_factory=asyncio.Event)
    _stage: _Stage = _Stage.IDLE
    _synced_at: float = float("-inf")
    _ending: bool = False
    _ended: bool = False
    _rejected: Json = field(default_factory=dict)
    _failures: dict[str, StartFailure] = field(default_factory=dict)

    def update(self, pod: Pod) -> None:
        """Take over a newer pod object; a change of status alone does not ask for a pass."""
        wakes = _differs(self.pod, pod)
        self.pod = pod
        if wakes:
            self.wake()

    def wake(self) -> None:
        """Ask for a pass."""
        self._awake.set()
        self.parts.progress.changed()

    def leave(self) -> None:
        """The pod object is gone: end, after stopping whatever still runs."""
        self.gone = True
        self.wake()

    @property
    def quiet(self) -> bool:
        """Whether nothing will happen before the runtime is looked at again."""
        if self._stage is _Stage.WAITING:
            return not self.parts.pleg.has_newer_than(self.pod.uid, self._synced_at)
        return self._stage is _Stage.IDLE and not self._awake.is_set()

    @property
    def waits(self) -> bool:
        """Whether it makes a pass as soon as the runtime is looked at again, also when nothing has changed there."""
        return self._stage is _Stage.WAITING

    @property
    def active(self) -> bool:
        """Whether the pod still holds what kubelet gave it."""
        return not self._ended

    async def run(self) -> None:
        """Make passes until the pod object is gone and nothing of it is left."""
        wait = 0.0
        while not (self.gone and self._ended):
            await self._wait(wait)
            self._enter(_Stage.WAITING)
            shown = await self.parts.pleg.newer_than(self.pod.uid, self._synced_at)
            self._enter(_Stage.SYNCING)
            wait = await self._pass(shown)
            self._synced_at = asyncio.get_running_loop().time()
            self._enter(_Stage.IDLE)
        await self._remove_all()

    async def _remove_all(self) -> None:
        """Remove what is left, again while the runtime refuses: the garbage collector may be at the same container."""
        while True:
            try:
                await cleanup.remove_pod(self.pod, parts=self.parts)
            except cri_errors.CriError as error:
                log.warning("pod.not_removed", pod=str(self.pod), error=str(error))
                await asyncio.sleep(_HOUSEKEEPING)
            else:
                return

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._awake.wait()
        except TimeoutError:
            pass
        self._awake.clear()

    async def _pass(self, shown: Runtime) -> float:
        """Make one pass and return the seconds until the next one."""
        settings = self.parts.settings
        try:
            again = await self._sync(shown)
        except SyncFailedError as error:
            log.info("pod.sync_failed", pod=str(self.pod), error=str(error), retry_in=round(error.retry_in, 1))
            return error.retry_in * random.uniform(1.0, 1.5)
        except (cri_errors.CriError, kube_errors.KubeError, UnsupportedFieldError, ExceptionGroup) as error:
            log.warning("pod.sync_failed", pod=str(self.pod), error=str(error))
            return settings.error_retry * random.uniform(1.0, 1.5)
        return 0.0 if again else settings.resync * random.uniform(1.0, 1.5)

    async def _sync(self, shown: Runtime) -> bool:
        """Return whether the next pass is due at once."""
        if self.pod.deleting or self.gone or self._ending:
            await self._terminate(shown)
            return False
        self._admit()
        status = self._report(shown)
        if status["phase"] in phase.TERMINAL:
            self._ending = True
            return True
        await self._converge(shown, status)
        return False

    def _admit(self) -> None:
        """Allocate devices; a pod that gets none fails as kubelet's admission fails it."""
        if self.pod.status.get("phase") in phase.TERMINAL or self._rejected:
            return
        try:
            self.parts.devices.admit(self.pod)
        except NotEnoughDevicesError as error:
            self._rejected = {"phase": phase.FAILED, "reason": "UnexpectedAdmissionError", "message": str(error)}

    async def _converge(self, shown: Runtime, status: Json) -> None:
        pod, parts = self.pod, self.parts
        volumes = await parts.directories.prepare(pod, pod_ip=shown.ip or "")
        parts.prober.watch(pod)
        actions = rules.compute_actions(
            pod=pod, runtime=shown, probes=parts.prober.results, restart_all=_restarting_all(status)
        )
        busy = await self._stop_things(actions, shown)
        if actions.reset:
            self.wake()
            return
        starts = [*actions.start_inits, *actions.start_mains]
        if actions.create_sandbox:
            await self._purge_inits(shown)
            sandbox_id = await parts.launcher.sandbox(pod, attempt=actions.sandbox_attempt)
            shown = replace(shown, sandboxes=(await parts.runtime.inspect(pod.uid)).sandboxes)
        elif starts and actions.sandbox_id is not None:
            sandbox_id = actions.sandbox_id
        else:
            if busy:
                parts.pleg.ask(pod.uid)
            return
        nest = Nest(
            id=sandbox_id,
            sandbox=parts.launcher.sandbox_config(pod, attempt=actions.sandbox_attempt),
            ip=(parts.settings.host_ip if pod.host_network else shown.ip) or "",
            volumes=volumes,
        )
        await self._start_all(actions, shown=shown, nest=nest)
        parts.pleg.ask(pod.uid)

    async def _stop_things(self, actions: rules.Actions, shown: Runtime) -> bool:
        pod, runtime = self.pod, self.parts.runtime
        if actions.kill_pod:
            await hooks.kill_pod(shown, pod=pod, runtime=runtime)
            return bool(shown.running() or shown.sandboxes)
        by_id = {item.id: item for item in shown.containers}
        for kill in actions.kills:
            log.info("container.killed", pod=str(pod), container=kill.name, id=kill.id, why=kill.why)
            await hooks.kill_container(by_id[kill.id], pod=pod, runtime=runtime)
        for item in actions.reset:
            await hooks.kill_container(item, pod=pod, runtime=runtime, grace=0)
            await runtime.remove(item.id)
        return bool(actions.kills or actions.reset)

    async def _purge_inits(self, shown: Runtime) -> None:
        """A new sandbox starts from the first init container: traces of earlier runs would skip it."""
        names = {container.name for container in self.pod.inits}
        for item in shown.containers:
            if item.name in names:
                await self.parts.runtime.remove(item.id)

    async def _start_all(self, actions: rules.Actions, *, shown: Runtime, nest: Nest) -> None:
        waits: list[float] = []
        problems: list[str] = []
        for name in (*actions.start_inits, *actions.start_mains):
            container = self.pod.container(name)
            assert container is not None, "actions name containers of the spec"
            problem = await self._start(container, shown=shown, nest=nest)
            if problem is None:
                continue
            waits.append(problem.retry_in)
            problems.append(str(problem))
            if name in actions.start_inits and container.restart_policy is None:
                break  # a plain init container that cannot start holds up everything after it
        if waits:
            raise SyncFailedError("; ".join(problems), retry_in=min(*waits, self.parts.settings.resync))

    async def _start(self, container: Container, *, shown: Runtime, nest: Nest) -> SyncFailedError | None:
        """Start one container unless it must back off. Only an exited container in the runtime counts for backoff."""
        backoff, key = self.parts.backoff, _backoff_key(self.pod, container)
        dead = shown.latest_exited(container.name)
        if dead is not None:
            finished, now = dead.finished_at / 1e9, dt.datetime.now(tz=dt.UTC).timestamp()
            if (left := backoff.remaining(key, finished_at=finished, now=now)) > 0:
                why = (
                    f"back-off {backoff.current(key):g}s restarting failed container={container.name} "
                    f"pod={self.pod.name}_{self.pod.namespace}({self.pod.uid})"
                )
                self._failures[container.name] = StartFailure("CrashLoopBackOff", why)
                return SyncFailedError(why, retry_in=left)
            backoff.started(key, finished_at=finished, now=now)
        try:
            await self.parts.launcher.start(container, pod=self.pod, shown=shown, nest=nest)
        except StartFailedError as error:
            self._failures[container.name] = error.failure
            return SyncFailedError(str(error), retry_in=self.parts.settings.error_retry)
        self._failures.pop(container.name, None)
        return None

    async def _terminate(self, shown: Runtime) -> None:
        """Stop everything, report the end, and let go of what the pod held."""
        pod, parts = self.pod, self.parts
        if not self._ended:
            if not self.gone:
                self._report(shown)
            await hooks.kill_pod(shown, pod=pod, runtime=parts.runtime, grace=1 if self.gone else None)
            after = await parts.runtime.inspect(pod.uid)
            if after.running():
                raise SyncFailedError("containers still run after the pod was stopped", retry_in=1.0)
            await parts.prober.forget(pod.uid)
            if not self.gone:
                self._report(after, all_stopped=True)
            parts.devices.free(pod.uid)
            self._ended = True
        if pod.deleting and not self.gone:
            await cleanup.remove_containers(pod.uid, runtime=parts.runtime)
            parts.reporter.delete(pod)

    def _report(self, shown: Runtime, *, all_stopped: bool = False) -> Json:
        """Decide the status and hand it to the reporter; what kubelet refuses to tell is dropped."""
        pod, parts = self.pod, self.parts
        previous = parts.reporter.known(pod.uid) or pod.status
        status = (
            podstatus.generate(
                podstatus.Inputs(
                    pod=pod,
                    runtime=shown,
                    previous=previous,
                    failures=self._failures,
                    probes=parts.prober.results,
                    host_ip=parts.settings.host_ip,
                    now=_now(),
                    all_stopped=all_stopped,
                )
            )
            | self._rejected
        )
        frozen_by = podstatus.illegal_transition(pod=pod, old=previous, new=status)
        if frozen_by is not None:
            log.warning("status.frozen", pod=str(pod), container=frozen_by)
            return status
        tell = podstatus.hold_back_end(runtime=shown, old=pod.status, new=status)
        parts.reporter.report(pod, decided=status, tell=tell)
        return status

    def _enter(self, stage: _Stage) -> None:
        self._stage = stage
        self.parts.progress.changed()


def _differs(old: Pod, new: Pod) -> bool:
    """Whether kubelet takes the new object for an update: anything but its status has changed."""

    def wanted(pod: Pod) -> tuple[object, ...]:
        metadata = pod.raw["metadata"]
        keys = ("labels", "annotations", "deletionTimestamp", "deletionGracePeriodSeconds")
        gates = [item.get("conditionType") for item in pod.spec.get("readinessGates") or ()]
        gate_values = [
            (item["type"], item["status"]) for item in pod.status.get("conditions") or () if item["type"] in gates
        ]
        return (pod.spec, *(metadata.get(key) for key in keys), gate_values)

    return wanted(old) != wanted(new)


def _restarting_all(status: Json) -> bool:
    return any(item["type"] == "AllContainersRestarting" and item["status"] == "True" for item in status["conditions"])


def _backoff_key(pod: Pod, container: Container) -> str:
    """Kubelet keys by pod, container name, image and resources: changing those starts over."""
    return f"{pod.uid}/{container.name}/{container.image}/{container.raw.get('resources')}"


def _now() -> str:
    return dt.datetime.now(tz=dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
