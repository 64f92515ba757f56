"""Follow the launchers of the containers on this node: the state of their programs and spares, as it changes."""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Protocol

import structlog

from kubemend.agent import ports
from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.clients.cri.events import ContainerEvent
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerState,
    ContainerSummary,
    PodView,
)
from kubemend.agent.restart import admission, process
from kubemend.agent.restart.process import Launcher, LauncherUnavailable, State
from kubemend.common import aio, budgets, contained

log = structlog.get_logger(__name__)

MOST: Final = 256
"""Limit of launchers that are followed; others act by themselves, as without an agent."""
MOST_OF_POD: Final = 16
"""Of them those of one pod, which would otherwise leave none for the others."""
MOST_OF_NAMESPACE: Final = 224
"""Of them those of one namespace, of whose pods the same is true."""
MOST_FAILURES: Final = budgets.Window(limit=10, seconds=600.0)
"""Failures of one container's programs that are passed on. A program in place of the launcher could invent any."""
_ENDED: Final = frozenset({State.FAILED, State.RESTARTING})
"""The states of a launcher whose program has ended by itself."""
_LEAST_INTERVAL = 0.1
"""Seconds between two questions to a launcher, which could report changes without end."""
_SAVE_AFTER = 1.0
"""Seconds until a program's number is stored: before that, the heartbeat of the former program is forgotten."""
_FIRST_RETRY, _LONGEST_RETRY = 0.25, 10.0
"""Seconds until a launcher that did not answer is asked again: it may not have begun to listen."""


Changed = Callable[[ContainerRef, Launcher | LauncherUnavailable | None], None]
"""A launcher's state has changed; None: its container is no longer followed, whether it had a launcher or not. While a
container is replaced there are two of its name: the newer one counts as soon as its launcher has a state.
"""
Failed = Callable[[ContainerSummary, ContainerStatus, Launcher], None]
"""A program has failed, and its launcher waits for a decision. Called once for each program."""
Started = Callable[[ContainerId, float | None], None]
"""For how many seconds a container's program has run; None: its launcher is no longer followed."""
Renewed = Callable[[ContainerId], None]
"""A container's program has ended by itself, or another one has begun in its place, perhaps while no agent ran."""


class Memory(Protocol):
    """Persists programs' numbers for the next agent (``agent.app.persisted_state.StoredNumbers``). Never raises."""

    async def load(self) -> Mapping[ContainerId, int]: ...
    async def save(self, numbers: Mapping[ContainerId, int], /) -> None: ...


@dataclass(slots=True)
class _Followed:
    """A container that has a launcher, or may have one. ``shown`` is the state that was passed on last."""

    view: ContainerSummary
    task: asyncio.Task[None]
    shown: Launcher | LauncherUnavailable | None = None


@dataclass(slots=True)
class _Programs:
    """What is known of one container's programs.

    ``latest`` is the number of the last one, and whether it had ended by itself. ``failed`` is the last one whose
    failure was passed on, ``failures`` are the times of some failures (the loop's clock).
    """

    latest: tuple[int, bool] | None = None
    failed: int = 0
    failures: deque[float] = field(default_factory=lambda: deque(maxlen=MOST_FAILURES.limit))


class LauncherWatch:
    """Follows the launchers in containers that opted in."""

    def __init__(
        self,
        *,
        runtime: ports.ContainerStatuses,
        events: ports.Events,
        pods: ports.Pods,
        launchers: ports.LauncherStates,
        memory: Memory,
        changed: Changed,
        failed: Failed,
        hold: Callable[[PodView], float],
        began: Callable[[], None] = lambda: None,
        started: Started = lambda *_: None,
        renewed: Renewed = lambda _: None,
        opted_in_namespaces: frozenset[str] = frozenset(),
        own_pod_uid: str | None = None,
    ) -> None:
        """Create the watch.

        ``hold``: seconds for which a failure of a pod's program waits for a decision; 0: it does not. ``began`` is
        called once, when the containers that run at the start are followed.
        """
        self._runtime = runtime
        self._events = events
        self._pods = pods
        self._launchers = launchers
        self._memory = memory
        self._changed = changed
        self._failed = failed
        self._hold = hold
        self._began = began
        self._started = started
        self._renewed = renewed
        self._namespaces = opted_in_namespaces
        self._own_pod_uid = own_pod_uid
        self._followed: dict[ContainerId, _Followed] = {}
        self._programs: dict[ContainerId, _Programs] = {}  # kept while it is not followed, perhaps for a moment
        self._decided: dict[ContainerId, tuple[PodView, bool]] = {}
        self._wake = asyncio.Event()
        self._to_save = asyncio.Event()

    async def run(self) -> None:
        """Follow indefinitely."""
        for container, number in (await self._memory.load()).items():
            self._programs[container] = _Programs(latest=(number, False))
        unsubscribe = self._pods.subscribe(lambda _: self._wake.set())
        try:
            async with self._events.subscribe() as changes, asyncio.TaskGroup() as tasks:
                tasks.create_task(self._wake_on(changes), name="container changes for launchers")
                tasks.create_task(self._save(), name="numbers of programs")
                await self._pods.until_synced()
                await self._events.until_listed()
                self._adjust(tasks)
                self._began()
                while True:
                    await self._wake.wait()
                    self._wake.clear()
                    self._adjust(tasks)
        finally:
            unsubscribe()

    async def _wake_on(self, changes: "asyncio.Queue[ContainerEvent]") -> None:
        while True:
            await changes.get()
            self._wake.set()

    async def _save(self) -> None:
        while True:
            await self._to_save.wait()
            await asyncio.sleep(_SAVE_AFTER)
            self._to_save.clear()
            latest = {container: each.latest for container, each in self._programs.items()}
            await self._memory.save({container: each[0] for container, each in latest.items() if each is not None})

    def _adjust(self, tasks: asyncio.TaskGroup) -> None:
        """Follow the launchers of new containers, and no longer those of containers that have ended."""
        wanted = {view.id: view for view in self._wanted()}
        for container, followed in list(self._followed.items()):
            if container not in wanted:
                followed.task.cancel()
                del self._followed[container]
                self._started(container, None)
                self._show(followed.view.ref)
        running = [each.view.ref.pod for each in self._followed.values() if not each.task.done()]
        of_pods, of_namespaces = Counter(pod.uid for pod in running), Counter(pod.namespace for pod in running)
        for container, view in wanted.items():
            pod = view.ref.pod
            has_room = of_pods[pod.uid] < MOST_OF_POD and of_namespaces[pod.namespace] < MOST_OF_NAMESPACE
            if container not in self._followed and has_room and of_pods.total() < MOST:
                task = tasks.create_task(self._follow(view), name=f"launcher of {view.ref}")
                self._followed[container] = _Followed(view, task)
                of_pods[pod.uid] += 1
                of_namespaces[pod.namespace] += 1

    def _wanted(self) -> Iterator[ContainerSummary]:
        """Yield the running containers that may be restarted.

        Each change of any container asks for them all, so an answer is kept while the pod is unchanged.
        """
        pods, before, views = self._pods.pods(), self._decided, self._events.containers()
        self._decided = {}
        self._programs = {view.id: self._programs[view.id] for view in views if view.id in self._programs}
        for view in views:
            pod = pods.get(view.ref.pod.uid)
            if pod is None or view.state is not ContainerState.RUNNING:
                continue
            decided, answer = before.get(view.id, (None, None))
            if decided is not pod:
                answer = self._may_be_restarted(view, pod)
            if answer is not None:
                self._decided[view.id] = pod, answer
            if answer:
                yield view

    def _may_be_restarted(self, view: ContainerSummary, pod: PodView) -> bool | None:
        """Return whether it may; None after an internal error, which may pass."""
        with contained.within(contained.Part.CONTAINER, view.ref):
            refused = admission.no_fault_reason(
                pod, view.ref.name, opted_in_namespaces=self._namespaces, own_pod_uid=self._own_pod_uid
            )
            return refused is None
        return None

    async def _follow(self, view: ContainerSummary) -> None:
        """Follow a container's launcher until cancelled; return if it has none, or after an internal error."""
        with contained.within(contained.Part.CONTAINER, view.ref) as work:
            status = await self._status(view)
            if process.runs_launcher(status.runtime_args):
                await self._follow_launcher(view, status)
        if work.failed:
            self._pass_on(view, LauncherUnavailable("internal error of the agent, see its log"))
        self._wake.set()  # another one may be followed instead

    async def _status(self, view: ContainerSummary) -> ContainerStatus:
        backoff = aio.Backoff(first=_FIRST_RETRY, limit=_LONGEST_RETRY)
        while True:
            try:
                return (await self._runtime.container_status(view.id)).without_config()
            except CriError as error:
                log.debug("launcher.unknown", container=str(view.ref), error=str(error))
            await backoff.wait()

    def _pass_on(self, view: ContainerSummary, found: Launcher | LauncherUnavailable) -> None:
        if (followed := self._followed.get(view.id)) is not None:
            followed.shown = found
            self._show(view.ref)

    def _show(self, ref: ContainerRef) -> None:
        known = [each for each in self._followed.values() if each.view.ref == ref and each.shown is not None]
        newest = max(known, key=lambda each: each.view.attempt, default=None)
        with contained.within(contained.Part.CONTAINER, ref):
            self._changed(ref, newest.shown if newest is not None else None)

    async def _follow_launcher(self, view: ContainerSummary, status: ContainerStatus) -> None:
        backoff = aio.Backoff(first=_FIRST_RETRY, limit=_LONGEST_RETRY)
        known: Launcher | None = None
        silent: LauncherUnavailable | None = None
        timed: int | None = None
        programs = self._programs.setdefault(view.id, _Programs())
        while True:
            pod = self._pods.pods().get(view.ref.pod.uid)
            hold = self._hold(pod) if pod is not None else 0.0
            found = await self._launchers.follow(status, known=known, hold=hold)
            if isinstance(found, LauncherUnavailable):
                if known is not None:
                    log.info("launcher.silent", container=str(view.ref), reason=found.reason)
                if found != silent:
                    self._pass_on(view, found)
                known, silent = None, found
                await backoff.wait()
                continue
            backoff = aio.Backoff(first=_FIRST_RETRY, limit=_LONGEST_RETRY)
            if process.is_news(found, known):
                self._pass_on(view, found)
            known, silent = found, None
            if found.program != timed:
                timed = found.program
                self._started(view.id, found.age)
            before, programs.latest = programs.latest, (found.program, found.state in _ENDED)
            if before is None or found.program != before[0]:
                self._to_save.set()
            if programs.latest != (before or (found.program, False)):
                self._renewed(view.id)
            if found.state is State.FAILED and found.program > programs.failed:
                programs.failed = found.program
                if self._may_fail(view, programs.failures):
                    self._failed(view, status, found)
            await asyncio.sleep(_LEAST_INTERVAL)

    def _may_fail(self, view: ContainerSummary, failures: deque[float]) -> bool:
        """Count a failure; return whether there were not too many. The launcher then decides by itself."""
        now = asyncio.get_running_loop().time()
        if len(failures) == failures.maxlen and now - failures[0] < MOST_FAILURES.seconds:
            log.warning("launcher.fails_too_often", container=str(view.ref), failures=len(failures))
            return False
        failures.append(now)
        return True
