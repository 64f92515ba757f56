"""Wait for and check the states of gangs, as readable steps."""

import asyncio
from typing import Any

from hack.devnode import rounds
from hack.devnode.gangs import Gang
from hack.devnode.pulse import Life
from kubemend.agent.model.workloads import ContainerState
from tests.scenarios.training import DEADLINE

_BEATS = 20

Json = dict[str, Any]


def proved(gang: Gang, restart: Json, *, since: int) -> bool:
    """Return whether all old containers were dead before a new one ran, except for the time that the round itself
    reports.

    By the workers' own records; ``since`` is the moment of the fault.
    """
    barrier = gang.barrier(since=since)
    return barrier.apart > 0 or barrier.slipped <= rounds.slipped(restart)


async def held(gang: Gang, *members: int) -> None:
    """Wait until these members' successors exist, and are held."""
    async with asyncio.timeout(DEADLINE):
        while not all([await _is_held(gang, index) for index in members]):  # noqa: ASYNC110 - seen in the runtime only
            await asyncio.sleep(0.02)


async def nothing_new_runs(gang: Gang, *, since: int, beside: int, agent: bool = True) -> None:
    """Wait until no life that began at or after a moment has run while another member, which lives on, did.

    Kubelet may start another one of its own at any time. An agent holds that after a moment; without one it runs on,
    and only those that kubemend has started count.
    """

    def new() -> list[Life]:
        return [life for life in gang.lives() if life.began >= since and (agent or life.ours)]

    before: list[Life] | None = None
    try:
        async with asyncio.timeout(DEADLINE):
            while before != (before := new()):
                await _lives_on(gang, beside)
    except TimeoutError as error:
        raise AssertionError(f"new ones ran next to member {beside}, last {before} and {new()}") from error


async def _lives_on(gang: Gang, index: int) -> None:
    """Wait for some more signs of life of a member."""

    def beats() -> int:
        return max(life.beats for life in gang.lives() if life.member == gang.template.member(index))

    so_far = beats()
    await gang.until(lambda: beats() > so_far + _BEATS or None, what=f"further signs of life of member {index}")


async def one_each(gang: Gang) -> bool:
    """Return whether each member has exactly one running worker."""
    counts = [
        sum(view.state is ContainerState.RUNNING for view in await gang.containers(index)) for index in range(gang.size)
    ]
    return counts == [1] * gang.size


def is_done(restart: Json, *, members: int) -> bool:
    """Return whether a round ended well, with that many members."""
    status = restart["status"]
    counts: dict[str, int] = status["members"]
    return status["phase"] == "Done" and counts["total"] == counts["running"] == members


async def _is_held(gang: Gang, index: int) -> bool:
    running = [view for view in await gang.containers(index) if view.state is ContainerState.RUNNING]
    return len(running) == 1 and running[0].attempt > 0 and await gang.is_frozen(index)
