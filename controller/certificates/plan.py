"""Plan what must be made or renewed, and when. Pure: times and names in, one act with its reason out.

A new CA is published for ``overlap`` seconds before anything is signed with it. The old one stays published until it
expires. So an agent that reads the bundle from time to time never receives a certificate that it cannot verify.
"""

import enum
from dataclasses import dataclass
from typing import Final

DAY: Final = 86400.0


@dataclass(frozen=True, slots=True)
class Periods:
    """Seconds: how long a certificate is valid, and how long before its expiry it is renewed."""

    ca: float = 3 * 365 * DAY
    ca_renewed_before: float = 365 * DAY
    server: float = 90 * DAY
    server_renewed_before: float = 30 * DAY
    overlap: float = DAY
    backdated: float = 3600.0
    """Seconds by which a certificate's validity begins before now: clocks of nodes disagree."""


@dataclass(frozen=True, slots=True)
class CaView:
    """A CA as the plan needs it. Times are Unix times."""

    made_at: float
    not_after: float


@dataclass(frozen=True, slots=True)
class ServerView:
    """A server's certificate. ``by_ca``: the current CA has signed it."""

    not_after: float
    names: frozenset[str]
    by_ca: bool
    not_before: float = 0.0


@dataclass(frozen=True, slots=True)
class View:
    """All certificates. None is one that is missing, cannot be read, or whose key does not match."""

    ca: CaView | None = None
    next_ca: CaView | None = None
    old_ca: CaView | None = None
    server: ServerView | None = None


class Act(enum.Enum):
    """One step. The plan is evaluated again after it."""

    MAKE_CA = "MakeCa"
    MAKE_NEXT_CA = "MakeNextCa"
    PROMOTE_NEXT_CA = "PromoteNextCa"
    DROP_OLD_CA = "DropOldCa"
    ISSUE_SERVER = "IssueServer"


@dataclass(frozen=True, slots=True)
class Step:
    """An act and a short, stable reason."""

    act: Act
    reason: str


def due(view: View, *, names: frozenset[str], now: float, periods: Periods) -> Step | None:
    """Return the first act that is due; None if nothing is."""
    return _about_ca(view, now=now, periods=periods) or _about_server(view.server, names, now=now, periods=periods)


def _about_ca(view: View, *, now: float, periods: Periods) -> Step | None:
    if view.ca is None:
        return Step(Act.MAKE_CA, "Missing")
    if now < view.ca.made_at - periods.backdated:  # the clock was ahead: no agent accepts it for that long
        return Step(Act.MAKE_CA, "NotYetValid")
    if now >= view.ca.not_after:
        return Step(Act.PROMOTE_NEXT_CA if view.next_ca else Act.MAKE_CA, "Expired")
    if view.next_ca is not None and now >= view.next_ca.made_at + periods.overlap:
        return Step(Act.PROMOTE_NEXT_CA, "Published")
    if view.next_ca is None and now >= view.ca.not_after - periods.ca_renewed_before:
        return Step(Act.MAKE_NEXT_CA, "Expiring")
    if view.old_ca is not None and now >= view.old_ca.not_after:
        return Step(Act.DROP_OLD_CA, "Expired")
    return None


def _about_server(server: ServerView | None, names: frozenset[str], *, now: float, periods: Periods) -> Step | None:
    if server is None:
        return Step(Act.ISSUE_SERVER, "Missing")
    if not server.by_ca:
        return Step(Act.ISSUE_SERVER, "OtherCa")
    if not names <= server.names:
        return Step(Act.ISSUE_SERVER, "OtherNames")
    if now < server.not_before:
        return Step(Act.ISSUE_SERVER, "NotYetValid")
    if now >= server.not_after - periods.server_renewed_before:
        return Step(Act.ISSUE_SERVER, "Expiring")
    return None
