"""Rounds where no JobSet is run by us: ``--no-jobsets``."""

import asyncio
from collections.abc import Callable

from common.gangs import GangKey
from controller.jobset.model import Refusal
from controller.model.faults import Cause
from controller.model.members import Member, NodeName, PodUid
from controller.model.rounds import RoundRef
from controller.rounds.states import Round


class NoJobSets:
    """Has nothing to say about any gang (``controller.app.outside.JobSets``)."""

    async def run(self) -> None:
        """Do nothing, for ever."""
        await asyncio.Event().wait()

    async def wait_known(self) -> None:
        """Return at once."""

    def policy(self, gang: GangKey) -> None:  # noqa: ARG002 - the same for all
        """Return None: no JobSet of ours stands behind it."""
        return

    def owner(self, gang: GangKey) -> None:  # noqa: ARG002
        """Return None."""
        return

    def newest_attempt(self, gang: GangKey) -> int:  # noqa: ARG002
        """Return 0: no status tells of any."""
        return 0

    def is_given_up(self, member: Member) -> bool:  # noqa: ARG002
        """Return False."""
        return False

    def begun(self, ref: RoundRef, cause: Cause, *, now: float) -> None:
        """Nobody wants to know."""

    def ended(self, round_: Round) -> None:
        """Nobody wants to know."""

    def refused(self, gang: GangKey, refusal: Refusal) -> None:
        """Nobody wants to know."""

    def left(self, gang: GangKey, *, node: NodeName, code: str, pod: PodUid) -> None:
        """Nobody keeps others off."""

    def subscribe(self, listener: Callable[[GangKey], None]) -> Callable[[], None]:  # noqa: ARG002
        """Nothing ever changes."""
        return lambda: None
