"""A gang's JobSet, where it is one that we run: what it says about the gang's rounds, and what it is told."""

from dataclasses import replace
from typing import Any, Final

from common.gangs import GangKey
from controller.app.outside import Outside
from controller.decisions.facts import Decision, Reason
from controller.jobset.model import Refusal
from controller.model.members import Member, PodPhase

_GONE: Final = "Gone"
"""What a JobSet is whose object is not there any more, beside ``controller.jobset.in_place.Closed``."""


class Backing:
    """One gang's. Without a JobSet of ours it says nothing, and nobody listens."""

    def __init__(self, key: GangKey, *, outside: Outside) -> None:
        self._key = key
        self._jobsets = outside.jobsets
        self._now = outside.now
        self._dry_run = outside.policy.dry_run
        self._is_ours = False

    def facts(self) -> dict[str, Any]:
        """Return what a decision about the gang looks at (``controller.decisions.facts.Facts``)."""
        policy = self._jobsets.policy(self._key)
        if policy is None:
            return {"closed": _GONE} if self._is_ours else {}
        self._is_ours = True
        return {"closed": policy.closed, "limit": policy.limit, "used": policy.used}

    def why_off(self) -> str:
        """Return why no round of the gang may go on; "" where it may."""
        closed = self.facts().get("closed")
        return f"its JobSet is {closed.lower()}" if closed else ""

    def counted(self, member: Member) -> Member:
        """Return a member as a round counts it: one that is given up is over, and nobody replaces it."""
        if member.phase is PodPhase.FAILED and self._jobsets.is_given_up(member):
            return replace(member, phase=PodPhase.SUCCEEDED)
        return member

    def turned_down(self, decision: Decision, *, pod: str) -> None:
        """Tell the JobSet of a fault that is not answered by a round, where it is for the JobSet to end with it.

        Who only observes ends none: there was no restart to be had.
        """
        if decision.reason is Reason.REACHED_MAX_RESTARTS and not self._dry_run:
            refusal = Refusal(decision.reason.value, decision.detail, at=self._now(), pod=pod)
            self._jobsets.refused(self._key, refusal)
