"""Build the dev node's two images from busybox, the gangs' worker and the launcher, and import them.

Nothing is ever pulled.

The archive is an OCI image layout (image-spec, image-layout.md) in a tar. The same busybox and the same compiler always
give the same bytes, and so the same image ids. The worker is in the image, not on a volume: a successor is held at its
first instruction only if its program is in its own root.
"""

import functools
import hashlib
import io
import json
import pathlib
import platform
import subprocess
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass

from hack.devnode import packages, pulse
from launcher import kubemend_run

BUSYBOX = "localhost/kubemend/busybox:dev"
"""All of busybox, the gangs' worker (``hack.devnode.pulse``), and the launcher, where kubemend's own image has it."""

PAUSE = "localhost/kubemend/pause:dev"
"""The image that holds a pod's namespaces."""

# Process 1 of a namespace gets only the signals that it handles: the trap makes SIGTERM end it at once. While it waits,
# the shell also reaps the orphans of a pod that shares its process namespace.
_PAUSE_SCRIPT = "trap 'exit 0' TERM INT; sleep 2147483647 & wait"
_FOLDERS = ("bin", "etc", "launcher", "root", "tmp", "var", "var/run")
_FILES = {
    "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n",
    "etc/group": "root:x:0:\nnogroup:x:65534:\n",
}
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_IMPORT_SECONDS = 180.0


class ImagesError(RuntimeError):
    """The images cannot be built or imported. The message is one line for people."""


@dataclass(frozen=True, slots=True)
class _Image:
    name: str
    command: tuple[str, ...]


_IMAGES = (
    _Image(name=BUSYBOX, command=("/bin/sh",)),
    _Image(name=PAUSE, command=("/bin/sh", "-c", _PAUSE_SCRIPT)),
)


def build(binaries: packages.Binaries, archive: pathlib.Path) -> None:
    """Write both images into one OCI archive. Raises ImagesError when busybox or the compiler does not run."""
    layer = _layer(binaries.busybox, worker=_worker())
    blobs = _Blobs()
    layer_descriptor = blobs.add(layer, media_type="application/vnd.oci.image.layer.v1.tar")
    manifests = [_manifest(image, layer=layer_descriptor, blobs=blobs) for image in _IMAGES]
    index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests}
    files = {"oci-layout": _json({"imageLayoutVersion": "1.0.0"}), "index.json": _json(index), **blobs.files}
    archive.write_bytes(_tar(files))


def load(binaries: packages.Binaries, *, archive: pathlib.Path, socket: pathlib.Path) -> None:
    """Import the archive into a running containerd, for CRI, and exclude both images from image collection.

    Raises ImagesError. CRI learns of imported images by an event: query it for them before using them.
    """
    client = (str(binaries.ctr), "--address", str(socket), "--namespace", "k8s.io", "images")
    run((*client, "import", str(archive)))
    for image in _IMAGES:
        run((*client, "label", image.name, "io.cri-containerd.pinned=pinned"))


def load_archive(
    binaries: packages.Binaries, *, archive: pathlib.Path, socket: pathlib.Path, tags: Mapping[str, str]
) -> None:
    """Import another archive into a running containerd, for CRI; ``tags`` are more names, each with the image's own.

    Raises ImagesError. CRI learns of the images by an event, as in ``load``.
    """
    client = (str(binaries.ctr), "--address", str(socket), "--namespace", "k8s.io", "images")
    run((*client, "import", str(archive)))
    for tag, image in tags.items():
        run((*client, "tag", image, tag))


def unpack(archive: pathlib.Path, folder: pathlib.Path) -> None:
    """Unpack the archive into a folder, as a directory of OCI images that skopeo reads (``oci:FOLDER:NAME``)."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")


class _Blobs:
    """Hold content by digest."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}

    def add(self, content: bytes, *, media_type: str) -> dict[str, object]:
        """Store a blob and return its descriptor."""
        digest = hashlib.sha256(content).hexdigest()
        self.files[f"blobs/sha256/{digest}"] = content
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(content)}


def _manifest(image: _Image, *, layer: Mapping[str, object], blobs: _Blobs) -> dict[str, object]:
    """Add an image's config and manifest; return the index's entry, which names the image for ctr and for skopeo."""
    config = {
        "architecture": _ARCHITECTURES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Cmd": list(image.command), "WorkingDir": "/"},
        # The layer is not compressed: its digest is that of its content.
        "rootfs": {"type": "layers", "diff_ids": [layer["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": blobs.add(_json(config), media_type="application/vnd.oci.image.config.v1+json"),
        "layers": [layer],
    }
    descriptor = blobs.add(_json(manifest), media_type="application/vnd.oci.image.manifest.v1+json")
    names = {"io.containerd.image.name": image.name, "org.opencontainers.image.ref.name": image.name}
    return {**descriptor, "annotations": names}


@functools.cache
def _worker() -> pathlib.Path:
    """Return the gangs' worker, compiled once for its source."""
    digest = hashlib.sha256(pulse.SOURCE.read_bytes()).hexdigest()[:8]
    program = packages.DEFAULT_CACHE.parent / "pulse" / digest / pathlib.Path(pulse.PROGRAM).name
    try:
        return program if program.exists() else pulse.build(program.parent)
    except (OSError, subprocess.CalledProcessError) as error:
        raise ImagesError(f"cannot compile the gangs' worker: {error}; the dev node needs gcc and libc6-dev") from error


def _layer(busybox: pathlib.Path, *, worker: pathlib.Path) -> bytes:
    applets = sorted(set(run((str(busybox), "--list")).split()) - {"busybox"})
    links = {f"bin/{applet}": "busybox" for applet in applets}
    programs = {"bin/busybox": busybox.read_bytes(), pulse.PROGRAM.lstrip("/"): worker.read_bytes()}
    launcher = {"launcher/kubemend_run.py": pathlib.Path(kubemend_run.__file__).read_bytes()}
    files = {**programs, **launcher, **{path: text.encode() for path, text in _FILES.items()}}
    return _tar(files, folders=_FOLDERS, links=links, executable=frozenset(programs))


def _tar(
    files: Mapping[str, bytes],
    *,
    folders: tuple[str, ...] = (),
    links: Mapping[str, str] | None = None,
    executable: frozenset[str] = frozenset(),
) -> bytes:
    """Return a tar of the given content: root's, from 1970, in a fixed order."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for path in folders:
            tar.addfile(_entry(path, kind=tarfile.DIRTYPE, mode=0o1777 if path == "tmp" else 0o755))
        for path, content in sorted(files.items()):
            entry = _entry(path, kind=tarfile.REGTYPE, mode=0o755 if path in executable else 0o644)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
        for path, target in sorted((links or {}).items()):
            entry = _entry(path, kind=tarfile.SYMTYPE, mode=0o777)
            entry.linkname = target
            tar.addfile(entry)
    return buffer.getvalue()


def _entry(path: str, *, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(path)
    entry.type, entry.mode = kind, mode
    return entry


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def run(command: tuple[str, ...]) -> str:
    """Run a program and return what it prints. Raises ImagesError."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=_IMPORT_SECONDS, check=True).stdout
    except subprocess.CalledProcessError as error:
        raise ImagesError(f"{' '.join(command[:1])} failed: {error.stderr.strip()[-300:]}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ImagesError(f"{command[0]}: {error}") from error
