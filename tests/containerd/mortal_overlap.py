"""Run an agent in a process of its own whose successor waits at the GPU driver, so that it can be killed.

Arguments of ``python -m`` this module: the node's name, the directory of its state, the file with the running pod
(pickled), and ``before-stop`` if the old container is never stopped.
"""

import asyncio
import contextlib
import pickle
import sys
from pathlib import Path
from unittest import mock

from hack.devnode.layout import NodeLayout
from kubemend.agent.clients.cri.client import CriClient
from tests.containerd import mortal_agent
from tests.devnode.pods import RunningPod
from tests.environments.overlaps import OverlapEnv


async def main(node: str, directory: str, running: RunningPod, *, waits: bool) -> None:
    """Swap until the successor waits, and report."""
    layout = NodeLayout.named(node)
    async with contextlib.AsyncExitStack() as stack:
        await stack.enter_async_context(mortal_agent.made_for(layout, Path(directory), seconds=0.1).at_work())
        env = await stack.enter_async_context(OverlapEnv.on(layout, directory=Path(directory)))
        if waits:
            stack.enter_context(mock.patch.object(CriClient, "stop_container", _wait_forever))
        swapping = asyncio.create_task(env.swap(running))
        await env.waits_at_driver()
        if not waits:
            await env.gates.reached.wait()
        sys.stdout.write("waits\n")
        sys.stdout.flush()
        await swapping


async def _wait_forever(*_: object, **__: object) -> None:
    await asyncio.Event().wait()


if __name__ == "__main__":
    name, state, pod, before_stop = sys.argv[1:]
    asyncio.run(main(name, state, pickle.loads(Path(pod).read_bytes()), waits=bool(before_stop)))
