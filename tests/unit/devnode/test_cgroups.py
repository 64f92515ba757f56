"""Which cgroups a dev node's pods are in, for both of kubelet's drivers."""

from pathlib import Path

import pytest

from hack.devnode import cgroups
from hack.devnode.packages import PackagesError

KUBEPODS = "/kubemend-dev-node-1/kubepods"
DRIVER = "KUBEMEND_DEV_CGROUP_DRIVER"


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(DRIVER, "systemd")
    monkeypatch.setattr(cgroups, "_SYSTEMD_RUNS", tmp_path)
    (tmp_path / "cgroup.controllers").touch()
    monkeypatch.setattr(cgroups, "_MOUNTED_AT", tmp_path)


def test_cgroup_keeps_its_name_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(DRIVER, raising=False)
    assert cgroups.driver() == "cgroupfs"
    assert cgroups.parent(KUBEPODS) == cgroups.path(KUBEPODS) == KUBEPODS


def test_systemd_has_a_slice_for_each_cgroup_inside_those_of_its_parents(systemd: None) -> None:
    """The names are kubelet's: a dash separates a slice from its parent."""
    assert cgroups.parent(KUBEPODS) == "kubemend_dev_node_1-kubepods.slice"
    assert cgroups.path(KUBEPODS) == "/kubemend_dev_node_1.slice/kubemend_dev_node_1-kubepods.slice"


@pytest.mark.parametrize(
    ("driver", "missing", "message"),
    [
        ("cgroups", "", "set KUBEMEND_DEV_CGROUP_DRIVER to"),
        ("systemd", "systemd", "use python -m hack.vm"),
        ("systemd", "cgroup.controllers", "use python -m hack.vm"),
    ],
)
def test_driver_that_the_machine_does_not_have_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, driver: str, missing: str, message: str
) -> None:
    monkeypatch.setenv(DRIVER, driver)
    monkeypatch.setattr(cgroups, "_SYSTEMD_RUNS", tmp_path / "systemd")
    monkeypatch.setattr(cgroups, "_MOUNTED_AT", tmp_path)
    for name in {"systemd", "cgroup.controllers"} - {missing}:
        (tmp_path / name).touch()
    with pytest.raises(PackagesError, match=message) as refused:
        cgroups.driver()
    assert "\n" not in str(refused.value)
