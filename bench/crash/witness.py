"""Observe everything that happens to the pods: by watches, not by polling."""

import asyncio
import contextlib
import functools
import itertools
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self

from bench.crash import judging
from bench.crash.judging import Life, Now
from bench.crash.subjects import Subject
from bench.rig import Rig
from hack.devnode import trainer
from kubemend.agent.actuator.hold.cgroups import Cgroup
from kubemend.agent.clients.cri import errors
from kubemend.agent.clients.cri.events import ContainerEvent, EventKind
from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import ConditionStatus
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerState,
    ContainerSummary,
    PodChange,
    PodChangeKind,
    PodView,
)
from kubemend.agent.restart.reasons import Reason
from kubemend.common import cgroupfs

_NAMESPACE = "default"
_PROC = Path("/proc")
_CGROUPS = Path("/sys/fs/cgroup")
_FREEZING_SLICE = 0.25  # seconds in a thread, which cannot be cancelled
_MOST_FOLLOWED = 64


@dataclass
class _Seen:
    """Hold the observations of one pod: lines and lives of its containers, its phases since it ran, and refusals."""

    lives: dict[ContainerId, Life] = field(default_factory=dict)
    timeline: list[str] = field(default_factory=list)
    phases: list[str] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)

    def take(self, event: ContainerEvent) -> None:
        """Record an event of one of its containers."""
        view, at = event.container, event.created_at / 1e9
        whose = "kubemend's" if view.restart_id is not None else "kubelet's"
        exited = f" with {event.exit_code}" if event.exit_code is not None else ""
        self.timeline.append(
            f"{at:.4f} {view.ref.name} attempt {view.attempt} ({view.id[:8]}, {whose}) {event.kind.value}{exited}"
        )
        if event.kind is EventKind.DELETED and view.id not in self.lives:
            return  # it has ended before ``turn_page``
        life = self.lives.get(view.id) or Life(
            view.ref.name, created=view.created_at / 1e9, ours=view.restart_id is not None
        )
        if event.kind is EventKind.STARTED:
            life = replace(life, began=at)
        elif event.kind is not EventKind.CREATED and life.ended is None:
            life = replace(life, ended=at)
        self.lives[view.id] = life


class Witness:
    """Follow the pods of a rig. ``async with Witness.of(rig)``."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._seen: defaultdict[str, _Seen] = defaultdict(_Seen)
        self._changed = asyncio.Event()
        self._cgroups: dict[ContainerId, Cgroup] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._followed: set[ContainerId] = set()
        # Each container needs a thread of its own: one that waits for a thread may freeze and end in that time.
        self._threads = ThreadPoolExecutor(max_workers=_MOST_FOLLOWED, thread_name_prefix="freezing")

    @classmethod
    @contextlib.asynccontextmanager
    async def of(cls, rig: Rig) -> AsyncIterator[Self]:
        """Watch as long as the block runs."""
        witness = cls(rig)
        unsubscribe = rig.pods.subscribe(witness._on_pod)
        witness._tasks.add(asyncio.create_task(witness._follow_containers(), name="witness"))
        try:
            yield witness
        finally:
            unsubscribe()
            for task in witness._tasks:
                task.cancel()
            await asyncio.gather(*witness._tasks, return_exceptions=True)
            witness._threads.shutdown(wait=False)

    def turn_page(self) -> None:
        """Begin new timelines. Earlier freezes of containers that still live are forgotten."""
        for seen in self._seen.values():
            seen.timeline.clear()
            seen.lives = {
                container: replace(life, stood_still=False)
                for container, life in seen.lives.items()
                if life.ended is None
            }
            seen.refusals.clear()

    def forget(self, subject: Subject) -> None:
        """Forget a pod that is replaced by another of its name."""
        self._seen.pop(subject.name, None)

    def note(self, subject: Subject, what: str) -> None:
        """Add a line to a pod's timeline."""
        self._seen[subject.name].timeline.append(f"{time.time():.4f} {what}")

    def stood_still(self, subject: Subject, container: ContainerId) -> None:
        """Record that a container was frozen."""
        lives = self._seen[subject.name].lives
        if container in lives:  # else its overlap stays unexplained
            lives[container] = replace(lives[container], stood_still=True)
        self.note(subject, f"{container[:8]} is frozen")

    async def follow_freezing(self, subject: Subject) -> None:
        """Record when a container of the pod that runs now freezes. Raises CriError.

        A query after the kill of the agent comes too late for a container that the agent had frozen and was killing.
        """
        for view in itertools.chain.from_iterable(self.now(subject).running.values()):
            if view.id not in self._followed and (group := await self._cgroup(view.id)) is not None:
                self._followed.add(view.id)
                task = asyncio.create_task(self._freezing(subject, view.id, group), name=f"freezing {view.id[:8]}")
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)

    def lives(self, subject: Subject, name: str) -> Mapping[ContainerId, Life]:
        """Return the lives of a pod's containers of that name that did not end before ``turn_page``."""
        return {container: life for container, life in self._seen[subject.name].lives.items() if life.name == name}

    def timeline(self, subject: Subject) -> Sequence[str]:
        """Return a pod's events since ``turn_page``, one line each."""
        return tuple(self._seen[subject.name].timeline)

    def now(self, subject: Subject) -> Now:
        """Return a pod's state from the watches alone: without calls, and without which containers are frozen."""
        pod = self.pod(subject)
        return self._now(
            subject, pod=pod, views=[view for view in self._rig.events.containers() if view.ref.pod == pod.ref]
        )

    async def look(self, subject: Subject) -> Now:
        """Return a pod's state, with a query of runtime and kernel. Raises CriError."""
        pod = self.pod(subject)
        now = self._now(subject, pod=pod, views=await self._rig.cri.list_containers(pod_uid=pod.ref.uid))
        running = [view.id for views in now.running.values() for view in views]
        return replace(now, frozen=[container for container in running if await self._is_frozen(container)])

    def pod(self, subject: Subject) -> PodView:
        """Return the pod from the API server."""
        pod = self._rig.pods.by_name(_NAMESPACE, subject.name)
        assert pod is not None, f"there is no pod {subject.name}"
        return pod

    async def change(self, *, timeout: float) -> None:
        """Wait until something has changed, at most ``timeout`` seconds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._changed.wait()
        self._changed.clear()

    async def _freezing(self, subject: Subject, container: ContainerId, group: Cgroup) -> None:
        wait = functools.partial(_freezes, group)
        while (freezes := await asyncio.get_running_loop().run_in_executor(self._threads, wait)) is None:
            pass
        self._followed.discard(container)
        if freezes:
            self.stood_still(subject, container)

    async def _is_frozen(self, container: ContainerId) -> bool:
        """Return whether the kernel has frozen a container that the runtime shows as running."""
        group = await self._cgroup(container)
        return group is not None and cgroupfs.frozen([group.path]) is True

    async def _cgroup(self, container: ContainerId) -> Cgroup | None:
        """Return a container's cgroup; None if it has ended in the meantime. Raises CriError."""
        if container not in self._cgroups:
            try:
                pid = (await self._rig.cri.container_status(container)).pid
            except errors.NotFound:
                return None
            group = Cgroup.of_process(pid, proc=_PROC, mounted_at=_CGROUPS) if pid else None
            if group is None:
                return None
            self._cgroups[container] = group
        return self._cgroups[container]

    def _now(self, subject: Subject, *, pod: PodView, views: Sequence[ContainerSummary]) -> Now:
        running: dict[str, list[ContainerSummary]] = {}
        for view in views:
            if view.state is ContainerState.RUNNING:
                running.setdefault(view.ref.name, []).append(view)
        overlaps = self._rig.observer.volume(pod.ref.uid) / trainer.OVERLAPS
        return Now(
            subject=subject,
            phases=tuple(self._seen[subject.name].phases),
            running=running,
            shown={spec.name: spec.container_id for spec in pod.containers},
            restart_counts={spec.name: spec.restart_count for spec in pod.containers},
            refusals=tuple(self._seen[subject.name].refusals),
            overlaps=overlaps.read_text().split() if overlaps.exists() else (),
            lives=tuple(self._seen[subject.name].lives.values()),
        )

    def _on_pod(self, change: PodChange) -> None:
        if change.kind is PodChangeKind.GONE:
            return
        pod = change.pod
        seen = self._seen[pod.ref.name]
        if (seen.phases or pod.phase == judging.RUNNING) and pod.phase not in seen.phases[-1:]:
            seen.phases.append(pod.phase)
        for condition in pod.conditions:
            # An agent that reads a fault again finds a container that is younger: the fault was dealt with before.
            # A restart on hold is no refusal.
            refusal = (
                condition.type == conditions.IN_PLACE_RESTART
                and condition.status is ConditionStatus.FALSE
                and condition.reason != Reason.ALREADY_REPLACED.value
                and " not yet restarted for " not in condition.message
            )
            if refusal and condition.message not in seen.refusals:
                seen.refusals.append(condition.message)
        self._changed.set()

    async def _follow_containers(self) -> None:
        async with self._rig.events.subscribe() as events:
            while True:
                event = await events.get()
                self._seen[event.pod.name].take(event)
                self._changed.set()


def _freezes(group: Cgroup) -> bool | None:
    """Block until a container freezes, or ends without that; return which. None: neither so far."""
    return group.frozen if group.wait_frozen(timeout=_FREEZING_SLICE) else None
