"""Generate the protobuf and gRPC stubs in ``common/pb`` from ``proto``; ``--check`` fails when they are not current.

The versions that the code generators write into the stubs do not count: a newer generator alone does not make them
stale.
"""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping

from hack import generated

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


def files(root: pathlib.Path = generated.ROOT) -> generated.Files:
    """Return the stubs that belong under ``root``, and None for those without a source. Raises GenerationError.

    A stub that another version of the code generators made stays as it is.
    """
    with tempfile.TemporaryDirectory(prefix="protogen-") as scratch:
        generate(source=root / "proto", target=pathlib.Path(scratch))
        fresh = _stubs(pathlib.Path(scratch))
    kept = _stubs(root)
    return {root / PACKAGE / name: _current(kept.get(name), fresh.get(name)) for name in sorted({*kept, *fresh})}


def _stubs(root: pathlib.Path) -> Mapping[str, str]:
    package = root / PACKAGE
    return {
        str(path.relative_to(package)): path.read_text("utf-8")
        for pattern in ("*_pb2*.py", "*_pb2*.pyi")
        for path in package.rglob(pattern)
    }


def _current(kept: str | None, fresh: str | None) -> str | None:
    same = kept is not None and fresh is not None and _without_versions(kept) == _without_versions(fresh)
    return kept if same else fresh


def _without_versions(text: str) -> str:
    for pattern in _TOOL_VERSIONS:
        text = pattern.sub("", text)
    return text


if __name__ == "__main__":
    try:
        sys.exit(generated.main("protogen", files))
    except GenerationError as error:
        sys.exit(str(error))
