"""The clock of rounds and JobSets."""

from kubemend.controller.coordinator.dependencies import steady_clock


class _Clocks:
    def __init__(self, wall: float) -> None:
        self.wall = wall
        self.monotonic = 100.0
        self.now = steady_clock(wall=lambda: self.wall, monotonic=lambda: self.monotonic)

    def after(self, seconds: float) -> float:
        self.wall += seconds
        self.monotonic += seconds
        return self.now()


def test_clock_that_was_wrong_at_the_start_becomes_right() -> None:
    for wrong in (3600.0, -3600.0):
        clocks = _Clocks(1_000_000.0 + wrong)
        clocks.wall -= wrong

        assert clocks.after(0) == 1_000_000 + wrong
        assert clocks.after(4 * 3600) == 1_000_000 + 4 * 3600


def test_step_of_the_wall_clock_neither_stops_nor_hastens_rounds() -> None:
    for step in (7200.0, -7200.0):
        clocks = _Clocks(1_000_000.0)
        clocks.wall += step

        seen = [clocks.after(10) for _ in range(6)]

        passed = [later - earlier for earlier, later in zip([1_000_000.0, *seen], seen, strict=False)]
        assert all(7.5 <= each <= 12.5 for each in passed)
