"""The plan of an admitted restart: what its intent says of the pod, and of the decision."""

from dataclasses import replace

import pytest

from kubemend.agent.model.workloads import RestartPolicy, RestartRule, RuleAction
from kubemend.agent.restart import admission
from kubemend.agent.restart.intents import Strategy
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restarts import planning, runtime_state
from kubemend.agent.restarts.restart_plan import PodRestartPlan
from tests.environments.restarts import NOW, RestartEnv
from tests.environments.runtime import POD, TARGET


async def plan_of(env: RestartEnv, strategy: Strategy, *, policy: RestartPolicy) -> PodRestartPlan:
    """Return the plan of a whole pod's restart with a grace period of five seconds, after two restarts by kubelet."""
    rule = RestartRule(RuleAction.RESTART_ALL, frozenset({137}))
    view = env.pod.pods.pods()[POD.uid]
    specs = tuple(replace(each, restart_rules=(rule,), restart_count=2) for each in view.containers)
    pod = replace(view, restart_policy=policy, containers=specs)
    target = await runtime_state.find(env.dependencies.runtime, TARGET)
    assert target is not None
    decision = admission.Decision(admission.Verb.ACT, Reason.ADMITTED, strategy=strategy, grace_seconds=5.0)
    plan = await planning.prepare(env.dependencies, decision, target=target, pod=pod, reason="Xid31", now=NOW)
    assert isinstance(plan, PodRestartPlan)
    return plan


@pytest.mark.parametrize(
    ("strategy", "grace"),
    [(Strategy.RERUN, 5.0), (Strategy.RESET, 5.0), (Strategy.RULES, 0.0)],
    ids=lambda value: str(getattr(value, "value", value)),
)
async def test_whole_pod_has_its_grace_period_unless_a_kill_is_what_its_rules_need(
    env: RestartEnv, strategy: Strategy, grace: float
) -> None:
    """A program that ends by itself in its grace period has another exit code than the rule."""
    assert (await plan_of(env, strategy, policy=RestartPolicy.ALWAYS)).intent.grace_seconds == grace


@pytest.mark.parametrize("policy", [RestartPolicy.ALWAYS, RestartPolicy.ON_FAILURE])
async def test_container_of_a_whole_pod_may_complete_unless_it_is_always_restarted(
    env: RestartEnv, policy: RestartPolicy
) -> None:
    plan = await plan_of(env, Strategy.RERUN, policy=policy)
    assert plan.intent.completes is (policy is not RestartPolicy.ALWAYS)


async def test_restart_by_kubelet_counts_one_more_than_kubelet_shows(env: RestartEnv) -> None:
    assert (await plan_of(env, Strategy.RESET, policy=RestartPolicy.ALWAYS)).restart_count == 3
