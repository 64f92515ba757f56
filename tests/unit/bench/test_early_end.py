"""A long benchmark that is ended early prints the figures of the runs that it has made."""

import asyncio
import os
import signal

import pytest

from bench import early_end


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_run_in_progress_is_the_last_one_after_a_signal(number: signal.Signals) -> None:
    made = []
    for plan in early_end.until_signal(range(10)):
        made.append(plan)
        if plan == 3:
            os.kill(os.getpid(), number)
            for _ in range(3):  # the loop reads the signal in its next turn, and handles it in the one after
                await asyncio.sleep(0)
    assert made == [0, 1, 2, 3]


async def test_all_runs_are_made_and_reported_in_tens(capsys: pytest.CaptureFixture[str]) -> None:
    assert [*early_end.until_signal(range(25))] == [*range(25)]
    assert capsys.readouterr().err.splitlines() == ["10 runs", "20 runs"]
