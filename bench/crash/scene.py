"""Run the pods on their node with an agent, and wait until all of it is quiet."""

import asyncio
import contextlib
import shutil
import signal
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Self

from bench import rig as bench_rig
from bench.crash import judging
from bench.crash.judging import Now, Violation, Wrong
from bench.crash.stages import Injected
from bench.crash.subjects import Subject
from bench.crash.witness import Witness
from bench.journal import Journal
from bench.rig import SECONDS, Rig
from hack.devnode import node, readyz

_KILL_SECONDS = 10.0
_LOOK_AGAIN = 0.05
"""Seconds between polls of sources without events: the journal and /readyz."""


class Scene:
    """Manage one node with the subjects on it. ``async with Scene.on(...)``."""

    def __init__(
        self, dev: node.DevNode, *, rig: Rig, witness: Witness, subjects: Sequence[Subject], state_dir: Path
    ) -> None:
        self.dev = dev
        self.rig = rig
        self.witness = witness
        self.subjects = subjects
        self.journal = Journal.of(state_dir)
        self.gpus: dict[str, int] = {}
        self._state_dir = state_dir
        self._agents_life = contextlib.AsyncExitStack()

    @classmethod
    @contextlib.asynccontextmanager
    async def on(cls, dev: node.DevNode, *, subjects: Sequence[Subject], state_dir: Path) -> AsyncIterator[Self]:
        """Start the pods and an agent; stop the agent gracefully and delete the pods at the end."""
        async with bench_rig.on(dev) as rig, Witness.of(rig) as witness:
            scene = cls(dev, rig=rig, witness=witness, subjects=subjects, state_dir=state_dir)
            try:
                for subject in subjects:
                    await scene._create(subject)
                await scene.start_agent()
                async with scene._agents_life:
                    yield scene
            finally:
                for pod in tuple(rig.pods.pods().values()):
                    if pod.ref.name in {subject.name for subject in subjects}:
                        await rig.observer.delete(pod.ref.name)

    async def start_agent(self) -> None:
        """Start the agent as a process of its own, as its DaemonSet would; its budgets are as if an hour had passed."""
        self.journal.age_restarts()
        life = self.dev.agent(f"--state-dir={self._state_dir}")
        self._agent = await self._agents_life.enter_async_context(life)

    async def renew_agent(self) -> None:
        """Stop the agent gracefully and start another one."""
        await self._agents_life.aclose()
        await self.start_agent()

    async def kill_agent(self) -> None:
        """Kill the agent by SIGKILL, and return when it has ended."""
        self._agent.child.signal(signal.SIGKILL)
        await self._agent.child.wait(timeout=_KILL_SECONDS)
        await self._agents_life.aclose()

    async def forget_agent(self) -> None:
        """Kill the agent, delete its state, and start another one without knowledge."""
        await self.kill_agent()
        shutil.rmtree(self._state_dir)
        await self.start_agent()

    @property
    def agents_log(self) -> Path:
        """Return the log of all agents so far."""
        return self._agent.log

    async def quiet(self, faults: Iterable[Injected] = (), *, timeout: float = SECONDS) -> tuple[Violation, ...]:
        """Wait until nothing is left to do; return what is left at the timeout.

        It checks at least once. Raises CriError.
        """
        faults = tuple(faults)
        deadline = asyncio.get_running_loop().time() + timeout
        while (left := await self._left(faults)) and asyncio.get_running_loop().time() < deadline:
            await self.witness.change(timeout=_LOOK_AGAIN)
        return left

    async def replace(self, subjects: Iterable[Subject]) -> None:
        """Replace spoilt pods by new ones."""
        for subject in subjects:
            await self._delete(subject)
            await self._create(subject)

    async def _create(self, subject: Subject) -> None:
        self.witness.forget(subject)
        await self.rig.observer.create(subject.manifest(node=self.dev.name))
        await self.rig.observer.until(
            subject.name,
            lambda s: s.phase == judging.RUNNING and s.step > 0 and s.running.keys() == subject.lasting,
            timeout=SECONDS,
            what=f"{subject.name} training",
        )
        (gpu,) = await self._devices(subject)
        self.gpus[subject.name] = self.dev.gpu_uuids.index(gpu)

    async def _delete(self, subject: Subject) -> None:
        """Delete a pod, and wait until kubelet has released its GPU: the next one needs it."""
        await self.rig.observer.delete(subject.name)
        async with asyncio.timeout(SECONDS):
            while await self._devices(subject):  # noqa: ASYNC110 - the pod-resources API has no watch
                await asyncio.sleep(_LOOK_AGAIN)

    async def _devices(self, subject: Subject) -> frozenset[str]:
        return await self.dev.kubelet.devices_of(subject.name)

    async def _left(self, faults: Sequence[Injected]) -> tuple[Violation, ...]:
        """Return what is left to do; poll only when the watches show nothing."""
        if left := _unsettled([self.witness.now(subject) for subject in self.subjects], faults):
            return left
        if entries := self.journal.open_entries():
            ids = ", ".join(f"{entry.intent.id} of {entry.intent.target}" for entry in entries)
            return (Violation(Wrong.JOURNAL_OPEN, "", f"open in the journal: {ids}"),)
        if not (await readyz.report(self._agent.metrics_address))["ready"]:
            return (Violation(Wrong.AGENT_NOT_READY, "", "/readyz does not report ready"),)
        left = _unsettled([await self.witness.look(subject) for subject in self.subjects], faults)
        return left or judging.left_behind(await self.rig.cri.list_containers())


def _unsettled(states: Iterable[Now], faults: Sequence[Injected]) -> tuple[Violation, ...]:
    return tuple(
        violation
        for now in states
        for violation in judging.unsettled(now, [fault for fault in faults if fault.subject == now.subject])
    )
