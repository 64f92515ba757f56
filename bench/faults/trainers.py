"""Run a pod that trains on a GPU and is hit by faults, as the runtime and the API server show it."""

import contextlib
import re
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Self

from bench.faults import looking
from hack.devnode import node, trainer
from hack.devnode.observer import Observer, Seen
from hack.fakenvml import control
from kubemend.agent.clients.cri.client import CriClient
from kubemend.agent.model.workloads import ContainerId, ContainerState, ContainerSummary, PodUid

_TRAINER = "trainer"


class Trainer:
    """Manage one pod. Its original state is in ``first``."""

    def __init__(self, dev: node.DevNode, observer: Observer, *, cri: CriClient, first: Seen, gpu: int) -> None:
        self.first = first
        self.gpu = gpu
        self._dev = dev
        self._observer = observer
        self._cri = cri
        self._name = ""
        self._reported = 0

    @classmethod
    @contextlib.asynccontextmanager
    async def on(
        cls,
        dev: node.DevNode,
        name: str,
        *,
        observer: Observer,
        cri: CriClient,
        change: Callable[[dict[str, Any]], None] = lambda _: None,
        within: float = looking.SECONDS,
        **fields: Any,
    ) -> AsyncIterator[Self]:
        """Run it for the length of the block; yields it training, which must come ``within`` so many seconds.

        ``fields`` are those of ``trainer.manifest``, and ``change`` is applied to its result.
        """

        async def gpu_is_free() -> bool | None:
            return None if await dev.kubelet.devices_of(name) else True

        pod = trainer.manifest(name, node=dev.name, gpus=1, **fields)
        change(pod)
        await observer.create(pod)
        try:
            first = await observer.until(name, _trains, timeout=within, what=f"{name} training")
            (uuid,) = await dev.kubelet.devices_of(name)
            made = cls(dev, observer, cri=cri, first=first, gpu=dev.gpu_uuids.index(uuid))
            made._name = name
            yield made
        finally:
            await observer.delete(name)
            await looking.until(gpu_is_free, what=f"{name} gone, and its GPU free")  # the next one needs it

    @property
    def name(self) -> str:
        """Return the pod's name."""
        return self._name

    @property
    def uuid(self) -> str:
        """Return the UUID of its GPU."""
        return self._dev.gpu_uuids[self.gpu]

    @property
    def volume(self) -> Path:
        """Return its checkpoint volume on the host."""
        return self._observer.volume(self.first.uid)

    async def pid(self, container: str = _TRAINER) -> int:
        """Return the host's pid of the first process of its original container of that name."""
        return await self._observer.pid(self.first.running[container][0])

    async def see(self) -> Seen:
        """Return its current state, by API and runtime."""
        return await self._observer.see(self._name)

    async def until(self, holds: Any, *, what: str) -> Seen:
        """Poll until it holds. Raises TimeoutError."""
        return await self._observer.until(self._name, holds, timeout=looking.SECONDS, what=what)

    async def containers(self) -> tuple[ContainerSummary, ...]:
        """Return its running trainers, from the runtime alone."""
        views = await self._cri.list_containers(pod_uid=PodUid(self.first.uid), name=_TRAINER)
        return tuple(view for view in views if view.state is ContainerState.RUNNING)

    async def fails(self, code: int = 31) -> ContainerId:
        """Write an Xid that names the running process; return its container. The API server is not called."""
        (running,) = await self.containers()
        pid = await self._observer.pid(running.id)
        self._dev.kernel_log.write_xid(code, pci=control.kernel_address(self.gpu), pid=pid, name="sh")
        return running.id

    async def replaced(self, old: ContainerId) -> float:
        """Wait until another container runs in the place of ``old``; return the seconds waited. Raises TimeoutError."""
        began = time.monotonic()

        async def look() -> bool | None:
            running = await self.containers()
            return True if len(running) == 1 and running[0].id != old else None

        await looking.until(look, what=f"a successor in {self._name}")
        return time.monotonic() - began

    async def reported(self, old: ContainerId, *, number: int = 1, verified: bool = False) -> Seen:
        """Wait until the API shows the restart after ``old``, with this number or a higher one, not seen before.

        ``verified``: and until the API shows it as verified. Raises TimeoutError.
        """
        wanted = max(number, self._reported + 1)

        def tells(seen: Seen) -> bool:
            condition = seen.condition("InPlaceRestart")
            message = condition.get("message", "")
            proved = message.endswith("; verified") or not verified
            return condition.get("status") == "True" and _number(message) >= wanted and proved and shows(seen)

        def shows(seen: Seen) -> bool:
            shown = seen.container_ids.get(_TRAINER, old)
            return shown != old and seen.running.get(_TRAINER) == (shown,)

        seen = await self.until(tells, what=f"the report that {self._name} was restarted")
        self._reported = _number(seen.condition("InPlaceRestart")["message"])
        return seen

    async def verified(self, old: ContainerId) -> Seen:
        """Wait until the API shows that the restart after ``old`` is verified. Raises TimeoutError."""
        return await self.reported(old, verified=True)

    async def is_in_place(self) -> bool:
        """Return whether it is the original pod: UID, IP, sandbox, and one trainer that runs."""
        now = await self.see()
        same = (now.uid, now.ip, now.sandbox, now.phase) == (
            self.first.uid, self.first.ip, self.first.sandbox, "Running",
        )  # fmt: skip
        return same and len(now.running.get(_TRAINER, ())) == 1

    async def comes_back_in_place(self) -> bool:
        """Wait until it is the original pod again; False if it does not become that."""

        async def look() -> bool | None:
            return await self.is_in_place() or None

        try:
            return await looking.until(look, what=f"{self._name} as it was")
        except TimeoutError:
            return False

    async def is_untouched(self) -> bool:
        """Return whether every container is the original one."""
        now = await self.see()
        return now.running == self.first.running and now.restart_counts == self.first.restart_counts


def _trains(seen: Seen) -> bool:
    return seen.phase == "Running" and seen.step > 0 and len(seen.running.get(_TRAINER, ())) == 1


def _number(message: str) -> int:
    """Return the number of the restart in a condition."""
    found = re.search(r" restart (\d+) by ", message)
    return int(found[1]) if found is not None else 0
