"""The list of an image's content: read from the layers, as a runtime would lay them out."""

import io
import json
import tarfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from hack.image import build, sbom
from tests import sbom_schema

LIB: Final = "opt/kubemend/lib/python3.11/site-packages"
SYSTEM: Final = "usr/lib/python3/dist-packages"
BASH: Final = b"Package: bash\nVersion: 5.2-1+b1\nArchitecture: amd64\nDescription: shell\n lines\n"


def metadata(name: str, version: str = "1.0", *more: str) -> bytes:
    """Return the metadata of a Python package."""
    return "\n".join(["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}", *more, "", "Text"]).encode()


def packed(files: Mapping[str, bytes]) -> bytes:
    """Return an archive with files."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return made.getvalue()


def image(tmp_path: Path, *layers: Mapping[str, bytes], digest: str = "0" * 64) -> sbom.Image:
    """Return an image with these layers, read from an archive in Docker's format."""
    names = [f"{at}.tar" for at in range(len(layers))]
    manifest = [{"Config": f"{digest}.json", "RepoTags": ["docker.io/library/kubemend:0.1.0"], "Layers": names}]
    files = {name: packed(layer) for name, layer in zip(names, layers, strict=True)}
    archive = tmp_path / "image.tar"
    archive.write_bytes(packed({**files, "manifest.json": json.dumps(manifest).encode()}))
    return sbom.read(archive)


def listed(read: sbom.Image) -> list[str]:
    """Return the package URLs in the document."""
    return [each["purl"] for each in json.loads(text(read)).get("components", ())]


def text(read: sbom.Image) -> str:
    """Return the document."""
    return sbom.document(read, suite="bookworm", created=1_767_225_600)


def test_packages_of_both_kinds_are_listed_by_their_urls(tmp_path: Path) -> None:
    files = {f"{LIB}/Ruamel.Yaml_X-1.0.dist-info/METADATA": metadata("Ruamel.Yaml_X"), f"./{sbom.DPKG}/bash": BASH}
    assert listed(image(tmp_path, files)) == [
        "pkg:deb/debian/bash@5.2-1%2Bb1?arch=amd64&distro=bookworm",
        "pkg:pypi/ruamel-yaml-x@1.0",
    ]


def test_other_files_are_not_read(tmp_path: Path) -> None:
    files = {f"{LIB}/a/METADATA": b"", f"{LIB}/a-1.dist-info/RECORD": b"", "METADATA": b"", f"{sbom.DPKG}/d/e": b""}
    assert image(tmp_path, files).files == {}


@pytest.mark.parametrize(
    "removal",
    [
        f"{SYSTEM}/.wh.pip-1.0.dist-info",
        f"{SYSTEM}/pip-1.0.dist-info/.wh.METADATA",
        f"{SYSTEM}/.wh..wh..opq",
        ".wh.usr",
    ],
)
def test_package_that_a_later_layer_removes_is_not_listed(tmp_path: Path, removal: str) -> None:
    pip = {f"{SYSTEM}/pip-1.0.dist-info/METADATA": metadata("pip"), f"{LIB}/a-1.0.dist-info/METADATA": metadata("a")}
    assert listed(image(tmp_path, pip, {removal: b""})) == ["pkg:pypi/a@1.0"]


def test_package_that_the_same_layer_replaces_is_listed_once(tmp_path: Path) -> None:
    old = {f"{LIB}/a-1.0.dist-info/METADATA": metadata("a")}
    new = {f"{LIB}/a-2.0.dist-info/METADATA": metadata("a", "2.0"), f"{LIB}/.wh.a-1.0.dist-info": b""}
    assert listed(image(tmp_path, old, new)) == ["pkg:pypi/a@2.0"]


def test_document_obeys_its_schema_and_has_licenses(tmp_path: Path) -> None:
    files = {f"{LIB}/a-1.0.dist-info/METADATA": metadata("a", "1.0", "License-Expression: Apache-2.0 OR MIT")}
    made = text(image(tmp_path, files))
    assert sbom_schema.problem(made) is None
    (component,) = json.loads(made)["components"]
    assert component["licenses"] == [{"expression": "Apache-2.0 OR MIT"}]


def test_equal_images_have_equal_documents_and_others_do_not(tmp_path: Path) -> None:
    files = {f"{LIB}/a-1.0.dist-info/METADATA": metadata("a")}
    first, again, other = (text(image(tmp_path, files, digest=each * 64)) for each in "001")
    assert first == again
    assert json.loads(first)["serialNumber"] != json.loads(other)["serialNumber"]
    assert json.loads(first)["metadata"]["component"]["purl"].endswith(f"@sha256:{64 * '0'}")


def test_date_is_fixed_unless_the_builder_gives_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOURCE_DATE_EPOCH", raising=False)
    assert build.date() == build.date()
    archive = build.archive()
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "12")
    assert build.date() == 12
    assert build.archive() != archive, "an image with another date is another one"


@pytest.mark.parametrize("given", ["", "-1", "now", "1.5"])
def test_date_that_is_no_number_of_seconds_is_refused(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", given)
    with pytest.raises(build.ImageError, match="seconds since 1970"):
        build.date()
