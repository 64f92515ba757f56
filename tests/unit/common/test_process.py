"""The settings of a long-running process that its threads and children inherit."""

import os
import sys

import pytest

from kubemend.common import process


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can raise a priority")
def test_raised_priority_is_ahead_of_others_and_ends_with_its_context() -> None:
    before, turn = os.getpriority(os.PRIO_PROCESS, 0), sys.getswitchinterval()
    with process.raised_priority():
        assert os.getpriority(os.PRIO_PROCESS, 0) == -10
        assert sys.getswitchinterval() < turn
    assert (os.getpriority(os.PRIO_PROCESS, 0), sys.getswitchinterval()) == (before, turn)
