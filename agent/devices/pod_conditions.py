"""Build pod conditions from verdicts and restarts. Pure."""

import operator
from collections.abc import Collection, Sequence

from kubemend.agent.health.state.fold import ActiveFault
from kubemend.agent.model import conditions
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.conditions import Condition, ConditionStatus
from kubemend.agent.model.findings import FindingKind
from kubemend.agent.model.outcomes import Outcome
from kubemend.agent.model.verdicts import Health, Verdict
from kubemend.agent.restart import admission, intents, verification

_gravity = operator.attrgetter("gravity")
_LINKS = (FindingKind.LINK_DOWN, FindingKind.RDMA_PORT_DOWN)
_MUST_MOVE = (ActionClass.RESET_DEVICE, ActionClass.REBOOT_NODE, ActionClass.REPLACE)


LINK_GRACE_PERIOD = 60.0
"""Seconds for which a link must be down before DeviceFailure is set: most links come back by themselves."""


def for_devices(
    verdicts: Sequence[Verdict], *, near: Sequence[Verdict] = (), returning: Collection[str] = ()
) -> tuple[Condition, Condition]:
    """Return ``DevicesHealthy`` and ``DeviceFailure`` of a pod that holds these devices (at least one).

    ``near`` are NICs next to its GPUs, which it may or may not use. Their faults are published, but never fail the pod,
    and an unknown state of theirs is ignored. ``DeviceFailure`` is True only if no restart on this node can help, so a
    Job's podFailurePolicy can use it. ``returning`` are devices that ``may_come_back``.
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
    failed = [verdict for verdict in verdicts if verdict.action in _MUST_MOVE and verdict.device not in returning]
    return (
        Condition(conditions.DEVICES_HEALTHY, status, worst.reason, message),
        _device_failure(max(failed, key=_gravity, default=None)),
    )


def _device_failure(failed: Verdict | None) -> Condition:
    if failed is None:
        return Condition(conditions.DEVICE_FAILURE, ConditionStatus.FALSE, "NoDeviceFailure", "")
    message = f"{_about(failed)}; the pod cannot be fixed in place"
    return Condition(conditions.DEVICE_FAILURE, ConditionStatus.TRUE, failed.reason, message)


def may_come_back(active_faults: Sequence[ActiveFault], *, age: float) -> bool:
    """Return whether a device fails a pod only by a link that has just gone down, ``age`` seconds ago."""
    failing = [fault.kind for fault in active_faults if fault.action in _MUST_MOVE]
    return bool(failing) and all(kind in _LINKS for kind in failing) and age < LINK_GRACE_PERIOD


def faulty_device(condition: Condition) -> str:
    """Return the device for which a pod's ``DevicesHealthy`` is not True; "" for any other condition."""
    is_about_a_fault = condition.type == conditions.DEVICES_HEALTHY and condition.status is not ConditionStatus.TRUE
    return condition.message.partition(": ")[0] if is_about_a_fault else ""


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
    """Return ``InPlaceRestart`` after a restart: its number, strategy, cause, duration and verification.

    ``settled`` is False until kubelet agrees. ``restart_count`` 0: it is unknown.
    """
    failed = verification.failed(checks)
    number = f" {restart_count}" if restart_count else ""
    where = f"{container} restart{number} by {strategy.value}"
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
    message = "; ".join(f"{check.name}: {check.detail}" for check in failed) or outcome.detail or outcome.result.value
    reason = outcome.result.value
    if failed and outcome.result.restarted:
        reason = next((check.reason for check in failed if check.reason), "VerificationFailed")
    return Condition(conditions.IN_PLACE_RESTART, ConditionStatus.FALSE, reason, f"{where}: {message}")


def for_refusal(*, container: str, cause: admission.Cause, decision: admission.Decision) -> Condition:
    """Return ``InPlaceRestart`` for a restart that was requested and is refused or on hold."""
    on_hold = decision.verb is admission.Verb.POSTPONE
    return Condition(
        conditions.IN_PLACE_RESTART,
        ConditionStatus.FALSE,
        decision.reason.value,
        f"{container} not {'yet ' if on_hold else ''}restarted for {cause.message}: {decision.detail}",
    )
