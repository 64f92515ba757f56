"""The identity of a token."""

import base64
import json
import math
from collections import Counter
from typing import Any

import grpc
import pytest

from kubemend.common.kube import errors
from kubemend.controller.hub import identity, service
from kubemend.controller.hub.identity import Identities, Memory
from kubemend.controller.hub.ports import Identity
from kubemend.controller.hub.refusals import Reason, RefusedError
from kubemend.controller.hub.service import Rules
from kubemend.controller.hub.streams import Stream
from kubemend.controller.model.members import NodeName
from tests.unit.controller.hub import words
from tests.unit.controller.hub.env import HubServiceEnv

_USER = "system:serviceaccount:kubemend:kubemend-agent"
_GOOD: dict[str, Any] = {
    "authenticated": True,
    "audiences": ["kubemend-hub"],
    "user": {"username": _USER, "extra": {"authentication.kubernetes.io/node-name": ["node-1"]}},
}


def _identity(status: dict[str, Any]) -> Identity:
    return identity.identity_of({"status": status}, audience="kubemend-hub", user=_USER)


def test_agents_token_identifies_its_node() -> None:
    assert _identity(_GOOD) == Identity(user=_USER, node=NodeName("node-1"))


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"authenticated": False, "error": "expired"},
        {**_GOOD, "authenticated": False},
        {**_GOOD, "audiences": []},
        {**_GOOD, "audiences": ["https://kubernetes.default.svc"]},
        {**_GOOD, "user": {**_GOOD["user"], "username": "system:serviceaccount:train:default"}},
        {**_GOOD, "user": {"username": _USER}},
        {**_GOOD, "user": {"username": _USER, "extra": {"authentication.kubernetes.io/node-name": []}}},
        {**_GOOD, "user": {"username": _USER, "extra": {"authentication.kubernetes.io/node-name": [""]}}},
        {**_GOOD, "user": {"username": _USER, "extra": {"authentication.kubernetes.io/node-name": ["a", "b"]}}},
    ],
)
def test_any_other_token_is_refused(status: dict[str, Any]) -> None:
    with pytest.raises(RefusedError) as refused:
        _identity(status)
    assert refused.value.reason is Reason.BAD_TOKEN


@pytest.mark.parametrize(
    "metadata", [(("authorization", "Bearer abc"),), (("x", "y"), ("authorization", "bearer abc"))]
)
def test_token_of_reads_bearer_token(metadata: tuple[tuple[str, str], ...]) -> None:
    assert identity.token_of(metadata) == "abc"


@pytest.mark.parametrize(
    "metadata",
    [
        (),
        (("authorization", "Basic abc"),),
        (("authorization", "Bearer "),),
        (("authorization", b"Bearer abc"),),
        (("authorization", "Bearer " + "x" * 9000),),
    ],
)
def test_call_without_token_is_refused(metadata: tuple[tuple[str, str | bytes], ...]) -> None:
    with pytest.raises(RefusedError) as refused:
        identity.token_of(metadata)
    assert refused.value.reason is Reason.NO_TOKEN


def _jwt(claims: object) -> str:
    payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
    return f"header.{payload}.signature"


@pytest.mark.parametrize(
    ("token", "expiry"),
    [
        (_jwt({"exp": 1234}), 1234.0),
        (_jwt({}), math.inf),
        (_jwt([]), math.inf),
        (_jwt({"exp": None}), math.inf),
        (_jwt({"exp": 10**400}), math.inf),
        ("opaque", math.inf),
        ("a.b.c", math.inf),
        ("a.\xff.c", math.inf),
    ],
)
def test_expiry_of_reads_token(token: str, expiry: float) -> None:
    assert identity.expiry_of(token) == expiry


class _Reviewer:
    """A reviewer with preset answers that counts its calls."""

    def __init__(self) -> None:
        self.answer: Identity | Exception = Identity(user=_USER, node=NodeName("node-1"))
        self.asked = 0

    async def review(self, token: str) -> Identity:
        self.asked += 1
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class _Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


async def test_review_is_cached_for_a_while() -> None:
    reviewer, clock = _Reviewer(), _Clock()
    identities = Identities(reviewer, memory=Memory(good=60), clock=clock)
    for now, asked in ((1000, 1), (1059, 1), (1060, 2), (1061, 2)):
        clock.now = now
        assert (await identities.identify("t")).node == "node-1"
        assert reviewer.asked == asked
    await identities.identify("other")
    assert reviewer.asked == 3


async def test_cached_review_does_not_outlive_token() -> None:
    reviewer, clock = _Reviewer(), _Clock()
    identities = Identities(reviewer, clock=clock, now=lambda: 5000.0)
    token = _jwt({"exp": 5010})
    await identities.identify(token)
    clock.now = 1010
    reviewer.answer = RefusedError(Reason.BAD_TOKEN, "expired")
    with pytest.raises(RefusedError):
        await identities.identify(token)


async def test_clock_that_is_set_back_keeps_no_review() -> None:
    reviewer, clock, wall = _Reviewer(), _Clock(), _Clock()
    identities = Identities(reviewer, memory=Memory(good=60), clock=clock, now=wall)
    await identities.identify("t")
    wall.now -= 3600
    clock.now += 60
    reviewer.answer = RefusedError(Reason.BAD_TOKEN, "its pod is gone")
    with pytest.raises(RefusedError):
        await identities.identify("t")


async def test_refusal_is_cached_for_less_time() -> None:
    reviewer, clock = _Reviewer(), _Clock()
    reviewer.answer = RefusedError(Reason.BAD_TOKEN, "no")
    identities = Identities(reviewer, memory=Memory(bad=5), clock=clock)
    for now, asked in ((1000, 1), (1004, 1), (1005, 2)):
        clock.now = now
        with pytest.raises(RefusedError):
            await identities.identify("t")
        assert reviewer.asked == asked


async def test_failed_review_is_not_cached() -> None:
    reviewer = _Reviewer()
    identities = Identities(reviewer, clock=_Clock())
    good, reviewer.answer = reviewer.answer, errors.ApiUnavailableError("cannot create tokenreviews")
    with pytest.raises(RefusedError) as refused:
        await identities.identify("t")
    assert refused.value.reason is Reason.REVIEW_FAILED
    assert refused.value.code is grpc.StatusCode.UNAVAILABLE
    reviewer.answer = good
    assert (await identities.identify("t")).node == "node-1"


@pytest.mark.parametrize(
    ("token", "code", "reason"),
    [(None, "UNAUTHENTICATED", "NoToken"), ("stolen", "UNAUTHENTICATED", "BadToken"),
     ("token-of-node-2", "PERMISSION_DENIED", "WrongNode")],
)  # fmt: skip
async def test_caller_with_other_token_gets_no_session(
    env: HubServiceEnv, token: str | None, code: str, reason: str
) -> None:
    agent = await env.agent(token=token)
    if reason == "WrongNode":  # the others are refused at once, and grpc.aio may call that INTERNAL during a write
        await agent.say(words.hello())
    assert (await agent.ended())[0] is grpc.StatusCode[code]
    assert not env.engine.heard
    assert env.counted() == {reason: 1}


@pytest.mark.parametrize("first", [1, 40_000])
def test_agents_that_connect_at_once_are_not_reviewed_at_once(first: int) -> None:
    after = [service.first_review_after(number, seconds=300.0) for number in range(first, first + 5000)]
    assert min(after) >= 150.0
    assert max(after) < 300.0
    in_a_second = Counter(map(int, after))
    assert max(in_a_second.values()) <= 2 * 5000 / 150, "twice as many as on average"


async def test_streams_of_two_agents_are_reviewed_at_different_times(env: HubServiceEnv) -> None:
    _, first = await env.session("node-1")
    _, second = await env.session("node-2")
    assert isinstance(first, Stream)
    assert isinstance(second, Stream)
    assert abs(first.review_at - second.review_at) > 30.0


async def test_token_of_living_stream_is_reviewed_again() -> None:
    async with HubServiceEnv(rules=Rules(review_seconds=0)).running() as env:
        agent, _ = await env.session()
        env.tokens.revoked.add("token-of-node-1")
        assert (await agent.ended())[0] is grpc.StatusCode.UNAUTHENTICATED
        assert env.engine.of("gone") == [1]
        assert env.counted("kubemend_hub_sessions_ended_total") == {"Token": 1}
