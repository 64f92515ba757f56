"""Calls in flight, and the announcement of hanging ones."""

import hashlib
import os
import threading
import time
from collections.abc import Callable

import pytest

from kubemend.agent.sources.nvml import calls as module
from kubemend.agent.sources.nvml.calls import Calls, cpu_waits

DEADLINE = 10.0
STDIN = 0


class Process:
    """A process with a clock: the announcements of its calls, in order.

    ``stopped`` is for how long each wait lasts beyond its end, ``input`` whether its stdin is readable, ``throttled``
    the share of the time in which its threads are ready to run and have no CPU.
    """

    def __init__(self) -> None:
        self.announced: list[str | None] = []
        self.returns = 0
        self.stopped = 0.0
        self.input = False
        self.now = 1000.0
        self.waits: list[float] = []
        self.throttled = 0.0
        self.waited: float | None = 0.0
        self.calls = Calls(
            deadline=DEADLINE,
            announce=self.announced.append,
            came_back=self.came_back,
            cpu_wait=lambda _thread: self.waited,
        )

    def came_back(self) -> None:
        self.returns += 1

    def monotonic(self) -> float:
        return self.now

    def select(
        self, reading: list[int], writing: list[int], errors: list[int], timeout: float
    ) -> tuple[list[int], list[int], list[int]]:
        self.waits.append(timeout)
        lasted = self.stopped if self.input else timeout + self.stopped
        self.now += lasted
        if self.waited is not None:
            self.waited += self.throttled * lasted
        return reading if self.input else [], writing, errors

    def wait(self, seconds: float) -> None:
        """Wait at stdin for that long, by the clock."""
        until = self.now + seconds
        while self.now < until:
            self.calls.readable(STDIN)


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> Process:
    made = Process()
    monkeypatch.setattr(module, "time", made)
    monkeypatch.setattr(module, "select", made)
    return made


def test_call_past_its_deadline_is_announced_until_it_returns(process: Process) -> None:
    with process.calls.during("nvmlInit"):
        process.wait(DEADLINE + 1)

    assert process.announced == [None, None, None, "nvmlInit", "nvmlInit", None]
    assert process.returns == 1


def test_call_within_its_deadline_is_not_announced(process: Process) -> None:
    with process.calls.during("nvmlInit"):
        process.wait(0.7 * DEADLINE)

    assert set(process.announced) == {None}
    assert process.returns == 0


def test_call_is_announced_when_it_is_due(process: Process) -> None:
    process.calls.readable(STDIN)
    process.now += 0.4
    with process.calls.during("nvmlInit"):
        begun = process.now
        while process.announced[-1] is None:
            process.calls.readable(STDIN)

    assert process.now - begun == pytest.approx(DEADLINE)


def test_wait_allowed_by_arguments_is_not_a_hang(process: Process) -> None:
    with process.calls.during("nvmlEventSetWait", wait=3600.0):
        process.wait(3600)

    assert set(process.announced) == {None}


def test_no_call_in_flight_is_never_due(process: Process) -> None:
    process.wait(10 * DEADLINE)

    assert set(process.announced) == {None}


def test_call_that_raises_is_over(process: Process) -> None:
    with pytest.raises(ZeroDivisionError), process.calls.during("nvmlInit"):
        _ = 1 / 0
    process.wait(2 * DEADLINE)

    assert set(process.announced) == {None}


def stopped_in_a_wait(process: Process) -> None:
    process.stopped = 3600.0
    process.calls.readable(STDIN)
    process.stopped = 0.0


def stopped_with_input(process: Process) -> None:
    process.input = True
    stopped_in_a_wait(process)
    process.input = False


def stopped_between_waits(process: Process) -> None:
    process.calls.readable(STDIN)
    process.now += 3600.0


@pytest.mark.parametrize("stopped", [stopped_in_a_wait, stopped_with_input, stopped_between_waits])
def test_call_of_a_process_that_was_stopped_has_its_time_again(
    process: Process, stopped: Callable[[Process], None]
) -> None:
    with process.calls.during("cuEventSynchronize"):
        stopped(process)
        process.wait(0.7 * DEADLINE)
        returned_in_time = set(process.announced)
        process.wait(0.4 * DEADLINE)

    assert returned_in_time == {None}
    assert process.announced[-2:] == ["cuEventSynchronize", None], "a call that hangs is still announced"


def test_stop_within_one_wait_leaves_most_of_the_time(process: Process) -> None:
    with process.calls.during("cuEventSynchronize"):
        process.wait(DEADLINE)

    assert max(process.waits) <= DEADLINE / 4


def test_call_that_hangs_on_a_machine_that_is_always_late_is_announced(process: Process) -> None:
    process.stopped = 3.0
    with process.calls.during("nvmlInit"):
        process.wait(6 * DEADLINE)
        assert process.announced[-1] == "nvmlInit"

    assert process.returns == 1


def test_stop_does_not_withdraw_an_announcement(process: Process) -> None:
    with process.calls.during("nvmlInit"):
        process.wait(DEADLINE + 1)
        stopped_in_a_wait(process)
        assert process.announced[-1] == "nvmlInit"


def test_time_without_a_cpu_does_not_count(process: Process) -> None:
    """A cgroup's limit stops its threads for up to 99 ms of each 100: too short to be seen at a wait's end."""
    process.throttled = 0.99
    with process.calls.during("cuDevicePrimaryCtxRetain"):
        process.wait(20 * DEADLINE)

    assert set(process.announced) == {None}


def test_call_that_hangs_on_a_machine_short_of_cpus_is_announced(process: Process) -> None:
    """It waits in the driver, not for a CPU."""
    process.throttled = 0.99
    with process.calls.during("cuEventSynchronize"):
        process.wait(0.5 * DEADLINE)
        process.throttled = 0.0
        process.wait(DEADLINE)
        assert process.announced[-1] == "cuEventSynchronize"
        process.throttled = 0.99
        process.wait(DEADLINE)
        assert process.announced[-1] == "cuEventSynchronize", "it has not returned"


def test_waits_before_a_failed_read_are_not_credited(process: Process) -> None:
    """The kernel counts them since the thread's start: they could excuse a hang for as long."""
    process.waited = None
    with process.calls.during("cuEventSynchronize"):
        process.wait(0.5 * DEADLINE)
        process.waited = 1000.0
        process.wait(DEADLINE)
        assert process.announced[-1] == "cuEventSynchronize"


def test_call_is_announced_while_stdin_is_always_readable(process: Process) -> None:
    process.input, process.stopped = True, 0.1
    with process.calls.during("nvmlEventSetWait"):
        process.wait(1.1 * DEADLINE)
        assert process.announced[-1] == "nvmlEventSetWait"
    assert len(process.announced) < 8


def test_kernel_counts_the_time_without_a_cpu() -> None:
    """Two threads of one CPU: each waits for the other for about half of the time."""
    cpus = os.sched_getaffinity(0)
    waits: list[float] = []

    def spin() -> None:
        os.sched_setaffinity(0, {min(cpus)})
        began, mine = time.monotonic(), threading.get_native_id()
        while (cpu_waits(mine) or 0.0) < 0.02 and time.monotonic() - began < 60:
            hashlib.sha256(bytes(1 << 20))  # without the interpreter's lock, for which a thread would sleep
        waits.append(cpu_waits(mine) or 0.0)

    threads = [threading.Thread(target=spin) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert max(waits) >= 0.02
    assert cpu_waits(0) is None
