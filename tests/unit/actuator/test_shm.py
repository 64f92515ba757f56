"""Emptying a pod's /dev/shm: all unused files, and nothing else."""

import contextlib
import ctypes
import errno
import os
import socket
import tempfile
import time
import tracemalloc
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.actuator import shm as emptying
from kubemend.agent.actuator.shm import Emptied, NotEmptiedError
from kubemend.agent.restart.shm import Place
from tests.fakes.proc_tree import ProcTree, container_id

SIDECAR, PID, RUNTIME = container_id(1), 100, 50


@dataclass
class Node:
    """A node whose runtime has the machine's own root; a pod whose sidecar runs."""

    tree: ProcTree
    directory: Path

    def empty(self, *, seconds: float = 60.0, cgroup: str = "/kubepods/pod1") -> Emptied:
        return emptying.empty(
            Place(directory=str(self.directory), cgroup=cgroup),
            runtime=self.tree.proc / str(RUNTIME),
            cgroup_root=self.tree.cgroups,
            until=time.monotonic() + seconds,
        )

    def left(self) -> set[str]:
        return {str(path.relative_to(self.directory)) for path in self.directory.rglob("*")}


@pytest.fixture
def node(tmp_path: Path) -> Node:
    tree = ProcTree(tmp_path)
    tree.run(SIDECAR, pid=PID)
    (tree.proc / str(RUNTIME)).mkdir()
    (tree.proc / str(RUNTIME) / "root").symlink_to("/")
    (tmp_path / "shm").mkdir()
    (tree.group(SIDECAR).parent / "cgroup.procs").touch()
    return Node(tree, tmp_path / "shm")


def test_empty_removes_everything_but_the_directory(node: Node) -> None:
    (node.directory / "nccl-1").write_bytes(b"x" * 4096)
    (node.directory / "a" / "b").mkdir(parents=True)
    (node.directory / "a" / "b" / "sem.x").touch()
    (node.directory / "dangling").symlink_to("nowhere")
    os.mkfifo(node.directory / "fifo")
    emptied = node.empty()
    assert node.left() == set()
    assert (emptied.removed, emptied.bytes, emptied.left, emptied.cut_short) == (4, 4096, {}, "")
    assert str(emptied) == "4 files removed (0.0 MiB)"


def test_thousands_of_files_are_removed(node: Node) -> None:
    for number in range(5000):
        (node.directory / f"torch_{number}").touch()
    assert node.empty().removed == 5000
    assert node.left() == set()


def test_links_are_not_followed(node: Node, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").touch()
    (node.directory / "directory").symlink_to(outside)
    (node.directory / "file").symlink_to(outside / "precious")
    assert node.empty().removed == 2
    assert (outside / "precious").exists()


def test_open_or_mapped_file_stays_and_is_reported(node: Node) -> None:
    for name in ("open", "mapped", "stale"):
        (node.directory / "queues").mkdir(exist_ok=True)
        (node.directory / "queues" / name).write_text(name)
    node.tree.opens(PID, node.directory / "queues" / "open")
    node.tree.maps(PID, node.directory / "queues" / "mapped")
    emptied = node.empty()
    assert node.left() == {"queues", "queues/open", "queues/mapped"}
    assert emptied.left == {"queues/open": "is in use", "queues/mapped": "is in use"}
    assert str(emptied).startswith("1 files removed")
    assert "2 left (" in str(emptied)


SEPARATORS = ["\x0b", "\x0c", "\r", "\x1c", "\x85", "\u2028"]


@pytest.mark.parametrize("mark", SEPARATORS)
def test_mapped_file_of_any_name_stays(node: Node, mark: str) -> None:
    name = f"queue{mark}rw-s 0 0"
    (node.directory / name).touch()
    (node.directory / "stale").touch()
    node.tree.maps(PID, node.directory / name)
    assert node.empty().left == {name: "is in use"}
    assert node.left() == {name}


@pytest.mark.parametrize("mark", SEPARATORS)
def test_socket_of_any_name_stays(node: Node, mark: str) -> None:
    name = f"s{mark}/1".replace("/", "-")
    with socket.socket(socket.AF_UNIX) as bound, _shorter(node.directory) as directory:
        bound.bind(f"{directory}/{name}")
    node.tree.binds(PID, f"/dev/shm/{name}")
    assert node.empty().left == {name: "is in use"}


def test_memory_use_does_not_depend_on_the_number_of_mappings(node: Node) -> None:
    (node.directory / "mapped").touch()
    node.tree.maps(PID, node.directory / "mapped")
    maps = node.tree.proc / str(PID) / "maps"
    with maps.open("a") as file:
        for number in range(60_000):
            file.write(f"7f0000001000-7f0000002000 rw-s 00000000 ff:ff {number} /dev/shm/{'x' * 200}\n")
    tracemalloc.start()
    try:
        assert node.empty().left == {"mapped": "is in use"}
        assert tracemalloc.get_traced_memory()[1] < 2 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "maps", [b"7f0-7f1 rw-s\n", b"a b c d e\n", b"a b c d " + b"9" * 5000 + b"\n", b"x" * 100_000, b"\n"]
)
def test_malformed_maps_leave_everything(node: Node, maps: bytes) -> None:
    (node.directory / "old").touch()
    (node.tree.proc / str(PID) / "maps").write_bytes(maps)
    with pytest.raises(NotEmptiedError):
        node.empty()
    assert node.left() == {"old"}


@given(maps=st.binary(), unix=st.binary())
def test_any_maps_bytes_are_parsed_or_refused(maps: bytes, unix: bytes) -> None:
    with tempfile.TemporaryDirectory() as directory:
        process = Path(directory)
        (process / "net").mkdir()
        (process / "maps").write_bytes(maps)
        (process / "net" / "unix").write_bytes(unix)
        with contextlib.suppress(NotEmptiedError):
            list(emptying._mapped_files(process, device=1))
        list(emptying._bound_sockets(process))


def test_files_beyond_the_limit_stay(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(emptying, "_MOST_FILES", 10)
    for number in range(25):
        (node.directory / f"file{number}").touch()
    emptied = node.empty()
    assert (emptied.removed, len(node.left())) == (10, 15)
    assert str(emptied) == "10 files removed (0.0 MiB); there were more than 10"


def test_file_name_that_is_not_unicode_is_reported_readably(node: Node) -> None:
    name = os.fsdecode(b"queue\xff")
    (node.directory / name).touch()
    node.tree.opens(PID, node.directory / name)
    assert str(node.empty()).encode()


def test_process_in_a_nested_cgroup_counts_as_user(node: Node) -> None:
    (node.directory / "open").touch()
    below = node.tree.group(SIDECAR) / "own"
    below.mkdir()
    (node.tree.group(SIDECAR) / "cgroup.procs").write_text("")
    (below / "cgroup.procs").write_text(f"{PID}\n")
    node.tree.opens(PID, node.directory / "open")
    assert node.empty().left == {"open": "is in use"}


def test_listening_socket_stays_and_dead_one_is_removed(node: Node) -> None:
    for name in ("live.sock", "dead.sock"):
        with socket.socket(socket.AF_UNIX) as bound, _shorter(node.directory) as directory:
            bound.bind(f"{directory}/{name}")
    node.tree.binds(PID, "@abstract", "/dev/shm/live.sock")
    assert node.empty().left == {"live.sock": "is in use"}
    assert node.left() == {"live.sock"}


class _shorter:  # noqa: N801 - reads as a word
    """Return a short path to a directory: a socket's path has 108 bytes at most."""

    def __init__(self, directory: Path) -> None:
        self._fd = os.open(directory, os.O_PATH)

    def __enter__(self) -> str:
        return f"/proc/self/fd/{self._fd}"

    def __exit__(self, *_: object) -> None:
        os.close(self._fd)


def test_file_created_in_the_meantime_stays(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    (node.directory / "old").touch()
    users = emptying._users

    def while_a_file_is_made(*args: object, **kwargs: object) -> object:
        (node.directory / "new").touch()
        return users(*args, **kwargs)  # type: ignore[arg-type]

    monkeypatch.setattr(emptying, "_users", while_a_file_is_made)
    assert node.empty().left == {"new": "is new"}
    assert node.left() == {"new"}


def test_process_that_ends_in_the_meantime_uses_nothing(node: Node) -> None:
    (node.directory / "old").touch()
    (node.tree.group(SIDECAR) / "cgroup.procs").write_text(f"{PID}\n4711\n")
    assert node.empty().removed == 1


def test_unknown_pod_processes_leave_everything(node: Node) -> None:
    (node.directory / "old").touch()
    with pytest.raises(NotEmptiedError, match="is not visible"):
        node.empty(cgroup="/kubepods/pod2")
    assert node.left() == {"old"}


def test_unreadable_process_leaves_everything(node: Node) -> None:
    (node.directory / "old").touch()
    (node.tree.proc / str(PID) / "maps").unlink()
    (node.tree.proc / str(PID) / "maps").mkdir()  # EISDIR represents any error of the kernel
    with pytest.raises(NotEmptiedError):
        node.empty()
    assert node.left() == {"old"}


_NO_FUSE = (errno.ENOENT, errno.ENODEV, errno.ENXIO, errno.EPERM, errno.EACCES)
"""Errors of a machine without FUSE, or of a test run without the right to use it."""


@pytest.fixture
def on_dead_fuse(tmp_path: Path) -> Iterator[str]:
    """Return a path by which an open file on a FUSE file system is reached whose program is gone."""
    libc, at = ctypes.CDLL(None, use_errno=True), tmp_path / "fuse"
    at.mkdir()
    try:
        program = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        if error.errno not in _NO_FUSE:
            raise
        pytest.skip(f"no FUSE on this machine, or no right to it: {error}")
    options = f"fd={program},rootmode=40000,user_id=0,group_id=0"
    failed = libc.mount(b"test", os.fsencode(at), b"fuse", 0, options.encode())
    with contextlib.ExitStack() as opened:
        if failed:
            os.close(program)
            assert ctypes.get_errno() in _NO_FUSE, os.strerror(ctypes.get_errno())
            pytest.skip(f"no FUSE file system can be mounted here: {os.strerror(ctypes.get_errno())}")
        opened.callback(libc.umount2, os.fsencode(at), 2)  # MNT_DETACH
        file = os.open(at, os.O_PATH)
        opened.callback(os.close, file)
        os.close(program)
        yield f"/proc/self/fd/{file}"


def test_open_file_of_a_dead_fuse_program_hinders_nothing(node: Node, on_dead_fuse: str) -> None:
    (node.directory / "old").touch()
    (node.tree.proc / str(PID) / "fd" / "7").symlink_to(on_dead_fuse)
    node.empty()
    assert node.left() == set()


@pytest.fixture
def on_the_nodes_own() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        yield Path(directory)


def test_node_shm_is_never_touched_at_any_path(node: Node, on_the_nodes_own: Path) -> None:
    (on_the_nodes_own / "of-the-node").touch()
    node.directory = on_the_nodes_own
    with pytest.raises(NotEmptiedError, match="node's own /dev/shm"):
        node.empty()
    assert node.left() == {"of-the-node"}


def test_link_in_place_of_the_directory_is_not_followed(node: Node, tmp_path: Path) -> None:
    (node.directory / "old").touch()
    (tmp_path / "link").symlink_to(node.directory)
    link = Node(node.tree, tmp_path / "link")
    with pytest.raises(NotEmptiedError):
        link.empty()
    assert node.left() == {"old"}


def test_missing_directory_is_named(node: Node) -> None:
    node.directory /= "none"
    with pytest.raises(NotEmptiedError, match=r"No such file or directory: .*none"):
        node.empty()


def test_expired_time_stops_at_once(node: Node) -> None:
    (node.directory / "old").touch()
    emptied = node.empty(seconds=0.0)
    assert emptied.removed == 0
    assert str(emptied).endswith("it ran out of time")


def test_other_file_system_below_is_left(node: Node) -> None:
    (node.directory / "mounted").mkdir()
    removal = emptying._Removal(
        device=-1, there=emptying._InitialEntries(), users=emptying._Users(frozenset(), frozenset()), until=float("inf")
    )
    opened = os.open(node.directory, os.O_RDONLY)
    try:
        removal.directory(opened)
    finally:
        os.close(opened)
    assert removal.emptied.left == {"mounted": "is another file system"}
    assert node.left() == {"mounted"}


def test_endless_tree_is_cut_off(node: Node) -> None:
    deep = node.directory.joinpath(*["d"] * 40)
    deep.mkdir(parents=True)
    (deep / "file").touch()
    assert list(node.empty().left.values()) == ["is too deep"]


def test_remaining_names_are_limited() -> None:
    emptied = Emptied()
    for number in range(1500):
        emptied.leave(f"file{number}", reason="is in use")
    assert len(emptied.left) == 1000
    assert "1500 left (" in str(emptied)


def test_few_remaining_names_are_reported() -> None:
    text = str(Emptied(left={f"file{number}": "is in use" for number in range(9)}))
    assert text.endswith("9 left ('file0' is in use, 'file1' is in use, 'file2' is in use, …)")


def test_no_descriptor_stays_open(node: Node) -> None:
    def open_files() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = open_files()
    for _ in range(3):
        (node.directory / "a" / "b").mkdir(parents=True)
        node.empty()
        with pytest.raises(NotEmptiedError):
            node.empty(cgroup="/kubepods/pod2")
    assert open_files() == before
