"""Exec probes: one worker per container and kind, with kubelet's thresholds (``pkg/kubelet/prober``).

A worker follows the container id that was last reported to the API, so a frozen status freezes its probes too. A new id
starts over: liveness succeeded, readiness failed, startup not known yet.
"""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import structlog

from agent.cri import errors
from hack.devnode.kubelet import phase, podstatus, rules
from hack.devnode.kubelet.runtime import CriRuntime
from hack.devnode.kubelet.spec import Container, Json, Pod

log = structlog.get_logger(__name__)

KINDS = {"startup": "startupProbe", "readiness": "readinessProbe", "liveness": "livenessProbe"}
_INITIAL: Mapping[str, bool | None] = {"startup": None, "readiness": False, "liveness": True}


@dataclass(slots=True)
class _Results:
    by_kind: dict[str, dict[str, bool]] = field(default_factory=lambda: {kind: {} for kind in KINDS})


class Prober:
    """Runs the probes of all pods. ``reported`` gives a pod's last reported status, ``on_change`` asks for a sync."""

    def __init__(
        self, *, runtime: CriRuntime, reported: Callable[[str], Json | None], on_change: Callable[[str], None]
    ) -> None:
        self._runtime = runtime
        self._reported = reported
        self._on_change = on_change
        self._results = _Results()
        self._tasks: dict[tuple[str, str, str], asyncio.Task[None]] = {}
        self._told: dict[str, asyncio.Event] = {}

    @property
    def results(self) -> rules.ProbeResults:
        """The latest result per container id."""
        return rules.ProbeResults(**self._results.by_kind)

    def watch(self, pod: Pod) -> None:
        """Start the probes of a pod whose status has been reported; those that wait for their container look again."""
        if (told := self._told.pop(pod.uid, None)) is not None:
            told.set()
        for container in pod.containers():
            for kind, key in KINDS.items():
                probe, name = container.probe(key), (pod.uid, container.name, kind)
                if probe is not None and (name not in self._tasks or self._tasks[name].done()):
                    worker = _Worker(pod=pod, container=container, kind=kind, probe=probe, prober=self)
                    self._tasks[name] = asyncio.create_task(worker.run(), name=f"probe {'/'.join(name)}")

    async def forget(self, uid: str) -> None:
        """Stop the probes of a pod."""
        mine = [name for name in self._tasks if name[0] == uid]
        for task in [self._tasks.pop(name) for name in mine]:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task
        self._told.pop(uid, None)

    async def close(self) -> None:
        """Stop all probes."""
        for uid in {name[0] for name in self._tasks}:
            await self.forget(uid)

    def reported(self, pod: Pod) -> Json:
        """Return the pod's last reported status."""
        return self._reported(pod.uid) or pod.status

    async def reported_again(self, pod: Pod) -> None:
        """Wait until another status of the pod has been reported."""
        await self._told.setdefault(pod.uid, asyncio.Event()).wait()

    def result(self, kind: str, container_id: str) -> bool | None:
        """Return the latest result for a container id."""
        return self._results.by_kind[kind].get(container_id)

    def set(self, kind: str, container_id: str, *, value: bool | None, uid: str) -> None:
        """Note a result; a changed one asks for a sync of the pod."""
        known = self._results.by_kind[kind]
        if known.get(container_id) is value:
            return
        if value is None:
            known.pop(container_id, None)
        else:
            known[container_id] = value
        self._on_change(uid)

    async def probe(self, container_id: str, probe: Json) -> bool:
        """Run a probe once."""
        command = (probe.get("exec") or {}).get("command")
        if command is None:
            log.warning("probe.unsupported", kinds=sorted(probe))
            return False
        try:
            return await self._runtime.run_in(container_id, command, timeout=probe.get("timeoutSeconds", 1)) == 0
        except errors.CriError as error:
            log.info("probe.failed", container_id=container_id, error=str(error))
            return False


@dataclass(slots=True)
class _Worker:
    pod: Pod
    container: Container
    kind: str
    probe: Json
    prober: Prober
    container_id: str = ""
    on_hold: bool = False
    last: bool | None = None
    run_length: int = 0

    async def run(self) -> None:
        period = self.probe.get("periodSeconds", 10)
        while self.prober.reported(self.pod).get("phase") not in phase.TERMINAL:
            await self._once()
            if self.container_id:
                await asyncio.sleep(period)  # as its spec says
            else:
                await self.prober.reported_again(self.pod)

    async def _once(self) -> None:
        status = podstatus.by_name(self.prober.reported(self.pod)).get(self.container.name) or {}
        container_id = str(status.get("containerID", "")).rpartition("/")[2]
        if not container_id:
            return
        if container_id != self.container_id:
            self._adopt(container_id, status)
        if "running" not in status["state"]:
            self._set(value=False)
        elif not self.on_hold and self._may_run():
            self._count(await self.prober.probe(container_id, self.probe))

    def _adopt(self, container_id: str, status: Json) -> None:
        """A new container; when this process is new too, what the API says of it holds on."""
        first = not self.container_id
        self.container_id, self.on_hold, self.last, self.run_length = container_id, False, None, 0
        said = status.get({"startup": "started", "readiness": "ready"}.get(self.kind, ""))
        self._set(value=True if first and said else _INITIAL[self.kind])

    def _may_run(self) -> bool:
        """Readiness and liveness wait for the startup probe; startup ends with its first success."""
        started = self.container.probe("startupProbe") is None or bool(self.prober.result("startup", self.container_id))
        return not started if self.kind == "startup" else started

    def _count(self, result: bool) -> None:  # noqa: FBT001 - the value is what this is about
        self.run_length = self.run_length + 1 if result is self.last else 1
        self.last = result
        threshold = self.probe.get("successThreshold", 1) if result else self.probe.get("failureThreshold", 3)
        if self.run_length < threshold:
            return
        self._set(value=result)
        self.on_hold = self.kind != "readiness" and not result

    def _set(self, *, value: bool | None) -> None:
        self.prober.set(self.kind, self.container_id, value=value, uid=self.pod.uid)
