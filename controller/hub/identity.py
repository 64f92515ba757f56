"""Authenticate agents: a projected service account token, checked by the API server (TokenReview)."""

import asyncio
import base64
import binascii
import hashlib
import json
import math
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import structlog

from kubemend.common.kube import client as kube
from kubemend.common.kube import errors, paths
from kubemend.controller.hub.ports import Identity, Reviewer
from kubemend.controller.hub.refusals import Reason, RefusedError
from kubemend.controller.model.members import NodeName

log = structlog.get_logger(__name__)

AUDIENCE: Final = "kubemend-hub"
NODE_NAME: Final = "authentication.kubernetes.io/node-name"
"""In ``status.user.extra`` of a token that is bound to a pod (KEP-4193; Kubernetes 1.30 and later)."""

_LONGEST_TOKEN: Final = 8192
_AT_ONCE: Final = 32
_KNOWN_AT_MOST: Final = 16384


def token_of(metadata: Iterable[tuple[str, str | bytes]]) -> str:
    """Return the bearer token of a call's metadata. Raises RefusedError."""
    for key, value in metadata:
        if key == "authorization" and isinstance(value, str):
            scheme, _, token = value.partition(" ")
            if scheme.lower() == "bearer" and 0 < len(token) <= _LONGEST_TOKEN:
                return token
    raise RefusedError(
        Reason.NO_TOKEN, "the call has no token. Send authorization metadata: Bearer and the projected token"
    )


def expiry_of(token: str) -> float:
    """Return when a token claims to expire, in Unix time; infinity if it has no expiry (it is no JWT).

    Only for tokens that the API server has accepted: nothing is verified here.
    """
    try:
        payload = token.split(".")[1]
        claims = json.loads(base64.urlsafe_b64decode(payload + "=" * (-len(payload) % 4)))
        return float(claims["exp"])
    except (IndexError, KeyError, TypeError, ValueError, OverflowError, binascii.Error, RecursionError):
        return math.inf


def identity_of(review: dict[str, Any], *, audience: str, user: str) -> Identity:
    """Return the identity in an answered TokenReview. Raises RefusedError unless it is ``user`` on a known node."""
    status = review.get("status") or {}
    if not status.get("authenticated"):
        raise RefusedError(Reason.BAD_TOKEN, f"the token is not valid: {status.get('error') or 'not authenticated'}")
    if audience not in (status.get("audiences") or ()):
        raise RefusedError(Reason.BAD_TOKEN, f"the token is not for audience {audience}")
    reviewed = status.get("user") or {}
    if reviewed.get("username") != user:
        raise RefusedError(Reason.BAD_TOKEN, f"the token belongs to {reviewed.get('username')}; agents run as {user}")
    nodes: Sequence[str] = (reviewed.get("extra") or {}).get(NODE_NAME) or ()
    if len(nodes) != 1 or not nodes[0]:
        raise RefusedError(
            Reason.BAD_TOKEN, "the token names no node. Mount a projected token (Kubernetes 1.30 or later)"
        )
    return Identity(user=user, node=NodeName(nodes[0]))


class TokenReviewer:
    """Have the API server review tokens; needs ``create`` on ``tokenreviews.authentication.k8s.io``.

    ``user`` is the agents' service account, as ``system:serviceaccount:NAMESPACE:NAME``.
    """

    def __init__(self, api: kube.KubeClient, *, user: str, audience: str = AUDIENCE) -> None:
        self._api = api
        self._user = user
        self._audience = audience

    async def review(self, token: str) -> Identity:
        """Return the identity of a token. Raises RefusedError, or KubeError if the review failed."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }
        answer = await self._api.create(paths.TOKEN_REVIEWS, body)
        return identity_of(answer, audience=self._audience, user=self._user)


@dataclass(frozen=True, slots=True)
class Memory:
    """Seconds for which a review's result is kept."""

    good: float = 60.0
    bad: float = 5.0


@dataclass(frozen=True, slots=True)
class _Known:
    outcome: Identity | RefusedError
    until: float  # monotonic: a wall clock that is set back would keep it


class Identities:
    """Review tokens and cache the results for a short time by the token's hash; reviews run a few at a time.

    A restarted hub accepts thousands of agents at once. The API server reviews each token once.
    """

    def __init__(
        self,
        reviewer: Reviewer,
        *,
        memory: Memory | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
    ) -> None:
        """``clock`` counts the time since a review; ``now`` is Unix time, which tokens have. Both are in seconds."""
        self._reviewer = reviewer
        self._memory = memory or Memory()
        self._clock = clock
        self._now = now
        self._known: OrderedDict[bytes, _Known] = OrderedDict()
        self._asking = asyncio.Semaphore(_AT_ONCE)

    async def identify(self, token: str, *, fresh: bool = False) -> Identity:
        """Return the identity of a token; ``fresh`` bypasses the cache.

        Raises RefusedError (REVIEW_FAILED: try again later).
        """
        key = hashlib.sha256(token.encode()).digest()
        known = self._known.get(key)
        if known is None or fresh or known.until <= self._clock():
            known = await self._ask(token)
            self._remember(key, known)
        if isinstance(known.outcome, RefusedError):
            raise known.outcome
        return known.outcome

    async def _ask(self, token: str) -> _Known:
        try:
            async with self._asking:
                identity = await self._reviewer.review(token)
        except errors.KubeError as error:
            log.warning("hub.token_not_reviewed", error=str(error))
            raise RefusedError(Reason.REVIEW_FAILED, "the API server cannot review the token now. Try again") from error
        except RefusedError as error:
            return _Known(RefusedError(error.reason, str(error)), self._clock() + self._memory.bad)
        return _Known(identity, self._clock() + min(self._memory.good, expiry_of(token) - self._now()))

    def _remember(self, key: bytes, known: _Known) -> None:
        self._known[key] = known
        self._known.move_to_end(key)
        if len(self._known) > _KNOWN_AT_MOST:
            self._known.popitem(last=False)
