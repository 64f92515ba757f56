"""Which OCI runtimes a container runtime executes."""

import os
from pathlib import Path

import pytest

from agent.actuator import oci_runtimes


@pytest.fixture
def runtime(tmp_path: Path) -> Path:
    (tmp_path / "environ").write_bytes(b"HOME=/\0PATH=/opt/bin:/opt/\xff:relative:/usr/sbin\0X=PATH=/other")
    return tmp_path


def program(runtime: Path, place: str) -> Path:
    path = runtime / "root" / place
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    return path


def test_those_in_the_search_path_and_in_the_usual_places_are_found_once(runtime: Path) -> None:
    first, usual = program(runtime, "opt/bin/runc"), program(runtime, "bin/crun")
    again = runtime / "root" / "usr" / "sbin" / "runc"
    again.parent.mkdir(parents=True)
    again.hardlink_to(first)
    program(runtime, "opt/bin/bash")
    program(runtime, "relative/runc")
    assert oci_runtimes.programs(runtime) == (first, usual)


def test_a_directory_of_any_name_is_looked_into(runtime: Path) -> None:
    path = program(runtime, os.fsdecode(b"opt/\xff/runc"))
    assert oci_runtimes.programs(runtime) == (path,)


def test_a_runtime_that_cannot_be_looked_at_has_none(tmp_path: Path) -> None:
    assert oci_runtimes.programs(tmp_path / "gone") == ()
