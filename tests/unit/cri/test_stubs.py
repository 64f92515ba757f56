"""The generated stubs in common/pb."""

import pathlib
import shutil

from hack import protogen


def test_stubs_match_their_proto_files() -> None:
    assert protogen.check() == ()


def test_a_changed_proto_makes_its_stubs_stale(tmp_path: pathlib.Path) -> None:
    shutil.copytree(protogen.ROOT / "proto", tmp_path / "proto")
    shutil.copytree(protogen.ROOT / protogen.PACKAGE, tmp_path / protogen.PACKAGE)
    source = tmp_path / "proto/podresources/v1/api.proto"
    source.write_text(source.read_text(encoding="utf-8").replace("string name = 1;", "string title = 1;", 1))

    assert protogen.check(tmp_path) == ("podresources/v1/api_pb2.py", "podresources/v1/api_pb2.pyi")


def test_the_generators_versions_do_not_make_stubs_stale(tmp_path: pathlib.Path) -> None:
    copied = tmp_path / protogen.PACKAGE
    shutil.copytree(protogen.ROOT / protogen.PACKAGE, copied)
    for path in copied.rglob("*_pb2_grpc.py"):
        text = path.read_text(encoding="utf-8")
        path.write_text(text.replace("GRPC_GENERATED_VERSION = '", "GRPC_GENERATED_VERSION = '9"))

    assert protogen.stale(kept=protogen.stubs(tmp_path), fresh=protogen.stubs(protogen.ROOT)) == ()
