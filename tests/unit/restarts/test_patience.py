"""How long a request is kept that cannot be decided, in virtual time."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from kubemend.agent import ports
from kubemend.agent.restart import admission
from kubemend.agent.restart.reasons import Reason
from kubemend.agent.restarts.requests import Request
from kubemend.agent.restarts.scheduler import RestartScheduler
from tests import virtual_time
from tests.environments import node
from tests.environments.runtime import TARGET
from tests.fakes import outside


class _Attempts:
    """Attempts of a request: a budget opens after an hour, and the runtime is away for two seconds then."""

    def __init__(self) -> None:
        self.admitted_at: float | None = None

    @contextlib.asynccontextmanager
    async def name_reserved(self, _: Request) -> AsyncIterator[None]:
        yield

    async def attempt(self, _: Request) -> admission.Decision:
        now = asyncio.get_running_loop().time()
        if now < 3600.0:
            return admission.Decision(admission.Verb.POSTPONE, Reason.BUDGET_SPENT, retry_at=3600.0)
        if now < 3602.0:
            return admission.Decision(admission.Verb.POSTPONE, Reason.RUNTIME_UNAVAILABLE)
        self.admitted_at = now
        return admission.Decision(admission.Verb.ACT, Reason.ADMITTED)


def test_request_that_a_budget_held_for_an_hour_is_not_given_up_because_the_runtime_is_away_at_its_end() -> None:
    async def work() -> float | None:
        everything: Any = SimpleNamespace(
            pods=outside.Pods(), reporter=outside.Conditions(), event_recorder=ports.NO_RECORDER
        )
        store: Any = None
        now = asyncio.get_running_loop().time
        restarts = RestartScheduler(dependencies=everything, store=store, metrics=node.metrics(), now=now)
        attempts: Any = _Attempts()
        restarts._attempts = attempts
        cause = admission.Cause(code="Xid31", message="Xid 31", happened_at=0.0)
        await restarts.submit(Request(target=TARGET, cause=lambda: cause, devices=frozenset(), gang_answered=True))
        admitted_at: float | None = attempts.admitted_at
        return admitted_at

    assert virtual_time.run(work()) is not None
