"""Build CRI-O once, from its Go module, and run it in place of containerd, as a node's private runtime.

``hack/crio/go.mod`` requires CRI-O as a tool; conmon, which holds each container, and skopeo, which puts the images
into CRI-O's storage, are Debian's. runc is called by a program of ours (``hack/crio/lenient-runc``); crun is, too, and
that program finds it under the name of runc. Everything lies under the node's root, as containerd's files do, and under
the same names: the socket of CRI is ``NodeLayout.containerd_socket``.
"""

import json
import pathlib
import shutil
import subprocess
import tempfile
from typing import ClassVar, Final

from hack.devnode import cgroups, images, layout, packages
from hack.devnode.containerd import Containerd
from hack.devnode.gobuild import GoModule
from hack.devnode.packages import CHECKOUT

_CACHE: Final = CHECKOUT / ".dev" / "crio"
_PACKAGE: Final = "github.com/cri-o/cri-o"
_BUILD_PACKAGES: Final = ("gcc", "libc6-dev", "libseccomp-dev", "pkg-config")
_RUN_PACKAGES: Final = ("conmon", "skopeo")
_SECONDS: Final = 60.0
_MODULE: Final = GoModule(
    name="CRI-O",
    root=CHECKOUT / "hack" / "crio",
    requires=_PACKAGE,
    packages=(f"{_PACKAGE}/cmd/crio", "./lenient-runc"),
    hint="make the Go modules reachable",
    duration="about five minutes on two cores",
    tags=(
        "btrfs_noversion",
        "containers_image_openpgp",
        "containers_image_ostree_stub",
        "exclude_graphdriver_btrfs",
        "seccomp",
    ),
    cgo=True,
)


def missing() -> str:
    """Return why CRI-O is unavailable on this machine, or "" when it is available."""
    return "" if _pinns(_MODULE.directory(_CACHE)).is_file() else "no CRI-O: run `make crio`"


def ensure() -> pathlib.Path:
    """Return the directory of ``crio`` and ``pinns``, after building them if necessary. Raises PackagesError."""
    packages.ensure_host_packages((*_BUILD_PACKAGES, *_RUN_PACKAGES))
    where = _MODULE.ensure(_CACHE)
    if not _pinns(where).is_file():
        _build_pinns(where)
    return where


def reported() -> str:
    """Return the version that the built program reports."""
    command = (str(_MODULE.directory(_CACHE) / "crio"), "version", "--json")
    answer = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False).stdout
    return f"v{json.loads(answer)['version']}" if answer else "unknown"


class Crio(Containerd):
    """Run CRI-O under the root of one dev node, as ``Containerd`` runs containerd."""

    program: ClassVar[str] = "crio"

    @property
    def search_path(self) -> str:
        """``PATH`` of the daemon and of conmon."""
        return f"{_renamed(self.node)}:{super().search_path}"

    def _config(self) -> str:
        """Return crio.conf: every path lies under the node's root, and services that the node does not use are off."""
        import jinja2  # here: most dev nodes run containerd, also where jinja2 is missing

        text = pathlib.Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
        template = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True).from_string(text)
        return template.render(
            node=self.node,
            runs=self.node.root / "crio",
            programs=_MODULE.directory(_CACHE),
            pinns=_pinns(_MODULE.directory(_CACHE)),
            conmon=shutil.which("conmon") or "conmon",
            policy=_policy(self.node),
            pause=images.PAUSE,
            cni_dir=self.binaries.cni_dir,
            search_path=self.search_path,
            oci_runtime=self._options.oci_runtime,
            cgroup_driver=cgroups.driver(),
        )

    def _command(self) -> tuple[str, ...]:
        return (str(_MODULE.directory(_CACHE) / "crio"), "--config", str(self.node.containerd_config), "--config-dir=")

    def _prepare(self) -> None:
        """Put the images into the storage as well: CRI-O can import none by itself, and reads the storage as it is."""
        if reason := missing():
            raise packages.PackagesError(reason)
        super()._prepare()
        _renamed(self.node).mkdir(parents=True, exist_ok=True)
        if (crun := self._options.crun) is not None:
            (_renamed(self.node) / "runc").symlink_to(crun.lenient)
        _policy(self.node).write_text(json.dumps({"default": [{"type": "insecureAcceptAnything"}]}), encoding="utf-8")
        images.build(self.binaries, self.node.images_archive)
        _load(self.node)

    def _import_images(self) -> None:
        """Do nothing: ``_prepare`` has imported them."""


def _build_pinns(where: pathlib.Path) -> None:
    """Compile CRI-O's helper that keeps namespaces, which is written in C."""
    sources = sorted((_MODULE.source() / "pinns" / "src").glob("*.c"))
    with tempfile.TemporaryDirectory(dir=where.parent) as folder:
        made = pathlib.Path(folder, "pinns")
        command = ("gcc", "-std=c99", "-O3", "-static", "-s", "-o", str(made), *(str(path) for path in sources))
        answer = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
        if answer.returncode != 0:
            raise packages.PackagesError(f"CRI-O's pinns cannot be compiled: {answer.stderr.strip()[-200:]}")
        made.rename(_pinns(where))


def _pinns(where: pathlib.Path) -> pathlib.Path:
    return where / "pinns"


def _policy(node: layout.NodeLayout) -> pathlib.Path:
    return node.root / "policy.json"


def _load(node: layout.NodeLayout) -> None:
    """Copy the images from the archive into the storage. Raises images.ImagesError."""
    store = f"[overlay@{node.containerd_root}+{node.containerd_state}]"
    with tempfile.TemporaryDirectory(dir=node.root) as folder:
        images.unpack(node.images_archive, pathlib.Path(folder))
        for name in (images.BUSYBOX, images.PAUSE):
            command = ("skopeo", "--policy", str(_policy(node)), "copy", "--quiet")
            images.run((*command, f"oci:{folder}:{name}", f"containers-storage:{store}{name}"))


def _renamed(node: layout.NodeLayout) -> pathlib.Path:
    """Return the directory where ``lenient-runc`` finds crun as ``runc``; empty if it is to find runc."""
    return node.root / "oci"
