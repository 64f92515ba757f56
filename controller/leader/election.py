"""Elect the leader. Leading is a coroutine that runs exactly as long as this replica holds the Lease.

A replica that finds the Lease holder's process dead does not wait until the Lease expires.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Final

import structlog

from kubemend.common import aio, epochs
from kubemend.common.components import ComponentState, ComponentStatus
from kubemend.common.kube import client, errors
from kubemend.controller.leader import library
from kubemend.controller.leader.lease import EpochLock

log = structlog.get_logger(__name__)

_RELEASE_SECONDS: Final = 2.0


@dataclass(frozen=True, slots=True)
class Timing:
    """Seconds, as in client-go.

    ``lease``: after these others may take a Lease that is not renewed. ``renew``: after these a leader that cannot
    renew it stops leading by itself. ``retry``: between two attempts.
    """

    lease: float = 15.0
    renew: float = 10.0
    retry: float = 2.0


_PROBE_SECONDS: Final = 0.5
_REFUSALS: Final = 6
"""Refused connections in a row, with the Lease unwritten since the first: a leader writes it every two seconds."""


_RAISES: Final = 4
_RAISES_SECONDS: Final = 40.0
"""So many raises of the epoch in this time: each costs a message to every agent and a write on every node."""


class LostError(Exception):
    """The Lease is lost: another leader may be doing what this one was about to do."""


class Term:
    """One term of leadership. ``epoch`` can grow during the term, and is valid as long as the leading coroutine runs.

    ``seen`` is the highest known epoch of others: the term's must be higher.
    """

    def __init__(self, *, epoch: int, renewed_at: float, clock: Callable[[], float] = time.time) -> None:
        """Begin the term; ``renewed_at`` is loop time, ``clock`` returns Unix seconds."""
        self.epoch = epoch
        self._clock = clock
        self.renewed_at = renewed_at  # loop time
        self.seen = epoch - 1
        self._raised: deque[float] = deque(maxlen=_RAISES)  # Unix times of the last ones
        self.over = False
        self.raise_requested = asyncio.Event()
        self._news = asyncio.Event()

    def raise_above(self, seen: int) -> None:
        """Renew the Lease at once with an epoch above ``seen``, which an agent has accepted from another leader.

        That happens if the Lease was deleted and created again, for example. Nothing is done if the epoch is higher
        already or is about to be, nor if there cannot have been so many leaders yet: then the report is wrong, or will
        be repeated. After many raises within a short time, it waits for a later renewal.
        """
        if max(self.epoch, self.seen + 1) <= seen < epochs.highest(self._clock()):
            self.seen = seen
            if self._may_raise():
                self.raise_requested.set()

    @property
    def floor(self) -> int:
        """Return the lowest epoch with which to renew the Lease now."""
        return max(self.seen + 1, self.epoch) if self._may_raise() else self.epoch

    def _may_raise(self) -> bool:
        many = len(self._raised) == _RAISES
        return not (many and 0.0 <= self._clock() - self._raised[0] < _RAISES_SECONDS)

    async def risen(self, *, above: int) -> int:
        """Wait until the epoch is higher than ``above``, and return it. Raises LostError when the term ends."""
        while self.epoch <= above and not self.over:
            news = self._news
            await news.wait()
        if self.over:
            raise LostError("this replica no longer leads")
        return self.epoch

    def renewed(self, *, epoch: int, at: float) -> None:
        """Record that the Lease is held as of ``at`` (loop time)."""
        if epoch > self.epoch:
            self._raised.append(self._clock())
        self.epoch, self.renewed_at = epoch, at
        self._notify()

    def end(self) -> None:
        """Record that the Lease is no longer held."""
        self.over = True
        self._notify()

    def _notify(self) -> None:
        self._news.set()
        self._news = asyncio.Event()


class Election:
    """Campaign for the Lease indefinitely, and lead while holding it."""

    def __init__(
        self,
        *,
        api: client.KubeClient,
        namespace: str,
        name: str,
        identity: str,
        lead: Callable[[Term], Coroutine[Any, Any, object]],
        report: Callable[[ComponentStatus], None],
        timing: Timing | None = None,
        predecessors: str = "",
        hub: str = "",
    ) -> None:
        """Create it for the Lease ``name``. ``identity`` is unique to this process, not to its pod.

        ``predecessors``: common prefix of the identities of earlier processes of this container; ``hub``: address of
        this replica's hub. ``lead`` runs while this replica leads. It is cancelled when the Lease is lost, and awaited
        before anything else happens. It must not end by itself, and its exceptions pass through ``run``.
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
        """Return whether this replica leads."""
        return self._term is not None

    @property
    def epoch(self) -> int:
        """Return the epoch of this replica's term, or of its last one; 0 before the first."""
        return self._lock.epoch

    @property
    def holder(self) -> str:
        """Return the current leader, as far as it is known; "" if there is none."""
        return self._lock.holder

    async def run(self) -> None:
        """Campaign and lead indefinitely. When cancelled while leading, release the Lease once ``lead`` has ended."""
        while True:
            self._term = await self._win()
            log.info("leader.term_began", identity=self._identity, epoch=self._term.epoch)
            try:
                await self._serve(self._term)
            except BaseException:  # this process ends: other replicas need not wait until the Lease expires
                await self._release()
                raise
            finally:
                self._term.end()
                log.info("leader.term_ended", identity=self._identity, epoch=self._term.epoch, holder=self._lock.holder)
                self._term = None

    async def _win(self) -> Term:
        """Wait until this replica holds the Lease."""
        while True:
            at = asyncio.get_running_loop().time()
            if await self._rules.try_acquire_or_renew():
                return Term(epoch=self._lock.epoch, renewed_at=at)
            self._report_state(leader_text(self._lock.holder))
            await self._until_next()

    async def _until_next(self) -> None:
        """Wait until the next attempt is due, or until the holder's process is found dead.

        A holder that is merely slow still listens, and one on an unreachable node does not refuse connections: both are
        waited for. A holder that is declared dead by mistake ends as after any other loss: its Lease has another
        holder, and its epoch is no longer the highest.
        """
        loop = asyncio.get_running_loop()
        over, refusals = loop.time() + self._timing.retry, 0
        while refusals or loop.time() < over:
            refusals = refusals + 1 if await refuses_connections(self._lock.holders_hub) else 0
            if refusals == 1:
                await self._lock.get(self._lock.name, self._lock.namespace)  # only writes from now on count
            elif refusals == _REFUSALS:
                log.info("leader.process_ended", holder=self._lock.holder, hub=self._lock.holders_hub)
                self._lock.gone = self._lock.state
                return
            await asyncio.sleep(_PROBE_SECONDS if refusals else max(over - loop.time(), 0.0))

    async def _serve(self, term: Term) -> None:
        """Lead until the Lease is lost."""
        async with asyncio.TaskGroup() as group:
            leading = aio.spawn_eternal(group, self._lead(term), name="leading")
            await self._keep(term)
            leading.cancel()  # first, so that tasks that wait for a higher epoch are cancelled instead of failing
            term.end()

    async def _keep(self, term: Term) -> None:
        """Renew the Lease until that fails for too long, or another replica holds it."""
        while True:
            try:
                async with asyncio.timeout_at(term.renewed_at + self._timing.renew):
                    await self._renew(term)
            except TimeoutError:
                log.warning("leader.renew_failed", seconds=self._timing.renew, error=str(self._lock.error or ""))
                return
            except LostError as error:
                log.warning("leader.lost", error=str(error))
                return
            self._report_state(f"leading, epoch {term.epoch}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._timing.retry):
                    await term.raise_requested.wait()

    async def _renew(self, term: Term) -> None:
        """Retry until the Lease is renewed. Raises LostError once another replica has held it."""
        while True:
            term.raise_requested.clear()
            self._lock.floor = term.floor
            at = asyncio.get_running_loop().time()
            if await self._rules.try_acquire_or_renew():
                if self._lock.regained:  # it was deleted, or another replica has led since
                    raise LostError("the Lease was lost before it was renewed")
                term.renewed(epoch=self._lock.epoch, at=at)
                return
            if self._lock.holder not in ("", self._identity):
                raise LostError(f"{self._lock.holder} has taken the Lease")
            self._report_state("cannot renew the Lease")
            await asyncio.sleep(self._timing.retry)

    async def _release(self) -> None:
        try:
            async with asyncio.timeout(_RELEASE_SECONDS):
                await self._lock.release()
        except (errors.KubeError, TimeoutError) as error:
            log.info("leader.release_failed", error=str(error) or "no answer")

    def _report_state(self, message: str) -> None:
        error = self._lock.error
        if error is None:
            self._report(ComponentStatus(ComponentState.READY, message))
        else:
            self._report(ComponentStatus(ComponentState.DEGRADED, error.what, error.hint))


def leader_text(holder: str) -> str:
    """Return the text for /readyz about the Lease's holder; "" means that it has none yet."""
    return f"{holder} leads" if holder else "no replica leads yet"


async def _nothing() -> None:
    """Do nothing. The library requires callbacks for its own loop, which is not used."""


_CONNECT_SECONDS: Final = 1.0


async def refuses_connections(address: str) -> bool:
    """Return whether connections to ``IP:PORT``, the holder's hub, are refused, i.e.

    none of its processes listens there.

    Anything else is False, in particular a timeout: on an unreachable node processes may still run.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdecimal() or len(port) > len("65535"):
        return False
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port))
    except ConnectionRefusedError:
        return True
    except (OSError, OverflowError, ValueError):
        return False
    writer.close()
    return False
