"""List what an image contains, as a CycloneDX document: Debian's packages and Python's.

The list is read from the image itself, from where scanners read it: the ``*.dist-info`` directories of Python packages,
and the control files of Debian's in ``/var/lib/dpkg/status.d``, as in Google's distroless images.
"""

import email
import json
import pathlib
import re
import tarfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.message import Message
from typing import Final

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

DPKG: Final = "var/lib/dpkg/status.d"

_PYTHON: Final = re.compile(r".*-packages/[^/]+\.dist-info/METADATA")
_DEBIAN: Final = re.compile(rf"{DPKG}/[^/]+")
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_NAMESPACE: Final = uuid.UUID("5b2f4a4e-7f0c-5a43-9a55-0d3c3e1b9a10")


@dataclass(frozen=True, slots=True)
class Image:
    """Hold the parts of an archive in Docker's format that the list needs.

    ``digest`` is the image's ID, ``sha256:…``, ``reference`` its name and tag, ``files`` the lists of packages by path.
    """

    digest: str
    reference: str
    files: Mapping[str, bytes]


def read(archive: pathlib.Path) -> Image:
    """Read an image's archive."""
    with tarfile.open(archive) as tar:
        (manifest,) = json.loads(_content(tar, "manifest.json"))
        files: dict[str, bytes] = {}
        for name in manifest["Layers"]:
            stream = tar.extractfile(name)
            with tarfile.open(fileobj=stream) as layer:
                _add(layer, files)
    digest = pathlib.PurePath(manifest["Config"]).stem
    return Image(digest=f"sha256:{digest}", reference=manifest["RepoTags"][0], files=files)


def document(image: Image, *, suite: str, created: int) -> str:
    """Return the CycloneDX document (JSON, 1.6) of an image.

    ``suite`` is Debian's, and ``created`` the document's date in seconds since 1970. Equal images have equal documents.
    """
    name, _, version = image.reference.rpartition("/")[2].partition(":")
    url = PackageURL(type="oci", name=name, version=image.digest)
    root = Component(name=name, version=version, type=ComponentType.CONTAINER, bom_ref=str(url), purl=url)
    components = list(_components(image, suite=suite))
    bom = Bom(components=components, serial_number=uuid.uuid5(_NAMESPACE, image.digest))
    bom.metadata.component = root
    bom.metadata.timestamp = datetime.fromtimestamp(created, UTC)
    bom.register_dependency(root, components)
    return JsonV1Dot6(bom).output_as_string(indent=2) + "\n"


def _components(image: Image, *, suite: str) -> Iterator[Component]:
    for path, content in sorted(image.files.items()):
        fields = email.message_from_bytes(content)
        if _DEBIAN.fullmatch(path):
            about = {"arch": fields["Architecture"], "distro": suite}
            url = PackageURL("deb", "debian", fields["Package"], fields["Version"], about)
            yield _component(url, licenses=())
        else:
            normal = re.sub(r"[-_.]+", "-", fields["Name"]).lower()
            yield _component(PackageURL("pypi", None, normal, fields["Version"]), licenses=_licenses(fields))


def _component(url: PackageURL, *, licenses: Iterable[str]) -> Component:
    made = map(LicenseFactory().make_from_string, licenses)
    return Component(name=url.name, version=url.version, purl=url, bom_ref=str(url), licenses=made)


def _licenses(fields: "Message[str, str]") -> list[str]:
    """Return the license that the package states as an SPDX expression, if any."""
    return [fields["License-Expression"]] if fields["License-Expression"] else []


def _add(layer: tarfile.TarFile, files: dict[str, bytes]) -> None:
    """Apply a layer to the files: its removals first, then its own."""
    members = [(member, member.name.removeprefix("./")) for member in layer]
    for _, path in members:
        folder, _, name = path.rpartition("/")
        if name.startswith(_WHITEOUT):
            gone = folder if name == _OPAQUE else f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/")
            for each in [each for each in files if each == gone or each.startswith(f"{gone}/")]:
                del files[each]
    for member, path in members:
        if member.isfile() and (_PYTHON.fullmatch(path) or _DEBIAN.fullmatch(path)):
            files[path] = _content(layer, member)


def _content(tar: tarfile.TarFile, member: str | tarfile.TarInfo) -> bytes:
    stream = tar.extractfile(member)
    if stream is None:
        raise ValueError(f"{getattr(member, 'name', member)} in the image's archive is no file")
    with stream:
        return stream.read()
