"""Whether a successor can be held: by the agent's own check, on a runtime whose process can be seen."""

import errno
import os
from pathlib import Path

import pytest

from agent.actuator import exec_hold, roots
from agent.actuator.exec_hold import HoldError
from agent.doctor import standby
from agent.doctor.checks import Result
from agent.settings import Settings
from tests.fakes.cri_server import CriServer


@pytest.fixture
def settings(runtime: CriServer, tmp_path: Path) -> Settings:
    """A node with a version 2 hierarchy of cgroups, whose runtime is this process."""
    (tmp_path / "fs" / "cgroup" / "unified").mkdir(parents=True)
    (tmp_path / "fs" / "cgroup" / "unified" / "cgroup.controllers").touch()
    return Settings(cri_endpoint=str(tmp_path / "cri.sock"), sysfs=tmp_path)


async def test_a_node_that_can_hold_is_well(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    allow_fanotify(monkeypatch)

    (check,) = await standby.available(settings)

    assert check.result is Result.OK


async def test_without_cgroups_of_version_2_it_is_a_warning_with_a_mend(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_fanotify(monkeypatch)
    (tmp_path / "fs" / "cgroup" / "unified" / "cgroup.controllers").unlink()

    (check,) = await standby.available(settings)

    assert check.result is Result.WARN
    assert "no cgroup version 2 hierarchy" in check.what
    assert "not restarted" in check.what
    assert "mount one" in check.mend


async def test_where_containers_roots_are_no_overlays_it_is_a_warning_with_a_mend(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_fanotify(monkeypatch)
    monkeypatch.setattr(roots.Roots, "kinds", lambda _: frozenset({"ext4"}))

    (check,) = await standby.available(settings)

    assert check.result is Result.WARN
    assert "roots are ext4, not overlays" in check.what
    assert "snapshotter" in check.mend


async def test_a_kernel_that_is_too_old_is_a_warning_with_a_mend(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def not_there(_: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    allow_fanotify(monkeypatch)
    monkeypatch.setattr(os, "pidfd_open", not_there)

    (check,) = await standby.available(settings)

    assert check.result is Result.WARN
    assert "pidfd_open" in check.what
    assert check.mend == "the agent needs Linux 5.3"


async def test_without_the_right_it_is_a_warning_with_a_mend(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse() -> int:
        raise HoldError("fanotify is not to be had: Operation not permitted; the agent needs CAP_SYS_ADMIN")

    monkeypatch.setattr(exec_hold, "_new_group", refuse)

    (check,) = await standby.available(settings)

    assert check.result is Result.WARN
    assert check.mend == "the agent needs CAP_SYS_ADMIN"


async def test_without_a_runtime_it_cannot_be_told(tmp_path: Path) -> None:
    (check,) = await standby.available(Settings(cri_endpoint=str(tmp_path / "none.sock")))

    assert check.result is Result.UNKNOWN
    assert check.mend == "see container-runtime"


def allow_fanotify(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let whoever runs the tests, root or not, have a group: any descriptor is one that can be closed."""
    monkeypatch.setattr(exec_hold, "_new_group", lambda: os.open("/dev/null", os.O_RDONLY))
