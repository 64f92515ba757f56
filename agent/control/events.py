"""The progress of a restart as JSON objects. Their names and fields are a public interface: docs/operations.md."""

from collections.abc import Mapping
from typing import Any

from kubemend.agent.actuator.progress import Begun, Decided, Event, Freeing, Joined, Queued, Reported, StepTaken
from kubemend.agent.model.outcomes import Outcome
from kubemend.agent.model.workloads import ContainerRef
from kubemend.agent.restart import admission, verification

Json = dict[str, Any]


def at(milliseconds: float, event: Json) -> Json:
    """Return the event with ``ms``, the milliseconds since the request."""
    return {"event": event["event"], "ms": round(milliseconds, 1), **event}


def accepted(target: ContainerRef, *, requester: str) -> Json:
    """Return the event for an accepted request. The agent completes the restart even if no client follows it."""
    return {
        "event": "accepted",
        "pod": str(target.pod),
        "uid": target.pod.uid,
        "container": target.name,
        "by": requester,
    }


def missed(count: int) -> Json:
    """Return the event for ``count`` events that were dropped because the reader was too slow."""
    return {"event": "missed", "count": count}


def encode(event: Event) -> Json:
    """Return an event as JSON; durations are in milliseconds."""
    match event:
        case Queued():
            return {"event": "queued"}
        case Joined(cause):
            return {"event": "joined", "cause": cause.code, "message": cause.message}
        case Decided(decision):
            return {"event": "decided", **_decision(decision)}
        case Begun():
            return {
                "event": "begun",
                "restart": event.restart,
                "strategy": event.strategy.value,
                "containers": list(event.containers),
                "restart_count": event.restart_count,
            }
        case StepTaken():
            return {
                "event": "step",
                "step": event.step.kind.value,
                "reason": event.step.reason.value,
                "container": event.container,
                "attempt": event.attempt,
                "took_ms": _milliseconds(event.seconds),
                "error": event.error,
            }
        case Freeing(container, left):
            return {"event": "freeing", "container": container, "left_bytes": left}
        case Reported(outcome, checks, settled):
            if not settled:
                return {"event": "acted", **_outcome(outcome)}
            checked = [{"name": check.name, "state": check.state.value, "detail": check.detail} for check in checks]
            return {"event": "settled", **_outcome(outcome), "checks": checked, "verified": event.verified}


def done(last: Event | None, *, stopped: bool) -> Json:
    """Return the last object: whether the restart was done and verified, and if not, why.

    ``last`` is the latest decision or report. ``stopped`` means that the agent was stopped before the end.
    """
    ok, reason, detail = _result(last)
    if stopped and not ok:
        reason, detail = "AgentStopped", "the agent was stopped; the next one completes a restart that has begun"
    return {"event": "done", "ok": ok, "reason": reason, "detail": detail}


def _result(last: Event | None) -> tuple[bool, str, str]:
    match last:
        case Reported() if last.verified or not last.outcome.result.restarted:
            return last.verified, last.outcome.result.value, last.outcome.detail
        case Reported():
            return False, "NotVerified", _unpassed_checks(last)
        case Decided(decision) if decision.verb is admission.Verb.POSTPONE:
            return False, decision.reason.value, f"timed out: {decision.detail}"
        case Decided(decision):
            return False, decision.reason.value, decision.detail
    return False, "Unknown", "no decision has been made"


def _unpassed_checks(report: Reported) -> str:
    open_ = [check for check in report.checks if check.state is not verification.CheckState.PASSED]
    return "; ".join(f"{check.name} {check.state.value}: {check.detail}" for check in open_)


def _decision(decision: admission.Decision) -> Json:
    return {
        "verb": decision.verb.value,
        "reason": decision.reason.value,
        "detail": decision.detail,
        "strategy": decision.strategy.value if decision.strategy is not None else None,
        "grace_seconds": decision.grace_seconds,
    }


def _outcome(outcome: Outcome) -> Json:
    return {
        "result": outcome.result.value,
        "detail": outcome.detail,
        "notes": list(outcome.notes),
        "total_ms": _milliseconds(outcome.seconds),
        "phases_ms": _phases(outcome.phases),
    }


def _phases(phases: Mapping[str, float]) -> Json:
    return {name: _milliseconds(seconds) for name, seconds in phases.items()}


def _milliseconds(seconds: float) -> float:
    return round(seconds * 1000, 1)
