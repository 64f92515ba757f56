"""Show one pod in the demo: faults that a restart of its container fixes, and one that a restart cannot fix."""

import asyncio
import contextlib
import datetime as dt
import functools
import json
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hack.demo_report import Report
from hack.devnode import node, trainer
from hack.devnode.cluster import Cluster
from hack.devnode.observer import Observer, Seen
from hack.fakenvml import control as nvml_control
from kubemend.common.kube import client as kube
from kubemend.common.kube import paths

_POD: Final = "trainer"
_NAMESPACE: Final = "default"
_SECONDS: Final = 120.0
_LOOK_SECONDS: Final = 0.1
_STEPS: Final = 20


@dataclass(frozen=True, slots=True)
class Scene:
    """Hold the pod's node, the pod's observer, and the log of that node's agent."""

    dev: node.DevNode
    observer: Observer
    report: Report
    log: Path

    async def write_xid(self, code: int, text: str, *, hits: Seen) -> None:
        """Write an Xid into the node's kernel log, as the driver does, with the trainer's pid."""
        (container,) = hits.running["trainer"]
        pci = nvml_control.kernel_address(await self.dev.first_gpu(_POD))
        pid = await self.observer.pid(container)
        self.dev.kernel_log.write_xid(code, pci=pci, pid=pid, name="python3", text=text)


@contextlib.asynccontextmanager
async def placed(
    cluster: Cluster, agents: Mapping[str, node.Agent], report: Report, *, api: kube.KubeClient
) -> AsyncIterator[tuple[Scene, Seen]]:
    """Create the pod, and yield it once it trains; it is deleted at the end."""
    report.section("2. A pod trains on two GPUs (init container, sidecar, trainer)")
    manifest = trainer.manifest(_POD, node="")
    del manifest["spec"]["nodeName"]
    await api.create(paths.collection("pods", namespace=_NAMESPACE), manifest)
    name = await _node_of(api)
    report.check("kube-scheduler has placed it", True, name)
    dev = next(each for each in cluster.nodes if each.name == name)
    async with Observer.of(dev.layout) as observer:
        scene = Scene(dev, observer, report, agents[name].log)
        seen = await observer.until(
            _POD,
            lambda s: s.step > 0 and s.phase == "Running" and s.condition("DevicesHealthy").get("status") == "True",
            timeout=_SECONDS,
            what="a training pod with healthy devices",
        )
        devices = await dev.kubelet.devices_of(_POD)
        report.check("it holds two GPUs", len(devices) == 2, ", ".join(sorted(devices)))
        report.check("DevicesHealthy in the API", True, seen.condition("DevicesHealthy")["message"])
        yield scene, seen
        await observer.delete(_POD)


async def is_restarted_twice(scene: Scene, before: Seen) -> None:
    """Show two faults that end with the program: one in the kernel log only, and one that NVML reports as well."""
    scene.report.section("3. Xid 31 in the kernel log, with the trainer's pid")
    await scene.write_xid(31, "MMU Fault", hits=before)
    seen = await _restarted(scene, before=before, cause="Xid 31")
    _print_phases(scene, cause="Xid31")
    scene.report.section("4. Xid 94 (contained memory error): NVML names no process, the kernel log does")
    scene.dev.nvml.xid(gpu=await scene.dev.first_gpu(_POD), code=94)
    await scene.write_xid(94, "Contained: SM", hits=seen)
    await _restarted(scene, before=seen, cause="Xid 94")
    _print_phases(scene, cause="Xid94")


async def loses_its_gpu(scene: Scene) -> None:
    """Show a fault of the device itself."""
    report, observer = scene.report, scene.observer
    report.section("7. Xid 79: the pod's GPU has fallen off the bus. A restart cannot help, so there must be none")
    before = await observer.see(_POD)
    scene.dev.nvml.lost(gpu=await scene.dev.first_gpu(_POD))
    await scene.write_xid(79, "GPU has fallen off the bus.", hits=before)
    failed = await observer.until(
        _POD, lambda s: s.condition("DeviceFailure").get("status") == "True", timeout=_SECONDS, what="DeviceFailure"
    )
    report.check("DeviceFailure in the API", True, failed.condition("DeviceFailure")["message"])
    later = await observer.until(
        _POD, lambda s: s.step >= failed.step + _STEPS, timeout=_SECONDS, what=f"{_STEPS} further steps"
    )
    report.check("the trainer was not restarted", later.running == before.running, f"same container, step {later.step}")
    report.check("restartCount unchanged", later.restart_counts == before.restart_counts, dict(later.restart_counts))


async def _node_of(api: kube.KubeClient) -> str:
    async with asyncio.timeout(_SECONDS):
        while not (name := (await api.get(paths.pod(_NAMESPACE, _POD)))["spec"].get("nodeName")):  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_SECONDS)
    return str(name)


async def _restarted(scene: Scene, *, before: Seen, cause: str) -> Seen:
    """Wait for the verified restart, and compare everything that must be unchanged.

    On a busy machine kubelet may copy the waiting successor: the agent adopts the copy, and restartCount grows by two.
    """
    report, observer = scene.report, scene.observer
    wanted = before.restart_counts["trainer"] + 1
    after = await observer.until(
        _POD,
        lambda s: (
            s.restart_counts["trainer"] >= wanted
            and s.condition("InPlaceRestart").get("message", "").startswith(f"trainer restart {wanted} ")
            and s.condition("InPlaceRestart")["message"].endswith("; verified")
            and s.condition("DevicesHealthy").get("status") == "True"
        ),
        timeout=_SECONDS,
        what=f"a verified restart after {cause}",
    )
    (old,), (new,) = before.running["trainer"], after.running["trainer"]
    count = after.restart_counts["trainer"]
    read = functools.partial(observer.log, _POD, after.uid, container="trainer", restart=count)
    resumed = await observer.until(
        _POD, lambda s: s.step > after.step and "\n" in read(), timeout=_SECONDS, what="a resumed trainer"
    )
    first_line = read().splitlines()[0]
    report.check("exactly one new trainer runs", new != old, f"{old[:12]} -> {new[:12]}")
    report.check("kubelet shows it", after.container_ids["trainer"] == new, f"restartCount {count}")
    for what in ("uid", "ip", "node", "sandbox"):
        report.check(f"pod {what} unchanged", getattr(after, what) == getattr(before, what), getattr(after, what)[:36])
    report.check("sidecar untouched", after.running["shipper"] == before.running["shipper"], "same container")
    report.check("init container not run again", after.init_runs == before.init_runs == 1, f"{after.init_runs} run")
    report.check(
        "trainer resumed from its checkpoint",
        "resumed from step 0," not in first_line and resumed.step > after.step >= before.step,
        first_line.split(" ", 3)[-1],
    )
    reported = after.condition("InPlaceRestart")
    report.check(
        "InPlaceRestart in the API", reported["status"] == "True" and cause in reported["message"], reported["message"]
    )
    report.check("DevicesHealthy again", True, after.condition("DevicesHealthy")["message"])
    if count > wanted:  # kubelet keeps one dead container of a name, so the old one may be removed already
        report.say("kubelet's copy of the successor was adopted")
    else:
        spoke = dt.datetime.fromisoformat(first_line.split(" ", 1)[0]).timestamp()
        _, died = await observer.times(old)
        apart = f"{(spoke - died) * 1000:.0f} ms apart"
        report.check("old one dead before the new one executed anything", 0 < died <= spoke, apart)
    return resumed


def _print_phases(scene: Scene, *, cause: str) -> None:
    """Show the agent's own log of the fault: finding, verdict, container, decision, swap, verification."""
    report = scene.report
    for line in scene.log.read_text().rpartition("\n")[0].splitlines():  # the agent may be writing its last line
        event = json.loads(line) if line.startswith("{") else {}
        match event.get("event"):
            case "finding" if f"{event['kind']}{event['code']}" == cause:
                report.say(
                    f"finding   {event['kind']} {event['code']} on {event['device']} -> verdict {event['verdict']}"
                )
            case "fault.attributed" if event["finding"].replace(" ", "") == cause:
                report.say(f"container {', '.join(event['restart'])} (by {event['how']})")
            case "restart.decided" if event["cause"] == cause:
                report.say(f"decision  {event['verb']}: {event['reason']}")
            case "restart.finished" if event["cause"] == cause:
                phases = ", ".join(f"{name} {ms:.0f} ms" for name, ms in event["milliseconds"].items())
                report.say(f"{event['result'].lower():9} {phases}; checks {event['checks']}")
