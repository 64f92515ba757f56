"""What verdicts and restarts look like on a pod. Pure."""

from collections.abc import Sequence

from agent.actuator.outcomes import Outcome
from agent.model import conditions
from agent.model.actions import ActionClass
from agent.model.conditions import Condition, ConditionStatus
from agent.model.findings import FindingKind
from agent.model.verdicts import Health, Verdict
from agent.restart import admission, intents, verification

_RANK = {Health.HEALTHY: 0, Health.UNKNOWN: 1, Health.DEGRADED: 2, Health.UNHEALTHY: 3}
_LINKS = (FindingKind.LINK_DOWN.value, FindingKind.RDMA_PORT_DOWN.value)
_MUST_MOVE = (ActionClass.RESET_DEVICE, ActionClass.REBOOT_NODE, ActionClass.REPLACE)


LINK_PATIENCE = 60.0
"""Seconds for which a link must be down before a pod is failed for it: most come back by themselves."""


def for_devices(
    verdicts: Sequence[Verdict], *, now: float, near: Sequence[Verdict] = ()
) -> tuple[Condition, Condition]:
    """Return ``DevicesHealthy`` and ``DeviceFailure`` of a pod that holds these devices (at least one).

    ``near`` are NICs beside its GPUs, which it may use or not: their faults are told, but they never fail the pod, and
    what cannot be told of them says nothing. ``DeviceFailure`` is True only when no restart on this node can help:
    usable in a Job's podFailurePolicy. ``now`` is Unix time.
    """
    own = max(verdicts, key=_gravity)
    faulty = [verdict for verdict in near if verdict.health in (Health.DEGRADED, Health.UNHEALTHY)]
    worst = max((own, *faulty), key=_gravity)
    status = {
        Health.HEALTHY: ConditionStatus.TRUE,
        Health.UNKNOWN: ConditionStatus.UNKNOWN,
        Health.DEGRADED: ConditionStatus.FALSE,
        Health.UNHEALTHY: ConditionStatus.FALSE,
    }[worst.health]
    message = f"{len(verdicts)} devices healthy" if worst.health is Health.HEALTHY else _about(worst)
    moves = own.action in _MUST_MOVE and not (own.reason in _LINKS and now - own.since < LINK_PATIENCE)
    return (
        Condition(conditions.DEVICES_HEALTHY, status, worst.reason, message),
        Condition(
            conditions.DEVICE_FAILURE,
            ConditionStatus.TRUE if moves else ConditionStatus.FALSE,
            own.reason if moves else "NoDeviceFailure",
            f"{_about(own)}; the pod cannot be mended in place" if moves else "",
        ),
    )


def _gravity(verdict: Verdict) -> tuple[int, int]:
    return verdict.action.severity, _RANK[verdict.health]


def _about(verdict: Verdict) -> str:
    return f"{verdict.device}: {verdict.message}; action {verdict.action.value}"


def for_restart(
    *,
    container: str,
    strategy: intents.Strategy,
    restart_count: int,
    cause: admission.Cause,
    outcome: Outcome,
    checks: Sequence[verification.Check],
    settled: bool,
) -> Condition:
    """Return ``InPlaceRestart`` after a restart: the attempt, how, why, how long, and what was verified.

    ``settled`` is False while kubelet's consent is still awaited.
    """
    failed = verification.failed(checks)
    where = f"{container} restart {restart_count} by {strategy.value}"
    phases = ", ".join(f"{name} {seconds * 1000:.0f}" for name, seconds in outcome.phases.items())
    took = f"in {outcome.seconds * 1000:.0f} ms ({phases})"
    if outcome.result.restarted and not failed:
        unknown = [check.name for check in checks if check.state is verification.CheckState.UNKNOWN]
        proof = f"could not verify {', '.join(unknown)}" if unknown else "verified"
        proof = proof if settled else "being verified"
        return Condition(
            conditions.IN_PLACE_RESTART,
            ConditionStatus.TRUE,
            outcome.result.value,
            "; ".join((f"{where} {took} because {cause.message}", *outcome.notes, proof)),
        )
    why = "; ".join(f"{check.name}: {check.detail}" for check in failed) or outcome.detail or outcome.result.value
    reason = outcome.result.value
    if failed and outcome.result.restarted:
        reason = next((check.reason for check in failed if check.reason), "VerificationFailed")
    return Condition(conditions.IN_PLACE_RESTART, ConditionStatus.FALSE, reason, f"{where}: {why}")


def for_refusal(*, container: str, cause: admission.Cause, decision: admission.Decision) -> Condition:
    """Return ``InPlaceRestart`` when a restart was asked for and is not done (or not yet)."""
    return Condition(
        conditions.IN_PLACE_RESTART,
        ConditionStatus.FALSE,
        decision.reason.value,
        f"{container} not restarted for {cause.message}: {decision.detail}",
    )
