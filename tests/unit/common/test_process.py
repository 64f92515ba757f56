"""The settings of a long-running process that its threads and children inherit."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from structlog.testing import capture_logs

from kubemend.common import process


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can raise a priority")
def test_raised_priority_is_ahead_of_others_and_ends_with_its_context() -> None:
    before, turn = os.getpriority(os.PRIO_PROCESS, 0), sys.getswitchinterval()
    with process.raised_priority():
        assert os.getpriority(os.PRIO_PROCESS, 0) == -10
        assert sys.getswitchinterval() < turn
    assert (os.getpriority(os.PRIO_PROCESS, 0), sys.getswitchinterval()) == (before, turn)


def in_a_thread(work: Callable[[], int]) -> int:
    with ThreadPoolExecutor(1, thread_name_prefix="hasty") as threads:
        return threads.submit(work).result()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a thread real-time")
def test_a_thread_that_wakes_first_is_real_time_and_what_it_starts_is_not() -> None:
    def policy_of_a_child() -> int:
        process.wake_first()
        assert os.sched_getscheduler(threading.get_native_id()) & ~os.SCHED_RESET_ON_FORK == os.SCHED_FIFO
        return in_a_thread(lambda: os.sched_getscheduler(threading.get_native_id()))

    assert in_a_thread(policy_of_a_child) == os.SCHED_OTHER
    assert os.sched_getscheduler(0) == os.SCHED_OTHER


def test_a_thread_that_may_not_wake_first_works_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "sched_setscheduler", refuse)
    with capture_logs() as logs:
        process.wake_first()
    (line,) = logs
    assert line["event"] == "process.real_time_unavailable"
