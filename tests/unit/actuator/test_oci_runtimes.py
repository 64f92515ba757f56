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
    assert oci_runtimes.find(runtime, named=()) == (first, usual)


def test_directory_of_any_name_is_searched(runtime: Path) -> None:
    path = program(runtime, os.fsdecode(b"opt/\xff/runc"))
    assert oci_runtimes.find(runtime, named=()) == (path,)


def test_runtimes_of_crios_own_packages_are_found(runtime: Path) -> None:
    both = program(runtime, "usr/libexec/crio/runc"), program(runtime, "usr/libexec/crio/crun")
    assert oci_runtimes.find(runtime, named=()) == both


def test_unreadable_runtime_has_no_programs(tmp_path: Path) -> None:
    assert oci_runtimes.find(tmp_path / "gone", named=()) == ()


def test_named_program_comes_first_and_its_usual_ones_still_count(runtime: Path) -> None:
    named, usual = program(runtime, "opt/nvidia/toolkit"), program(runtime, "usr/sbin/runc")
    assert oci_runtimes.find(runtime, named=["/opt/nvidia/toolkit", "/opt/gone/crun"]) == (named, usual)


def test_named_program_without_a_directory_is_looked_up(runtime: Path) -> None:
    found = program(runtime, "opt/bin/youki")
    program(runtime, "opt/else/youki")
    assert oci_runtimes.find(runtime, named=["youki"]) == (found,)
    assert oci_runtimes.find(runtime, named=[]) == ()


def test_absolute_links_lead_within_the_runtimes_own_root(runtime: Path) -> None:
    file = program(runtime, "store/5/bin/crun")
    (runtime / "root" / "store" / "current").symlink_to("/store/5")
    (runtime / "root" / "opt").mkdir()
    (runtime / "root" / "opt" / "bin").symlink_to("../../store/current/bin")
    assert oci_runtimes.find(runtime, named=[]) == (file,)
    assert oci_runtimes.find(runtime, named=["/store/current/bin/crun"]) == (file,)


def test_links_in_a_circle_and_directories_are_no_programs(runtime: Path) -> None:
    (runtime / "root" / "opt" / "bin" / "runc").mkdir(parents=True)
    (runtime / "root" / "opt" / "crun").symlink_to("/opt/crun")
    assert oci_runtimes.find(runtime, named=["/opt/crun", "/opt/bin/runc"]) == ()


def test_programs_named_later_replace_those_named_before(runtime: Path) -> None:
    first, second = program(runtime, "opt/1/crun"), program(runtime, "opt/2/crun")
    found = oci_runtimes.OciRuntimes(["/opt/1/crun"])
    assert found.programs(runtime) == (first,)
    found.named = ("/opt/2/crun",)
    assert found.programs(runtime) == (second,)
