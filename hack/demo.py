"""``make demo``: a GPU fault restarts the container that holds the GPU, in place, on a real container runtime.

Then the same with a gang: four workers on four nodes are restarted together when one of them is hit (``demo_gang``).
Every line of the table is observed from outside the agent: in the API, in the runtime, on the volume, in the logs.
The exit code is 0 only when all of them came true.
"""

import asyncio
import json
import sys
from pathlib import Path

import click

from common import logs
from hack import demo_gang
from hack.demo_report import Report, until_ready
from hack.devnode import leftovers, node, trainer
from hack.devnode.layout import NodeLayout
from hack.devnode.observer import Observer, Seen
from hack.fakenvml import control as nvml_control

POD = "trainer"
_PICTURE = Path("build/demo-timeline.svg")
_SECONDS = 30.0
_STEPS = 20


async def main() -> int:
    """Run the whole demo; return the exit code."""
    logs.configure(level="warning", log_format="console")
    report = Report()
    await _one_pod(report)
    await demo_gang.play(report, picture=_PICTURE)
    if report.failures:
        click.secho(f"\n{len(report.failures)} observations were not as they should be.", fg="red", bold=True)
        return 1
    click.secho("\nAll observations were as they should be.", fg="green", bold=True)
    return 0


async def _one_pod(report: Report) -> None:
    """The first act."""
    where = NodeLayout.named("demo")
    async with node.DevNode.named("demo") as dev:
        report.section("1. A node")
        report.say(f"containerd: real; API: {dev.kinds['api']}; kubelet: {dev.kinds['kubelet']}; NVML: fake, 8 GPUs")
        async with dev.agent() as agent, Observer.of(where) as observer:
            await _agent_is_ready(agent, report)
            before = await _trains(dev, observer, report)
            after_xid = await _kernel_log_fault(dev, observer, report, before=before, log=agent.log)
            after_nvml = await _nvml_fault(dev, observer, report, before=after_xid, log=agent.log)
            await _lost_gpu(dev, observer, report, before=after_nvml)
            await observer.delete(POD)
    left = leftovers.find(where)
    report.check("nothing is left behind", not left, left or "no process, mount, network or file")


async def _agent_is_ready(agent: node.Agent, report: Report) -> None:
    parts = await until_ready(agent)
    report.check("the agent is ready", True, ", ".join(f"{name} {part['state']}" for name, part in parts.items()))


async def _trains(dev: node.DevNode, observer: Observer, report: Report) -> Seen:
    report.section("2. A pod trains on two GPUs (init container, sidecar, trainer)")
    await observer.create(trainer.manifest(POD, node=dev.name))
    seen = await observer.until(
        POD,
        lambda s: s.step > 0 and s.phase == "Running" and s.condition("DevicesHealthy").get("status") == "True",
        timeout=_SECONDS,
        what="a training pod with healthy devices",
    )
    devices = await observer.devices(POD, socket=str(dev.kubelet.pod_resources_socket))
    report.check("it holds two GPUs", len(devices) == 2, ", ".join(sorted(devices)))
    report.check("DevicesHealthy in the API", True, seen.condition("DevicesHealthy")["message"])
    return seen


async def _kernel_log_fault(dev: node.DevNode, observer: Observer, report: Report, *, before: Seen, log: Path) -> Seen:
    report.section("3. Xid 31 in the kernel log, with the trainer's pid")
    (container,) = before.running["trainer"]
    gpu = await _first_gpu(dev, observer)
    dev.kernel_log.write_xid(
        31, pci=nvml_control.kernel_address(gpu), pid=await observer.pid(container), name="python3", text="MMU Fault"
    )
    seen = await _restarted(observer, report, before=before, cause="Xid 31")
    _tell_phases(report, log, cause="Xid31")
    return seen


async def _nvml_fault(dev: node.DevNode, observer: Observer, report: Report, *, before: Seen, log: Path) -> Seen:
    report.section("4. Xid 94 (contained memory error) through NVML, which names no process")
    dev.nvml.xid(gpu=await _first_gpu(dev, observer), code=94)
    seen = await _restarted(observer, report, before=before, cause="Xid 94")
    _tell_phases(report, log, cause="Xid94")
    return seen


async def _restarted(observer: Observer, report: Report, *, before: Seen, cause: str) -> Seen:
    """Wait for the verified restart and compare everything that must have stayed with how it was."""
    wanted = before.restart_counts["trainer"] + 1
    after = await observer.until(
        POD,
        lambda s: (
            s.restart_counts["trainer"] == wanted
            and s.condition("InPlaceRestart").get("message", "").startswith(f"trainer restart {wanted} ")
            and s.condition("InPlaceRestart")["message"].endswith("; verified")
            and s.condition("DevicesHealthy").get("status") == "True"
        ),
        timeout=_SECONDS,
        what=f"a verified restart after {cause}",
    )
    resumed = await observer.until(POD, lambda s: s.step > before.step, timeout=_SECONDS, what="a resumed trainer")
    (old,), (new,) = before.running["trainer"], after.running["trainer"]
    _, died = await observer.times(old)
    started, _ = await observer.times(new)
    first_line = observer.log(POD, after.uid, container="trainer", restart=wanted).splitlines()[0]
    report.check("exactly one new trainer runs", new != old, f"{old[:12]} -> {new[:12]}")
    report.check("kubelet adopted it", after.container_ids["trainer"] == new, f"restartCount {wanted}")
    for what in ("uid", "ip", "node", "sandbox"):
        report.check(f"pod {what} unchanged", getattr(after, what) == getattr(before, what), getattr(after, what)[:36])
    report.check("sidecar untouched", after.running["shipper"] == before.running["shipper"], "same container")
    report.check("init container not run again", after.init_runs == before.init_runs == 1, f"{after.init_runs} run")
    report.check(
        "trainer resumed from its checkpoint",
        "resumed from step 0," not in first_line and resumed.step > before.step,
        first_line.split(" ", 3)[-1],
    )
    report.check(
        "InPlaceRestart in the API",
        after.condition("InPlaceRestart")["status"] == "True" and cause in after.condition("InPlaceRestart")["message"],
        after.condition("InPlaceRestart")["message"],
    )
    report.check("DevicesHealthy again", True, after.condition("DevicesHealthy")["message"])
    report.check(
        "old one dead before the new one started", 0 < died <= started, f"{(started - died) * 1000:.0f} ms apart"
    )
    return resumed


async def _lost_gpu(dev: node.DevNode, observer: Observer, report: Report, *, before: Seen) -> None:
    report.section("5. Xid 79: the GPU has fallen off the bus. A restart cannot help, so there must be none")
    gpu = await _first_gpu(dev, observer)
    (container,) = before.running["trainer"]
    dev.nvml.lost(gpu=gpu)
    dev.kernel_log.write_xid(
        79,
        pci=nvml_control.kernel_address(gpu),
        pid=await observer.pid(container),
        name="python3",
        text="GPU has fallen off the bus.",
    )
    failed = await observer.until(
        POD, lambda s: s.condition("DeviceFailure").get("status") == "True", timeout=_SECONDS, what="DeviceFailure"
    )
    report.check("DeviceFailure in the API", True, failed.condition("DeviceFailure")["message"])
    later = await observer.until(
        POD, lambda s: s.step >= failed.step + _STEPS, timeout=_SECONDS, what=f"{_STEPS} further steps"
    )
    report.check("the trainer was not restarted", later.running == before.running, f"same container, step {later.step}")
    report.check("restartCount unchanged", later.restart_counts == before.restart_counts, dict(later.restart_counts))


async def _first_gpu(dev: node.DevNode, observer: Observer) -> int:
    held = await observer.devices(POD, socket=str(dev.kubelet.pod_resources_socket))
    return min(dev.gpu_uuids.index(uuid) for uuid in held)


def _tell_phases(report: Report, log: Path, *, cause: str) -> None:
    """Show the agent's own story of the fault: finding, verdict, container, decision, swap, verification."""
    for line in log.read_text().splitlines():
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


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
