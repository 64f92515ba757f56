"""Show a gang in the demo: four workers of a JobSet train together, and a GPU fault of one restarts them all.

The workers themselves record when all old ones were dead and when a new one began, by a clock that all of them share.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import tabulate

from hack.demo_report import Report
from hack.devnode import gang_objects, pulse, rounds
from hack.devnode.cluster import Cluster
from hack.devnode.jobsets import JobSetGang
from hack.fakenvml import control as nvml_control
from kubemend.common.kube import client as kube

_WORKERS = 4
_HIT = 2
_SECONDS = 120.0
_MILLISECOND = 1_000_000


async def play(cluster: Cluster, report: Report, *, api: kube.KubeClient, picture: Path) -> None:
    """Run the act; the round's timeline is drawn into ``picture``."""
    report.section("5. A JobSet of four workers, which train together")
    async with JobSetGang.on(cluster.nodes, "llm", timeout=_SECONDS) as gang:
        where = ", ".join(sorted({node.name for node in gang.nodes}))
        report.check("kube-controller-manager created four pods, kube-scheduler placed them", True, f"on {where}")
        steps = await _trains(gang)
        report.check("four workers train, each on a GPU of its own", True, f"steps {', '.join(map(str, steps))}")
        await _one_is_hit(cluster, gang, report, api=api, picture=picture)
    report.check("deleted, the JobSet is gone with its Job and pods", True, "by the garbage collector")


async def _trains(gang: JobSetGang) -> list[int]:
    def steps() -> list[int] | None:
        found = [gang.step(index) for index in range(gang.size)]
        return found if min(found) > 0 else None

    return await gang.until(steps, what="four training workers", timeout=_SECONDS)


async def _one_is_hit(
    cluster: Cluster, gang: JobSetGang, report: Report, *, api: kube.KubeClient, picture: Path
) -> None:
    node = gang.nodes[_HIT]
    report.section(f"6. Xid 31 on {node.name}: one worker is hit, all four are restarted together")
    before = await gang.identities()
    steps = [gang.step(index) for index in range(gang.size)]
    gpu = min(node.gpu_uuids.index(uuid) for uuid in await gang.devices(_HIT))
    pid = await gang.pid(_HIT)
    fault = time.monotonic_ns()
    node.kernel_log.write_xid(31, pci=nvml_control.kernel_address(gpu), pid=pid, name="pulse", text="MMU Fault")
    restart = await rounds.Rounds(api, gang.template.key).finished(1, timeout=_SECONDS)
    await gang.shown_running(timeout=_SECONDS)
    await gang.all_running(since=fault, timeout=_SECONDS)
    _report(gang, report, restart=restart, fault=fault)
    report.check("UIDs, IPs and nodes kept", await gang.identities() == before, f"{len(before)} pods")
    on = [gang.step(index) for index in range(gang.size)]
    report.check("all resumed from their steps", all(map(int.__ge__, on, steps)), f"steps {', '.join(map(str, on))}")
    await asyncio.to_thread(_draw, cluster, report, restart=restart, picture=picture)


def _report(gang: JobSetGang, report: Report, *, restart: dict[str, Any], fault: int) -> None:
    status, lives = restart["status"], gang.lives()
    report.check(
        "one round, all members in place",
        status["phase"] == "Done" and status["members"]["inPlace"] == _WORKERS,
        f"{rounds.name_of(restart)}: {status['decision']['kind']} because of {status['trigger']['code']}",
    )
    click.echo(_table(gang, lives, fault=fault))
    barrier = gang.barrier(since=fault)
    if barrier.apart > 0:
        seen = f"{barrier.apart / _MILLISECOND:.1f} ms between the last old sign of life and the first new one"
        report.check("all old ones dead before any new one ran", True, seen)
    else:  # on a busy machine kubelet may start one of its own, which is frozen as soon as the agent sees it
        seen = f"a new one of kubelet's ran {barrier.slipped / _MILLISECOND:.1f} ms before it was frozen"
        report.check("the round reports that", barrier.slipped <= rounds.slipped(restart), seen)
    running = max(life.runs_since for life in lives if life.began >= fault)
    report.check("the gang runs again", True, f"{(running - fault) / _MILLISECOND:.0f} ms after the fault")


def _table(gang: JobSetGang, lives: Sequence[pulse.Life], *, fault: int) -> str:
    """Return the recorded times of each worker's old and new life, in milliseconds after the fault."""
    rows = []
    for index in range(gang.size):
        mine = [life for life in lives if life.member == gang.template.member(index)]
        old, new = [life for life in mine if life.began < fault][-1], mine[-1]
        rows.append(
            [
                gang.template.member(index),
                gang.nodes[index].name,
                f"{max(0, old.last - fault) / _MILLISECOND:.1f}",
                f"{(new.runs_since - fault) / _MILLISECOND:.1f}",
            ]
        )
    table = tabulate.tabulate(rows, ("worker", "node", "last alive [ms]", "new one runs [ms]"), disable_numparse=True)
    return "\n".join(f"       {line}" for line in table.splitlines())


def _draw(cluster: Cluster, report: Report, *, restart: dict[str, Any], picture: Path) -> None:
    """Draw the round with the product's own command."""
    picture.parent.mkdir(parents=True, exist_ok=True)
    where = f"{gang_objects.NAMESPACE}/{rounds.name_of(restart)}"
    command = [sys.executable, "-m", "kubemend.cli", "timeline", where, f"--kubeconfig={cluster.first.kubeconfig}"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    click.echo("\n".join(f"       {line}" for line in (text.stdout or text.stderr).splitlines()))
    drawn = subprocess.run([*command, "-o", "svg", "--output-file", str(picture)], timeout=_SECONDS, check=False)
    done = text.returncode == drawn.returncode == 0
    report.check("the timeline is drawn", done and picture.is_file(), picture)
