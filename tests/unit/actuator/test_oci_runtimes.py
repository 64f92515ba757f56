"""The OCI runtimes that a container runtime executes."""

import os
from pathlib import Path

import pytest

from kubemend.agent.actuator.hold import oci_runtimes


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    (tmp_path / "environ").write_bytes(b"HOME=/\0PATH=/opt/bin:/opt/\xff:relative:/usr/sbin\0X=PATH=/other")
    return tmp_path


def program(runtime: Path, place: str) -> Path:
    path = runtime / "root" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    return path


def test_programs_of_search_path_and_usual_directories_are_found_once(runtime: Path) -> None:
    first, usual = program(runtime, "opt/bin/runc"), program(runtime, "bin/crun")
    again = runtime / "root" / "usr" / "sbin" / "runc"
    again.parent.mkdir(parents=True)
    again.hardlink_to(first)
    program(runtime, "opt/bin/bash")
    program(runtime, "relative/runc")
    assert oci_runtimes.programs(runtime) == (first, usual)


def test_directory_of_any_name_is_searched(runtime: Path) -> None:
    path = program(runtime, os.fsdecode(b"opt/\xff/runc"))
    assert oci_runtimes.programs(runtime) == (path,)


def test_runtimes_of_crios_own_packages_are_found(runtime: Path) -> None:
    both = program(runtime, "usr/libexec/crio/runc"), program(runtime, "usr/libexec/crio/crun")
    assert oci_runtimes.programs(runtime) == both


def test_unreadable_runtime_has_no_programs(tmp_path: Path) -> None:
    assert oci_runtimes.programs(tmp_path / "gone") == ()
