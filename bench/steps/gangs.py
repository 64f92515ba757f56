"""Run each arm of gangs, with all members on one dev node."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

from bench.peers import upstream
from bench.rig import is_ready
from bench.steps import arms, records, recovery
from hack.devnode import apiserver, controllers, jobsets, layout, node
from kubemend.common.kube import client as kube

_SECONDS: Final = 60.0
_LOOK_AGAIN: Final = 0.05

Json = dict[str, Any]


async def measure(wanted: tuple[str, ...], plan: arms.Plan, *, members: int, directory: Path) -> Json:
    """Run the arms one after another, and return the figures."""
    found: Json = {}
    chosen = [arm for arm in arms.GANG_ARMS if arm.name in wanted]
    ours = [arm for arm in chosen if arm.restarter is arms.Restarter.KUBEMEND]
    upstreams = [arm for arm in chosen if arm not in ours]
    async with contextlib.AsyncExitStack() as stack:
        # Upstream's agents run in pods and watch the API server from there: it listens on the pods' bridge, too.
        api_server = apiserver.KubeApiServer(directory, options=["--bind-address=0.0.0.0"])
        await stack.enter_async_context(api_server)
        dev = await stack.enter_async_context(node.DevNode(layout.NodeLayout.named("bench-steps-gang"), api=api_server))
        await upstream.define_jobsets(dev)
        await stack.enter_async_context(jobsets.run_on(dev))
        api = await stack.enter_async_context(kube.connect(kubeconfig=dev.kubeconfig))
        for restarts, group in ((_upstream, upstreams), (_kubemend, ours)):
            if group:
                async with restarts(dev, api):
                    for arm in group:
                        found[arm.name] = await _run(api, arm, plan, members=members, dev=dev, directory=directory)
    return found


async def _run(
    api: kube.KubeClient, arm: arms.GangArm, plan: arms.Plan, *, members: int, dev: node.DevNode, directory: Path
) -> Json:
    """Run one arm until the gang has recovered from its last fault."""
    made = directory / arm.name
    made.mkdir()
    await api.create(jobsets.JOBSETS, arms.gang(arm, plan, members=members, node=dev, records=made))
    last = made / f"{members - 1}.records"  # this one has the faults
    found = await records.with_recoveries(last, count=plan.faults, what=arm.name)
    await jobsets.delete(api, arm.name)
    return {"what": arm.what, **recovery.figures(found)}


def _upstream(dev: node.DevNode, api: kube.KubeClient) -> contextlib.AbstractAsyncContextManager[None]:
    return upstream.controller(dev, api)


@contextlib.asynccontextmanager
async def _kubemend(dev: node.DevNode, _api: kube.KubeClient) -> AsyncIterator[None]:
    async with controllers.Controllers.on([dev], replicas=1) as made, made.run(), made.agent(dev) as agent:
        async with asyncio.timeout(_SECONDS):
            while not await is_ready(agent):  # noqa: ASYNC110 - /readyz is polled
                await asyncio.sleep(_LOOK_AGAIN)
        yield
