"""Run one process with the views of the agent or of the controller: ``python -m bench.memory.views agent KUBECONFIG``.

It begins when it gets a line, has loaded all modules of the real process, and prints its figures when all pods have
been listed and have changed.
"""

import asyncio
import gc
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bench import footprint

_PATIENCE = 500.0


async def agent(kubeconfig: Path) -> Mapping[str, Any]:
    """Read the pods of a node, as the agent does."""
    import kubemend.agent.app.agent  # noqa: F401 - its modules take memory
    from bench.memory.pods import NODE
    from kubemend.agent.sources.pods import PodWatch
    from kubemend.common.kube import client

    async with client.connect(kubeconfig=kubeconfig) as api:
        bare = [0]
        watch = PodWatch(api=api, node_name=NODE, report=lambda _: None, bare=bare.append)
        changed = asyncio.Event()
        watch.subscribe(lambda change: changed.set() if change.pod.phase == "Failed" else None)
        await _until(changed, watch.run)
        return _figures(len(watch.pods()), bare=bare[-1])


async def controller(kubeconfig: Path) -> Mapping[str, Any]:
    """Read all members of gangs, as the controller does."""
    import kubemend.controller.app.controller  # noqa: F401 - its modules take memory
    from kubemend.common.kube import client
    from kubemend.controller.model.members import PodPhase
    from kubemend.controller.watches.members import Members

    async with client.connect(kubeconfig=kubeconfig) as api:
        bare = [0]
        members = Members(api=api, report=lambda _: None, bare=bare.append)
        changed = asyncio.Event()
        members.subscribe(lambda change: changed.set() if change.member.phase is PodPhase.FAILED else None)
        await _until(changed, members.run)
        return _figures(sum(len(members.of_gang(gang)) for gang in members.gangs()), bare=bare[-1])


def _figures(pods: int, *, bare: int) -> Mapping[str, Any]:
    gc.collect()
    found = footprint.of(os.getpid())
    return {
        "pods": pods,
        "of_which_only_a_bare_form": bare,
        "in_the_end_mib": round(found.shared_out / 2**20, 2),
        "rss_in_the_end_mib": round(max(found.resident.values()) / 2**20, 2),
    }


async def _until(done: asyncio.Event, run: Callable[[], Any]) -> None:
    task = asyncio.create_task(run())
    try:
        async with asyncio.timeout(_PATIENCE):
            await done.wait()
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


def main() -> None:
    """Wait for a line, read the pods, and print."""
    role, kubeconfig = sys.argv[1:]
    sys.stdin.readline()
    work = {"agent": agent, "controller": controller}[role]
    print(json.dumps(asyncio.run(work(Path(kubeconfig)))), flush=True)


if __name__ == "__main__":
    main()
