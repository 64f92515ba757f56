"""What the kernel refuses at a restart ends no container that can go on, and never leaves two programs."""

import time
from types import SimpleNamespace

import pytest

from launcher import kubemend_run
from launcher.kubemend_run import Launcher, Order, Policy

UNKILLABLE = "[Errno 1] Operation not permitted"


def ordered(*, grace: float, status: int | None) -> Launcher:
    """Return a launcher that has an order, with its release, for a program that has this status when it is stopped."""
    launcher = object.__new__(Launcher)
    launcher.__dict__.update(
        _options=SimpleNamespace(spare_after=3600.0),
        _order=(order := Order("order-1", 1, grace, 30.0, "Xid79")),
        _order_name=order.name,
        _began=time.monotonic(),
        _policy=Policy(limit=3),
        _pid=0,
        _status=None,
        _control=None,
        _has_terminal=False,
        _stopping=0,
        _error="",
        _phase=kubemend_run.STOPPING,
        _released=True,
        _discarded=False,
        _reap=lambda: 0,
        _judge_spare=lambda *_, **__: None,
        _terminate=lambda _: launcher.__dict__.update(_status=status),
        _clear=lambda: None,
        _start_again=lambda _: True,
    )
    return launcher


def refused(*_: object) -> None:
    raise PermissionError(1, "Operation not permitted")


@pytest.mark.parametrize(("grace", "status", "ends_with"), [(0.0, 9, 9), (5.0, 0, 9), (5.0, 15, 9)])
@pytest.mark.parametrize("refuses", ["_clear", "_start_again"])
def test_order_whose_processes_cannot_be_killed_ends_the_container_as_killed(
    refuses: str, grace: float, status: int, ends_with: int, capfd: pytest.CaptureFixture[str]
) -> None:
    """Those of a failed spare, too. With the 0 of a program that SIGTERM has ended, its Job would be complete."""
    launcher = ordered(grace=grace, status=status)
    launcher.__dict__[refuses] = refused
    assert launcher._order is not None
    assert launcher._obey(launcher._order) == ends_with
    assert vars(launcher).items() >= {"_order": None, "_error": UNKILLABLE}.items()
    assert "cannot kill what the program has started" in capfd.readouterr().err


def test_program_that_runs_on_after_such_an_order_is_not_ended() -> None:
    launcher = ordered(grace=0.0, status=None)
    launcher.__dict__["_clear"] = refused
    assert launcher._order is not None
    assert launcher._obey(launcher._order) is None
    assert launcher._phase == kubemend_run.RUNNING
