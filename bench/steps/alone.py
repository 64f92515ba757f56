"""Run each arm's trainer alone in a pod on a dev node."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import yaml

from bench.steps import arms, records, recovery, spares
from hack.devnode import node, readyz
from hack.devnode.observer import Observer
from hack.fakenvml import control
from kubemend.common import aio, cache_volume
from kubemend.common.kube import client as kube
from kubemend.common.kube import errors, paths

_CACHES: Final = Path(__file__).resolve().parents[2] / "daemonset" / "components" / "caches" / "policy.yaml"
_POLICIES: Final = {
    "MutatingAdmissionPolicy": "mutatingadmissionpolicies",
    "MutatingAdmissionPolicyBinding": "mutatingadmissionpolicybindings",
}
_GROUPS: Final = {"jobs": "batch"}
_SECONDS: Final = 60.0
_LOOK_AGAIN: Final = 0.2
_LOOK_FOR_FAULTS: Final = 0.005
_XID: Final = 31

Json = dict[str, Any]


@contextlib.asynccontextmanager
async def ready_agent(dev: node.DevNode) -> AsyncIterator[None]:
    """Run an agent, ready when this yields."""
    async with dev.agent() as agent:
        await readyz.until_ready(agent)
        yield


async def have_caches(api: kube.KubeClient, plan: arms.Plan, *, node_name: str) -> None:
    """Install the component caches, and wait until it is in force."""
    for made in yaml.safe_load_all(_CACHES.read_text()):
        await api.create(paths.collection(_POLICIES[made["kind"]], group="admissionregistration.k8s.io"), made)
    arm = next(each for each in arms.ARMS if not each.own_cache)
    resource, pod = arms.objects(arm, plan, node=node_name, records=Path("/"))
    collection = f"{paths.collection(resource, namespace='default')}?dryRun=All"
    async with asyncio.timeout(_SECONDS):
        async for _ in aio.ticks(period=_LOOK_AGAIN):
            created = await api.create(collection, pod)
            if any(each["name"] == cache_volume.NAME for each in created["spec"]["volumes"]):
                return


@dataclass(slots=True)
class Run:
    """The run of one arm's trainer. ``where`` is a directory for its records.

    ``spares`` has for each fault of a launcher's trainer whether a spare was ready.
    """

    api: kube.KubeClient
    dev: node.DevNode
    arm: arms.Arm
    plan: arms.Plan
    where: Path
    spares: list[bool] = field(default_factory=list)

    @property
    def records(self) -> Path:
        """Return the file with the trainer's records."""
        return self.where / "0.records"

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[Observer]:
        """Run the trainer with its faults; yield what observes its pod, which is deleted at the end.

        Raises ExceptionGroup if a fault cannot be caused, or if the block raises.
        """
        resource, made = arms.objects(self.arm, self.plan, node=self.dev.name, records=self.where)
        collection = paths.collection(resource, namespace="default", group=_GROUPS.get(resource, ""))
        await self.api.create(collection, made)
        try:
            async with Observer.of(self.dev.layout) as observer, asyncio.TaskGroup() as tasks:
                ends = self.plan.fault is arms.Fault.EXIT
                causes = []
                if self.arm.survives and ends and not self.dev.has_real_gpus:
                    causes.append(tasks.create_task(self._write_xids(observer), name="xids"))
                if self.arm.has_spare:
                    gate = spares.FaultGate(observer, self.records, self._pods, self.spares)
                    causes.append(tasks.create_task(gate.open(faults=self.plan.faults), name="faults"))
                yield observer
                for each in causes:
                    each.cancel()
        finally:
            await _delete(self.api, f"{collection}/{self.arm.name}")

    async def recoveries(self) -> list[recovery.Record]:
        """Return the records once the trainer has recovered from its last fault. Raises TimeoutError."""
        return await records.with_recoveries(self.records, count=self.plan.faults, what=self.arm.name)

    def is_measured(self) -> bool:
        """Return whether the trainer has recovered once."""
        return len(recovery.recoveries(records.read(self.records))) > 0

    def figures(self) -> Json:
        """Return the figures of the recoveries so far; there must be one."""
        found = recovery.figures(records.read(self.records))
        spares = {"had_spare": self.spares[: len(found["each_first_step_s"])]} if self.spares else {}
        return {"fault": self.arm.fault(self.plan), **found, **spares}

    async def _write_xids(self, observer: Observer) -> None:
        """Write an Xid of the container's main process into the kernel log for each fault of its trainer."""
        written = 0
        async for _ in aio.ticks(period=_LOOK_FOR_FAULTS):
            if records.faults(self.records) > written:
                pci = control.kernel_address(0)
                main = await spares.main_process(observer, self.arm.name)
                self.dev.kernel_log.write_xid(_XID, pci=pci, pid=main.pid, name="python3")
                written += 1

    async def _pods(self) -> Sequence[str]:
        return (self.arm.name,)


async def _delete(api: kube.KubeClient, path: str) -> None:
    """Delete the object with its pods, and wait until all are gone.

    Only what has pods is deleted in the foreground, because that needs a garbage collector.
    """
    await api.delete(path, options={"propagationPolicy": "Foreground"} if "/jobs/" in path else {})
    async with asyncio.timeout(_SECONDS):
        while True:
            try:
                await api.get(path)
            except errors.NotFoundError:
                return
            await asyncio.sleep(_LOOK_AGAIN)
