"""How long another replica's Lease is valid does not depend on the wall clock, which may be set."""

import time
from typing import Any

import pytest

from kubemend.controller.leader import library


class Lock(library.BaseLock):  # type: ignore[misc]  # the library has no types
    """A Lease that another replica holds and never renews; ``taken`` once this one has written it."""

    taken = False

    async def get(self, *_: str) -> tuple[bool, Any]:
        return True, library.LeaderElectionRecord("other", "15", "then", "then")

    async def update(self, *_: Any) -> bool:
        self.taken = True
        return True


@pytest.mark.parametrize("step", [0.0, 3600.0, -3600.0], ids=["", "forward", "back"])
async def test_lease_of_another_is_valid_for_its_duration_however_the_wall_clock_is_set(
    step: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = Lock("l", "n", "this")
    rules = library.LeaderElection(
        library.Config(lock, 15.0, 10.0, 2.0, onstarted_leading=lambda: None, onstopped_leading=None)
    )
    assert not await rules.try_acquire_or_renew()
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + step)
    assert not await rules.try_acquire_or_renew()
    rules.observed_time_milliseconds -= 16_000
    assert await rules.try_acquire_or_renew()
    assert lock.taken
