"""What has to be made or renewed, and when. Pure: times and names in, one act with its reason out.

A new CA is published for ``overlap`` before anything is signed with it, and the old one stays published until it
expires: an agent that reads the bundle now and then never meets a certificate that it cannot check.
"""

import enum
from dataclasses import dataclass
from typing import Final

DAY: Final = 86400.0


@dataclass(frozen=True, slots=True)
class Periods:
    """Seconds: how long a certificate is valid, and how long before its end it is renewed."""

    ca: float = 3 * 365 * DAY
    ca_renewed_before: float = 365 * DAY
    server: float = 90 * DAY
    server_renewed_before: float = 30 * DAY
    overlap: float = DAY
    backdated: float = 3600.0
    """So much earlier than now a certificate's validity begins: clocks of nodes disagree."""


@dataclass(frozen=True, slots=True)
class CaView:
    """A CA as it matters here. Times are Unix times."""

    made_at: float
    not_after: float


@dataclass(frozen=True, slots=True)
class ServerView:
    """A server's certificate. ``by_ca``: the current CA has signed it."""

    not_after: float
    names: frozenset[str]
    by_ca: bool


@dataclass(frozen=True, slots=True)
class View:
    """All that there is. None is what is missing, cannot be read, or whose key does not fit."""

    ca: CaView | None = None
    next_ca: CaView | None = None
    old_ca: CaView | None = None
    server: ServerView | None = None


class Act(enum.Enum):
    """One step; after it the plan is asked again."""

    MAKE_CA = "MakeCa"
    MAKE_NEXT_CA = "MakeNextCa"
    PROMOTE_NEXT_CA = "PromoteNextCa"
    DROP_OLD_CA = "DropOldCa"
    ISSUE_SERVER = "IssueServer"


@dataclass(frozen=True, slots=True)
class Step:
    """What to do, and a short stable reason."""

    act: Act
    reason: str


def due(view: View, *, names: frozenset[str], now: float, periods: Periods) -> Step | None:
    """Return what has to be done first; None when all is well."""
    return _about_ca(view, now=now, periods=periods) or _about_server(view.server, names, now=now, periods=periods)


def _about_ca(view: View, *, now: float, periods: Periods) -> Step | None:
    if view.ca is None:
        return Step(Act.MAKE_CA, "Missing")
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
    if now >= server.not_after - periods.server_renewed_before:
        return Step(Act.ISSUE_SERVER, "Expiring")
    return None
