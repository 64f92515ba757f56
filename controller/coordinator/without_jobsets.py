"""Rounds without managed JobSets: ``--no-jobsets``."""

import asyncio
from collections.abc import Callable

from kubemend.common.gangs import GangKey
from kubemend.controller.jobset.spec.model import Refusal
from kubemend.controller.model.faults import Cause
from kubemend.controller.model.members import Member, NodeName, PodUid
from kubemend.controller.model.rounds import RoundRef
from kubemend.controller.rounds.states import Round


class NoJobSets:
    """Manage no JobSet (``controller.coordinator.dependencies.JobSets``)."""

    async def run(self) -> None:
        """Do nothing; never returns."""
        await asyncio.Event().wait()

    async def wait_known(self) -> None:
        """Return at once."""

    def policy(self, gang: GangKey) -> None:  # noqa: ARG002 - the same for all
        """Return None: no managed JobSet."""
        return

    def owner(self, gang: GangKey) -> None:  # noqa: ARG002
        """Return None."""
        return

    def newest_attempt(self, gang: GangKey) -> int:  # noqa: ARG002
        """Return 0: no status has a number."""
        return 0

    def is_given_up(self, member: Member) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    def begun(self, ref: RoundRef, cause: Cause, *, now: float) -> None:
        """Do nothing."""

    def ended(self, round_: Round) -> None:
        """Do nothing."""

    def refused(self, gang: GangKey, refusal: Refusal) -> None:
        """Do nothing."""

    def left(self, gang: GangKey, *, node: NodeName, code: str, pod: PodUid) -> None:
        """Do nothing: no node is tainted."""

    def subscribe(self, listener: Callable[[GangKey], None]) -> Callable[[], None]:  # noqa: ARG002
        """Do nothing: no policy changes."""
        return lambda: None
