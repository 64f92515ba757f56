"""An agent in a process of its own that carries out one order, so that it can be killed: ``python -m`` this module.

Arguments: the node's name, the directory of its memory, and the pod's name, UID, restart policy and container.
"""

import asyncio
import sys
from pathlib import Path

from agent.model.rounds import Phase
from agent.model.workloads import ContainerId, PodUid, RestartPolicy
from hack.devnode.layout import NodeLayout
from tests.containerd.round_node import agent, order, pod_view
from tests.fakes import outside


async def main(node: str, directory: str, name: str, uid: str, policy: str, container: str) -> None:
    """Carry the order out, say so, and wait for the end."""
    pod = pod_view(name, uid=PodUid(uid), policy=RestartPolicy(policy), containers={"main": ContainerId(container)})
    async with agent(NodeLayout.named(node), directory=Path(directory), views=outside.Pods(pod)) as made:
        await made.order(order(pod)).until(Phase.STOPPED)
        sys.stdout.write(f"{Phase.STOPPED.value}\n")
        sys.stdout.flush()
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
