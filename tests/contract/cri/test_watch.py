"""The container watch on the stand-in's and on the real runtime's event stream."""

import asyncio

from kubemend.agent.clients.cri.events import ContainerEvent, EventKind
from kubemend.agent.model.workloads import ContainerId
from kubemend.agent.sources.containers import ContainerWatch
from kubemend.common.components import ComponentState, ComponentStatus
from tests.contract.cri.node import Node


async def _until(queue: "asyncio.Queue[ContainerEvent]", kind: EventKind) -> list[ContainerEvent]:
    reported: list[ContainerEvent] = []
    async with asyncio.timeout(60):
        while not reported or reported[-1].kind is not kind:
            reported.append(await queue.get())
    return reported


async def test_container_events_come_once_and_in_order(node: Node) -> None:
    ready = asyncio.Event()

    def report(status: ComponentStatus) -> None:
        if status.state is ComponentState.READY:
            ready.set()

    watch = ContainerWatch(node.cri, report=report)
    task = asyncio.create_task(watch.run())
    try:
        await ready.wait()
        pod, other = await node.pod(), await node.pod()
        async with watch.subscribe(pod.uid) as queue:
            await other.run()
            container_id: ContainerId = await pod.run()
            reported = await _until(queue, EventKind.STARTED)
            await node.cri.stop_container(container_id, grace=0)
            reported += await _until(queue, EventKind.STOPPED)
            await node.cri.remove_container(container_id)
            reported += await _until(queue, EventKind.DELETED)
    finally:
        task.cancel()
        await asyncio.wait({task})

    assert [step.kind for step in reported] == list(EventKind)
    assert {step.container_id for step in reported} == {container_id}
    assert {step.sandbox_id for step in reported} == {pod.sandbox_id}
    assert {step.pod.uid for step in reported} == {pod.uid}
