"""Control groups of both versions, as files in a directory."""

import errno
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from kubemend.common import cgroupfs, kernel_files

GROUP = "kubepods/pod1/c1"


def group(root: Path, hierarchy: str = "", *, path: str = GROUP, pids: str = "", **files: str) -> Path:
    directory = root / hierarchy / path
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "cgroup.procs").write_text(pids)
    for name, text in files.items():
        (directory / name.replace("_", ".", 1)).write_text(text)
    return directory


def test_a_group_is_found_in_every_hierarchy_that_has_it(tmp_path: Path) -> None:
    made = {group(tmp_path, hierarchy) for hierarchy in ("unified", "freezer", "pids")}
    assert set(cgroupfs.directories(f"/{GROUP}", mounted_at=tmp_path)) == made


def test_a_group_of_version_2_is_at_the_root(tmp_path: Path) -> None:
    assert cgroupfs.directories(f"/{GROUP}", mounted_at=tmp_path / "none") == ()
    made = group(tmp_path)
    assert cgroupfs.directories(f"/{GROUP}", mounted_at=tmp_path) == (made,)


def test_the_processes_of_groups_below_are_a_groups_own(tmp_path: Path) -> None:
    top = group(tmp_path, pids="1\n2\n")
    group(tmp_path, path=f"{GROUP}/init.scope", pids="3\n")
    assert cgroupfs.pids([top]) == {1, 2, 3}


def test_groups_may_be_nested_as_deep_as_their_container_likes(tmp_path: Path) -> None:
    nested = [tmp_path]
    for _ in range(sys.getrecursionlimit() + 1):
        nested.append(nested[-1] / "a")
        nested[-1].mkdir()
    procs = nested[-1] / "cgroup.procs"
    procs.write_text("7\n")

    found = cgroupfs.pids([tmp_path])

    procs.unlink()
    for each in reversed(nested[1:]):  # pytest would remove them by recursion
        each.rmdir()
    assert found == {7}


def test_processes_of_a_threaded_group_are_those_of_the_group_above(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    top = group(tmp_path, pids="1\n")
    below = group(tmp_path, path=f"{GROUP}/threads") / "cgroup.procs"
    read = kernel_files.read

    def as_the_kernel(file: Path, *, limit: int) -> str | None:
        if file == below:
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        return read(file, limit=limit)

    monkeypatch.setattr(kernel_files, "read", as_the_kernel)

    assert cgroupfs.pids([top]) == {1}
    with pytest.raises(OSError, match="not supported"):  # none above it was asked
        cgroupfs.pids([below.parent])


def test_removed_group_has_no_processes(tmp_path: Path) -> None:
    assert cgroupfs.pids([tmp_path / "gone"]) == frozenset()


def version_1(root: Path, text: str) -> Path:
    return group(root, "freezer", freezer_state=text)


def version_2(root: Path, text: str) -> Path:
    return group(root, cgroup_events=text)


@pytest.mark.parametrize(
    ("make", "text", "frozen"),
    [
        (version_1, "THAWED\n", False),
        (version_1, "FROZEN\n", True),
        (version_1, "FREEZING\n", True),
        (version_2, "populated 1\nfrozen 0\n", False),
        (version_2, "populated 1\nfrozen 1\n", True),
    ],
)
def test_frozen(tmp_path: Path, make: Callable[[Path, str], Path], text: str, *, frozen: bool) -> None:
    assert cgroupfs.frozen([make(tmp_path, text)]) is frozen


def test_frozen_in_one_hierarchy_is_frozen(tmp_path: Path) -> None:
    groups = [version_1(tmp_path, "THAWED\n"), version_2(tmp_path, "populated 1\nfrozen 1\n")]
    assert cgroupfs.frozen(groups) is True


def test_group_without_a_freezer_is_unknown(tmp_path: Path) -> None:
    assert cgroupfs.frozen([group(tmp_path, cgroup_events="populated 1\n")]) is None
    assert cgroupfs.frozen([]) is None
