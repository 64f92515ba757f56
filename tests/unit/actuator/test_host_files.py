"""A successor's termination-message file is made in kubelet's own directory; nothing that exists is changed."""

from pathlib import Path, PurePosixPath

import pytest

from kubemend.agent.actuator.host_files import HostFiles
from kubemend.agent.restart.host_files import TerminationLog

FILES = HostFiles(symlink_dir=None)


@pytest.fixture
def wanted(tmp_path: Path) -> TerminationLog:
    directory = tmp_path / "pods" / "uid" / "containers" / "trainer"
    directory.mkdir(parents=True)
    return TerminationLog(PurePosixPath(directory), "made")


def test_file_is_made_once_and_keeps_what_is_written_to_it(wanted: TerminationLog) -> None:
    made = Path(wanted.path)
    assert FILES.make_termination_log(wanted)
    assert made.stat().st_mode & 0o777 == 0o666
    made.write_text("last words")
    assert FILES.make_termination_log(wanted), "an earlier attempt has made it"
    assert made.read_text() == "last words"


@pytest.mark.parametrize("place", ["made", ".", "..", "../.."], ids=["file", "container", "containers", "pod"])
def test_link_is_not_followed(wanted: TerminationLog, tmp_path: Path, place: str) -> None:
    link, elsewhere = (Path(wanted.directory) / place).resolve(), tmp_path / "elsewhere"
    if link.exists():
        link.rename(elsewhere)
    else:
        elsewhere.write_text("of the node")
    link.symlink_to(elsewhere)
    before = {path: path.stat().st_mtime_ns for path in (elsewhere, *elsewhere.rglob("*"))}
    assert not FILES.make_termination_log(wanted)
    assert {path: path.stat().st_mtime_ns for path in (elsewhere, *elsewhere.rglob("*"))} == before
