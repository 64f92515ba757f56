"""Generate the protobuf and gRPC stubs in ``common/pb`` from ``proto``, and check that they are current.

``python -m hack.protogen`` writes them, ``python -m hack.protogen --check`` compares them with fresh ones and exits 1
with one line when they differ. The versions that the code generators write into the stubs are not compared: a newer
generator alone does not make the stubs stale.
"""

import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence

ROOT = pathlib.Path(__file__).resolve().parent.parent
PACKAGE = pathlib.PurePath("kubemend/common/pb")
PROTOS = (
    "runtime/v1/api.proto",
    "podresources/v1/api.proto",
    "coordination/v1/coordination.proto",
    "nvhcd/nvhcd.proto",
    "snapshots/v1/snapshots.proto",
)

_TOOL_VERSIONS = (
    re.compile(r"^# Protobuf Python Version: .*$", re.MULTILINE),
    re.compile(r"(?<=_runtime_version\.Domain\.PUBLIC,)[\s\d,]+"),
    re.compile(r"^GRPC_GENERATED_VERSION = .*$", re.MULTILINE),
)


class GenerationError(RuntimeError):
    """The code generator failed or is missing; the message is one line with the hint."""


def generate(*, source: pathlib.Path, target: pathlib.Path) -> None:
    """Write the stubs of all PROTOS under ``source`` into ``target`` / PACKAGE.

    Raises GenerationError when protoc or a plugin of it is missing or refuses the input.
    """
    plugins = pathlib.Path(sys.executable).parent
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        f"-I{PACKAGE}={source}",
        *(f"--{kind}_out={target}" for kind in ("python", "mypy", "grpc_python", "mypy_grpc")),
        *(str(source / proto) for proto in PROTOS),
    ]
    path = f"{plugins}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    run = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=120, env={**os.environ, "PATH": path}
    )
    if run.returncode != 0:
        last = (run.stderr.strip() or "no message").splitlines()[-1]
        raise GenerationError(f"protoc failed: {last}; install the test extra: pip install -e '.[test]'")


def stubs(root: pathlib.Path) -> Mapping[str, str]:
    """Return every generated file under ``root`` / PACKAGE by its relative path, without the tools' versions."""
    package = root / PACKAGE
    return {
        str(path.relative_to(package)): _without_versions(path.read_text(encoding="utf-8"))
        for pattern in ("*_pb2*.py", "*_pb2*.pyi")
        for path in package.rglob(pattern)
    }


def stale(*, kept: Mapping[str, str], fresh: Mapping[str, str]) -> tuple[str, ...]:
    """Return the paths that differ, are missing, or have no source any more."""
    return tuple(sorted(path for path in kept.keys() | fresh.keys() if kept.get(path) != fresh.get(path)))


def check(root: pathlib.Path = ROOT) -> tuple[str, ...]:
    """Return the stubs under ``root`` that do not match its .proto files. Raises GenerationError."""
    with tempfile.TemporaryDirectory(prefix="protogen-") as scratch:
        generate(source=root / "proto", target=pathlib.Path(scratch))
        return stale(kept=stubs(root), fresh=stubs(pathlib.Path(scratch)))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m hack.protogen", description=__doc__)
    parser.add_argument("--check", action="store_true", help="only compare; exit 1 when the stubs are stale")
    only_check = parser.parse_args(arguments).check
    try:
        if not only_check:
            generate(source=ROOT / "proto", target=ROOT)
            return 0
        differing = check()
    except GenerationError as error:
        print(error, file=sys.stderr)
        return 2
    if differing:
        print(f"stale stubs in {PACKAGE}: {', '.join(differing)}; run `python -m hack.protogen`", file=sys.stderr)
    return 1 if differing else 0


def _without_versions(text: str) -> str:
    for pattern in _TOOL_VERSIONS:
        text = pattern.sub("", text)
    return text


if __name__ == "__main__":
    sys.exit(main())
