"""The verdicts of a node's devices as one condition of the node. Pure.

What is known beats what is not: one device that is not healthy makes the condition False, even if nothing could be
told of the others. Only a node all of whose devices are known to be healthy is True; one that shows no device at all
is Unknown, not True (peers took zero GPUs for healthy ones: research/health.md, section 6).
"""

from collections.abc import Sequence

from agent.model import conditions
from agent.model.conditions import Condition, ConditionStatus
from agent.model.verdicts import Health, Verdict
from common.kube import timestamps

MAX_NAMED = 3
"""Devices that the message names; the others are counted."""

_MAX_SAID = 200
"""Characters of one device's message: the condition stays readable, and well below 1 KiB."""

_STATUS = {
    Health.HEALTHY: ConditionStatus.TRUE,
    Health.UNKNOWN: ConditionStatus.UNKNOWN,
    Health.DEGRADED: ConditionStatus.FALSE,
    Health.UNHEALTHY: ConditionStatus.FALSE,
}
_RANK = {Health.HEALTHY: 0, Health.UNKNOWN: 1, Health.DEGRADED: 2, Health.UNHEALTHY: 3}


def of_node(verdicts: Sequence[Verdict]) -> Condition:
    """Return the node's ``DevicesHealthy``: the reason is the worst device's, the message names the worst few.

    The order of the verdicts does not matter; of two that are equally bad the older one comes first.
    """
    if not verdicts:
        return Condition(conditions.DEVICES_HEALTHY, ConditionStatus.UNKNOWN, "NoDevices", "the driver shows no device")
    ranked = sorted(verdicts, key=_order)
    worst = ranked[0]
    return Condition(conditions.DEVICES_HEALTHY, _STATUS[worst.health], worst.reason, _message(ranked))


def _order(verdict: Verdict) -> tuple[int, int, float, str]:
    return -_RANK[verdict.health], -verdict.action.severity, verdict.since, verdict.device


def _message(ranked: Sequence[Verdict]) -> str:
    faulty = [verdict for verdict in ranked if _STATUS[verdict.health] is ConditionStatus.FALSE]
    unknown = [verdict for verdict in ranked if _STATUS[verdict.health] is ConditionStatus.UNKNOWN]
    if not faulty and not unknown:
        return f"{len(ranked)} of {len(ranked)} devices healthy"
    if not faulty:
        return f"{len(unknown)} of {len(ranked)} devices could not be told: {_named(unknown)}"
    rest = f"; {len(unknown)} could not be told" if unknown else ""
    return f"{len(faulty)} of {len(ranked)} devices not healthy: {_named(faulty)}{rest}"


def _named(ranked: Sequence[Verdict]) -> str:
    named = [_about(verdict) for verdict in ranked[:MAX_NAMED]]
    if len(ranked) > MAX_NAMED:
        named.append(f"and {len(ranked) - MAX_NAMED} more")
    return "; ".join(named)


def _about(verdict: Verdict) -> str:
    since = f" since {timestamps.rfc3339(verdict.since)}" if verdict.since else ""
    said = verdict.message if len(verdict.message) <= _MAX_SAID else f"{verdict.message[: _MAX_SAID - 1]}…"
    return f"{verdict.device} {verdict.health.value}{since}, action {verdict.action.value}: {said}"
