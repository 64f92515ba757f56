"""What a gang's JobSet, if kubemend manages one, allows for the gang's rounds, and what it is notified of."""

from dataclasses import replace
from typing import Any, Final

from kubemend.common.gangs import GangKey
from kubemend.controller.coordinator.dependencies import Dependencies
from kubemend.controller.decisions.facts import Decision, Reason
from kubemend.controller.jobset.spec.model import Refusal
from kubemend.controller.model.members import Member, PodPhase

_GONE: Final = "Gone"
"""State of a JobSet whose object no longer exists, in addition to ``controller.jobset.policy.in_place.Closed``."""


class JobSetPolicyLookup:
    """One gang's JobSet.

    Without a JobSet that kubemend manages there are no limits, and notifications have no effect.
    """

    def __init__(self, key: GangKey, *, outside: Dependencies) -> None:
        self._key = key
        self._jobsets = outside.jobsets
        self._now = outside.now
        self._dry_run = outside.policy.dry_run
        self._is_ours = False

    def facts(self) -> dict[str, Any]:
        """Return the JobSet's facts for a decision about the gang (``controller.decisions.facts.Facts``)."""
        policy = self._jobsets.policy(self._key)
        if policy is None:
            return {"closed": _GONE} if self._is_ours else {}
        self._is_ours = True
        return {"closed": policy.closed, "limit": policy.limit, "used": policy.used}

    def why_off(self) -> str:
        """Return why no round of the gang may continue; "" if it may."""
        closed = self.facts().get("closed")
        return f"its JobSet is {closed.lower()}" if closed else ""

    def counted(self, member: Member) -> Member:
        """Return a member as a round counts it. One whose index has failed for good is over: no new pod replaces it."""
        if member.phase is PodPhase.FAILED and self._jobsets.is_given_up(member):
            return replace(member, phase=PodPhase.SUCCEEDED)
        return member

    def turned_down(self, decision: Decision, *, pod: str) -> None:
        """Notify the JobSet of a fault that is not answered by a round, if the JobSet must end because of it.

        In dry run it does not end: no restart was possible anyway.
        """
        if decision.reason is Reason.REACHED_MAX_RESTARTS and not self._dry_run:
            refusal = Refusal(decision.reason.value, decision.detail, at=self._now(), pod=pod)
            self._jobsets.refused(self._key, refusal)
