"""Reading the kernel's files about processes whose names are any bytes."""

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.common import kernel_files
from kubemend.common.kernel_files import UnreadableError

ROOT = Path(kernel_files.__file__).parents[1]
NOT_OF_PODS = {
    "agent/actuator/hold/cgroups.py": "cgroup.events: the kernel's words and numbers",
    "agent/app/persisted_state.py": "the boot's id",
    "agent/clients/cri/discovery.py": "kubelet's configuration",
    "agent/doctor/kernel.py": "a number",
    "agent/health/catalog/catalog_file.py": "the package's own file, and the operator's",
    "agent/sources/pci_tree.py": "a number",
    "common/kernel_files.py": "this module",
    "common/kube/config.py": "kubeconfig files",
    "common/settings.py": "settings",
}
"""The modules that read text in another way, and what they read: nothing that a pod can write."""


def test_any_bytes_are_read_and_can_be_written_as_utf_8(tmp_path: Path) -> None:
    (tmp_path / "comm").write_bytes(b"\xe6\xa8\xa1\xe5\n\r\x0b\xff")
    said = kernel_files.read(tmp_path / "comm")
    assert said == "\u6a21\\xe5\n\r\x0b\\xff"
    assert json.loads(json.dumps(said, ensure_ascii=False).encode()) == said


@given(st.binary())
def test_no_bytes_fail(found: bytes) -> None:
    kernel_files.text(found).encode()


def test_missing_file_is_distinguished_from_an_unreadable_one(tmp_path: Path) -> None:
    assert kernel_files.read(tmp_path / "none") is None
    with pytest.raises(OSError, match="directory"):
        kernel_files.read(tmp_path)


def test_file_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "endless").write_bytes(b"x" * 101)
    assert kernel_files.read_bytes(tmp_path / "endless", limit=101) == b"x" * 101
    with pytest.raises(UnreadableError, match="more than 100 bytes"):
        kernel_files.read_bytes(tmp_path / "endless", limit=100)
    with pytest.raises(UnreadableError):
        kernel_files.read("/dev/zero")


def test_relative_name_begins_at_the_directory(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("1")
    opened = os.open(tmp_path, os.O_PATH)
    try:
        assert kernel_files.read("stat", directory=opened) == "1"
    finally:
        os.close(opened)


@pytest.mark.parametrize("mark", ["\r", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029"])
def test_a_line_ends_where_the_kernel_ends_it_and_nowhere_else(mark: str) -> None:
    assert kernel_files.lines(f"0::/a{mark}0::/b\n1:x:/c\n") == [f"0::/a{mark}0::/b", "1:x:/c"]


def test_nothing_has_no_lines() -> None:
    assert kernel_files.lines("") == []


@given(st.binary(max_size=15))
def test_stat_is_parsed_with_any_process_name(name: bytes) -> None:
    stat = kernel_files.parse_stat(kernel_files.text(b"7 (" + name + b") D 1 2 3\n"))
    assert (stat.name, stat.state, stat.rest) == (kernel_files.text(name), "D", ("1", "2", "3"))


@given(st.binary())
def test_invalid_stat_is_unreadable(found: bytes) -> None:
    try:
        stat = kernel_files.parse_stat(kernel_files.text(found))
    except UnreadableError:
        return
    assert stat.state


def test_no_other_module_reads_text_that_a_pod_can_write() -> None:
    ways = re.compile(r"\.(?:read_text|splitlines)\b")
    found = {
        name
        for package in ("agent", "common", "controller")
        for path in (ROOT / package).rglob("*.py")
        if (name := str(path.relative_to(ROOT))).split("/")[1] != "cli" and ways.search(path.read_text())
    }
    assert found == NOT_OF_PODS.keys()
