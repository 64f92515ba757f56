"""Which replica leads. Leading is a coroutine that runs for as long as the Lease is ours, and no longer."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import structlog

from common import aio, epochs
from common.kube import client, errors
from common.parts import PartState, PartStatus
from controller.leader import holders, library
from controller.leader.lease import EpochLock

log = structlog.get_logger(__name__)

_RELEASE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, as in client-go: ``lease`` until others may take a Lease that is not renewed, ``renew`` until a leader
    that cannot renew it ends leading by itself, ``retry`` between two attempts.
    """

    lease: float = 15.0
    renew: float = 10.0
    retry: float = 2.0


_PROBE_SECONDS: Final = 0.5
_REFUSALS: Final = 6
"""In a row, with the Lease unwritten since the first: a leader writes it every two seconds."""


class LostError(Exception):
    """The Lease is not ours any more: what this leader was about to do, another one may be doing."""


class Term:
    """One time of leading. ``epoch`` can grow in it, and is good for as long as the leading coroutine runs.

    ``seen`` is the highest epoch of others that is known of: ours is to be higher.
    """

    def __init__(self, *, epoch: int, renewed_at: float, clock: Callable[[], float] = time.time) -> None:
        """Begin it; ``renewed_at`` is loop time, ``clock`` gives Unix seconds."""
        self.epoch = epoch
        self._clock = clock
        self.renewed_at = renewed_at  # loop time
        self.seen = epoch - 1
        self.over = False
        self.wish = asyncio.Event()
        self._news = asyncio.Event()

    def raise_above(self, seen: int) -> None:
        """Have the Lease renewed at once with an epoch higher than ``seen``, by which an agent has obeyed another.

        The Lease was deleted, say, and begun anew. Nothing is done where ours is higher already, or is about to be, nor
        where there cannot have been so many leaders yet: whoever tells so is wrong, or will tell it again.
        """
        if max(self.epoch, self.seen + 1) <= seen < epochs.highest(self._clock()):
            self.seen = seen
            self.wish.set()

    async def risen(self, *, above: int) -> int:
        """Wait until the epoch is higher than ``above``, and return it. Raises LostError when the term ends."""
        while self.epoch <= above and not self.over:
            news = self._news
            await news.wait()
        if self.over:
            raise LostError("this replica does not lead any more")
        return self.epoch

    def renewed(self, *, epoch: int, at: float) -> None:
        """Take note that the Lease is ours as of ``at`` (loop time)."""
        self.epoch, self.renewed_at = epoch, at
        self._tell()

    def end(self) -> None:
        """Take note that it is not."""
        self.over = True
        self._tell()

    def _tell(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class Election:
    """Campaigns for ever, and leads in between."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        namespace: str,
        name: str,
        identity: str,
        lead: Callable[[Term], Coroutine[Any, Any, object]],
        report: Callable[[PartStatus], None],
        timing: Timing | None = None,
        predecessors: str = "",
        hub: str = "",
    ) -> None:
        """Create it for the Lease ``name``. ``identity`` is unique to this process, not to its pod.

        ``predecessors``: how identities of earlier processes of this container begin; ``hub``: where ours listens.

        ``lead`` runs while this replica leads. It is cancelled when the Lease is lost, and awaited before anything
        else happens; it must not end by itself, and an exception of it passes through ``run``.
        """
        self._identity = identity
        self._lead = lead
        self._report = report
        self._timing = timing if timing is not None else Timing()
        self._lock = EpochLock(
            api=api, namespace=namespace, name=name, identity=identity, predecessors=predecessors, hub=hub
        )
        self._rules = library.LeaderElection(
            library.Config(
                self._lock,
                lease_duration=self._timing.lease,
                renew_deadline=self._timing.renew,
                retry_period=self._timing.retry,
                onstarted_leading=_nothing,
                onstopped_leading=_nothing,
            )
        )
        self._term: Term | None = None

    @property
    def leading(self) -> bool:
        """Whether this replica leads."""
        return self._term is not None

    @property
    def epoch(self) -> int:
        """The epoch of this replica's term, or of its last one; 0 before the first."""
        return self._lock.epoch

    @property
    def holder(self) -> str:
        """Who leads, as far as is known; "" nobody."""
        return self._lock.holder

    async def run(self) -> None:
        """Campaign and lead for ever. When cancelled while leading, the Lease is given up once ``lead`` has ended."""
        while True:
            self._term = await self._win()
            log.info("leader.begins", identity=self._identity, epoch=self._term.epoch)
            try:
                await self._serve(self._term)
            except BaseException:  # this process ends: others need not wait until the Lease has run out
                await self._release()
                raise
            finally:
                self._term.end()
                log.info("leader.ends", identity=self._identity, epoch=self._term.epoch, holder=self._lock.holder)
                self._term = None

    async def _win(self) -> Term:
        """Wait until the Lease is ours."""
        while True:
            at = asyncio.get_running_loop().time()
            if await self._rules.try_acquire_or_renew():
                return Term(epoch=self._lock.epoch, renewed_at=at)
            self._say(f"{self._lock.holder} leads")
            await self._until_next()

    async def _until_next(self) -> None:
        """Wait until it is time for another attempt, or until the holder's process is found to be gone.

        A holder that is merely slow listens, and one that has lost its node does not refuse: they are waited for. One
        that is taken for gone by mistake ends as after any other loss: its Lease has another holder, and its epoch is
        not the highest.
        """
        loop = asyncio.get_running_loop()
        over, refusals = loop.time() + self._timing.retry, 0
        while refusals or loop.time() < over:
            refusals = refusals + 1 if await holders.refuses(self._lock.holders_hub) else 0
            if refusals == 1:
                await self._lock.get(self._lock.name, self._lock.namespace)  # what it writes from now on counts
            elif refusals == _REFUSALS:
                log.info("leader.gone", holder=self._lock.holder, hub=self._lock.holders_hub)
                self._lock.gone = self._lock.state
                return
            await asyncio.sleep(_PROBE_SECONDS if refusals else max(over - loop.time(), 0.0))

    async def _serve(self, term: Term) -> None:
        """Lead until the Lease is lost."""
        async with asyncio.TaskGroup() as group:
            leading = aio.spawn_eternal(group, self._lead(term), name="leading")
            await self._keep(term)
            leading.cancel()  # first: who waits for a higher epoch then hears of this, and not of an error
            term.end()

    async def _keep(self, term: Term) -> None:
        """Renew the Lease until that fails for too long, or another holder is seen."""
        while True:
            try:
                async with asyncio.timeout_at(term.renewed_at + self._timing.renew):
                    await self._renew(term)
            except TimeoutError:
                log.warning("leader.not_renewed", seconds=self._timing.renew, error=str(self._lock.error or ""))
                return
            except LostError as error:
                log.warning("leader.lost", error=str(error))
                return
            self._say(f"leads, epoch {term.epoch}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timing.retry):
                    await term.wish.wait()

    async def _renew(self, term: Term) -> None:
        """Try until the Lease is renewed. Raises LostError once another has had it."""
        while True:
            term.wish.clear()
            self._lock.floor = term.seen + 1
            at = asyncio.get_running_loop().time()
            if await self._rules.try_acquire_or_renew():
                if self._lock.regained:  # it was deleted, or another has led since
                    raise LostError("the Lease was not ours when it was renewed")
                term.renewed(epoch=self._lock.epoch, at=at)
                return
            if self._lock.holder not in ("", self._identity):
                raise LostError(f"{self._lock.holder} has taken the Lease")
            self._say("cannot renew the Lease")
            await asyncio.sleep(self._timing.retry)

    async def _release(self) -> None:
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._lock.release()
        except (errors.KubeError, TimeoutError) as error:
            log.info("leader.not_released", error=str(error) or "no answer")

    def _say(self, message: str) -> None:
        error = self._lock.error
        if error is None:
            self._report(PartStatus(PartState.READY, message))
        else:
            self._report(PartStatus(PartState.DEGRADED, error.what, error.mend))


async def _nothing() -> None:
    """The library insists on callbacks for the loop of its own that we do not use."""
