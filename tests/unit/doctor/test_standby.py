"""Whether a successor can be held, by the agent's own check, on a runtime whose process is visible."""

import errno
import os
from pathlib import Path

import pytest

from kubemend.agent.actuator.hold import exec_hold, rootfs_mount_watch
from kubemend.agent.actuator.hold.exec_hold import HoldError
from kubemend.agent.doctor import kernel
from kubemend.agent.doctor.checks import Result
from kubemend.agent.settings import Settings
from tests.fakes.cri_server import CriServer


@pytest.fixture
def settings(runtime: CriServer, tmp_path: Path) -> Settings:
    """A node with a version 2 hierarchy of cgroups, whose runtime is this process."""
    (tmp_path / "fs" / "cgroup" / "unified").mkdir(parents=True)
    (tmp_path / "fs" / "cgroup" / "unified" / "cgroup.controllers").touch()
    return Settings(cri_endpoint=str(tmp_path / "cri.sock"), sysfs=tmp_path)


async def test_node_with_standby_is_ok(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    allow_fanotify(monkeypatch)

    (check,) = await kernel.standby(settings)

    assert check.result is Result.OK


async def test_missing_cgroup_v2_is_a_warning_with_hint(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_fanotify(monkeypatch)
    (tmp_path / "fs" / "cgroup" / "unified" / "cgroup.controllers").unlink()

    (check,) = await kernel.standby(settings)

    assert check.result is Result.WARN
    assert "no cgroup version 2 hierarchy" in check.what
    assert "not restarted" in check.what
    assert "mount one" in check.hint


async def test_roots_without_overlay_are_a_warning_with_hint(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    allow_fanotify(monkeypatch)
    monkeypatch.setattr(rootfs_mount_watch.RootfsMountWatcher, "kinds", lambda _: frozenset({"ext4"}))

    (check,) = await kernel.standby(settings)

    assert check.result is Result.WARN
    assert "roots are ext4, not overlays" in check.what
    assert "snapshotter" in check.hint


async def test_old_kernel_is_a_warning_with_hint(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_there(_: int) -> int:
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))

    allow_fanotify(monkeypatch)
    monkeypatch.setattr(os, "pidfd_open", not_there)

    (check,) = await kernel.standby(settings)

    assert check.result is Result.WARN
    assert "pidfd_open" in check.what
    assert check.hint == "the agent needs Linux 5.3"


async def test_missing_capability_is_a_warning_with_hint(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> int:
        raise HoldError("fanotify is not to be had: Operation not permitted; the agent needs CAP_SYS_ADMIN")

    monkeypatch.setattr(exec_hold, "_new_group", refuse)

    (check,) = await kernel.standby(settings)

    assert check.result is Result.WARN
    assert check.hint == "the agent needs CAP_SYS_ADMIN"


async def test_missing_runtime_gives_unknown(tmp_path: Path) -> None:
    (check,) = await kernel.standby(Settings(cri_endpoint=str(tmp_path / "none.sock")))

    assert check.result is Result.UNKNOWN
    assert check.hint == "see container-runtime"


def allow_fanotify(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the tests, run as root or not, a group: any descriptor that can be closed."""
    monkeypatch.setattr(exec_hold, "_new_group", lambda: os.open("/dev/null", os.O_RDONLY))
