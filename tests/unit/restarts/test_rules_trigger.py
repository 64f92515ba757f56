"""The container that the strategy ``rules`` kills, by kubelet's status and in the runtime."""

import asyncio
from dataclasses import replace

from kubemend.agent.model import conditions
from kubemend.agent.model.workloads import RestartRule, RuleAction
from kubemend.agent.restart import admission
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restarts.requests import Request
from tests.environments.restarts import NOW, RestartEnv
from tests.environments.runtime import POD, TARGET


async def test_trigger_that_only_kubelets_status_still_shows_has_triggered_nothing(env: RestartEnv) -> None:
    """Nothing can be killed, so the faulty container next to it runs on."""
    view = env.pod.pods.pods()[POD.uid]
    rule = RestartRule(RuleAction.RESTART_ALL, frozenset({137}))
    specs = tuple(replace(spec, restart_rules=(rule,)) if spec.name == "trainer" else spec for spec in view.containers)
    annotations = {"kubemend.io/restart": "InPlace", "kubemend.io/strategy": "rules"}
    await env.pod.pods.put(replace(view, annotations=annotations, containers=specs))
    await env.pod.cri_env.cri.remove_container(env.pod.old["trainer"])
    fault = admission.Cause(code="Xid31", message="Xid 31", happened_at=NOW)
    request = Request(target=replace(TARGET, name="logger"), cause=lambda: fault, devices=frozenset())
    restart = asyncio.create_task(env.restarts.submit(request))
    async with asyncio.timeout(30):
        await env.said.wait_for(POD, conditions.IN_PLACE_RESTART, Reason.RUNTIME_UNAVAILABLE.value)
    restart.cancel()
    await asyncio.gather(restart, return_exceptions=True)
    assert await env.store.begun_since(0.0) == ()
