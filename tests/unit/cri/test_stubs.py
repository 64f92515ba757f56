"""The generated stubs in common/pb."""

import pathlib
import shutil

import pytest

from hack import generated, protogen


@pytest.fixture
def copied(tmp_path: pathlib.Path) -> pathlib.Path:
    """The directory of copied stubs; their sources are copied next to them."""
    shutil.copytree(generated.ROOT / "proto", tmp_path / "proto")
    return pathlib.Path(shutil.copytree(generated.ROOT / protogen.PACKAGE, tmp_path / protogen.PACKAGE))


def stale(root: pathlib.Path) -> list[str]:
    """Return the stubs that are not current."""
    return [str(path.relative_to(root / protogen.PACKAGE)) for path in generated.stale(protogen.files(root))]


def test_stubs_match_their_proto_files() -> None:
    assert stale(generated.ROOT) == []


def test_a_changed_proto_makes_its_stubs_stale(tmp_path: pathlib.Path, copied: pathlib.Path) -> None:
    source = tmp_path / "proto/podresources/v1/api.proto"
    source.write_text(source.read_text(encoding="utf-8").replace("string name = 1;", "string title = 1;", 1))
    (copied / "left_pb2.py").touch()

    assert stale(tmp_path) == ["left_pb2.py", "podresources/v1/api_pb2.py", "podresources/v1/api_pb2.pyi"]


def test_the_generators_versions_do_not_make_stubs_stale(tmp_path: pathlib.Path, copied: pathlib.Path) -> None:
    for path in copied.rglob("*_pb2_grpc.py"):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("GRPC_GENERATED_VERSION = '", "GRPC_GENERATED_VERSION = '9"))

    assert stale(tmp_path) == []
