"""Summarize the verdicts of a node's devices in one condition of the node. Pure.

Known faults take precedence over unknown states: one device that is not healthy makes the condition False, even if the
others are unknown. It is True only if all devices are known to be healthy. A node that shows no device is Unknown, not
True (other tools took zero GPUs for healthy ones: research/health.md, section 6).
"""

from collections.abc import Sequence

from kubemend.agent.model import conditions
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.verdicts import Health, Verdict
from kubemend.common.kube import timestamps

MAX_NAMED = 3
"""Devices that the message names; the others are counted."""

_MAX_MESSAGE = 200
"""Maximum number of characters per device: the condition stays readable, and well below 1 KiB."""

_STATUS = {
    Health.HEALTHY: ConditionStatus.TRUE,
    Health.UNKNOWN: ConditionStatus.UNKNOWN,
    Health.DEGRADED: ConditionStatus.FALSE,
    Health.UNHEALTHY: ConditionStatus.FALSE,
}


def of_node(verdicts: Sequence[Verdict]) -> Condition:
    """Return the node's ``DevicesHealthy``: the reason is the worst device's, the message names the worst few.

    The order of the verdicts does not matter; of two equally bad ones the older comes first.
    """
    if not verdicts:
        return Condition(conditions.DEVICES_HEALTHY, ConditionStatus.UNKNOWN, "NoDevices", "the driver shows no device")
    ranked = sorted(verdicts, key=_order)
    worst = ranked[0]
    return Condition(conditions.DEVICES_HEALTHY, _STATUS[worst.health], worst.reason, _message(ranked))


def _order(verdict: Verdict) -> tuple[int, int, float, str]:
    health, action = verdict.gravity
    return -health, -action, verdict.since, verdict.device


def _message(ranked: Sequence[Verdict]) -> str:
    faulty = [verdict for verdict in ranked if _STATUS[verdict.health] is ConditionStatus.FALSE]
    unknown = [verdict for verdict in ranked if _STATUS[verdict.health] is ConditionStatus.UNKNOWN]
    if not faulty and not unknown:
        return f"{len(ranked)} of {len(ranked)} devices healthy"
    if not faulty:
        return f"{len(unknown)} of {len(ranked)} devices have an unknown state: {_named(unknown)}"
    rest = f"; {len(unknown)} unknown" if unknown else ""
    return f"{len(faulty)} of {len(ranked)} devices not healthy: {_named(faulty)}{rest}"


def _named(ranked: Sequence[Verdict]) -> str:
    named = [_about(verdict) for verdict in ranked[:MAX_NAMED]]
    if len(ranked) > MAX_NAMED:
        named.append(f"and {len(ranked) - MAX_NAMED} more")
    return "; ".join(named)


def _about(verdict: Verdict) -> str:
    since = f" since {timestamps.rfc3339(verdict.since)}" if verdict.since else ""
    message = verdict.message if len(verdict.message) <= _MAX_MESSAGE else f"{verdict.message[: _MAX_MESSAGE - 1]}…"
    return f"{verdict.device} {verdict.health.value}{since}, action {verdict.action.value}: {message}"
