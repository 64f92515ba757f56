"""Find the ``kubemend.io/`` names in programs and manifests, in any spelling."""

import ast
import importlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

PACKAGES: Final = ("agent", "cli", "common", "controller")
MANIFESTS: Final = "daemonset"

_WRITTEN_OUT: Final = re.compile(r"(?<![\w.-])kubemend\.io/([A-Za-z][A-Za-z0-9-]*[A-Za-z0-9])")
_PREFIX: Final = "kubemend.io/"


def names(root: Path) -> Mapping[str, frozenset[str]]:
    """Return each such name in programs and manifests below ``root``, with the files that contain it."""
    found: dict[str, set[str]] = {}
    for path in _files(root):
        text = path.read_text("utf-8")
        written = {_PREFIX + name for name in _WRITTEN_OUT.findall(text)}
        if path.suffix == ".py":
            written.update(_put_together(text, module=".".join(path.relative_to(root).with_suffix("").parts)))
        for name in written:
            found.setdefault(name, set()).add(str(path.relative_to(root)))
    return {name: frozenset(files) for name, files in found.items()}


def _files(root: Path) -> Iterator[Path]:
    for package in PACKAGES:
        yield from (root / package).rglob("*.py")
    yield from (root / MANIFESTS).rglob("*.yaml")


def _put_together(text: str, *, module: str) -> Iterator[str]:
    """Yield the names of expressions ``PREFIX + "name"``, from any module's PREFIX."""
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.BinOp(op=ast.Add(), left=left, right=ast.Constant(value=str() as last)):
                parts = ast.unparse(left).split(".")
                if parts[-1] == "PREFIX":
                    prefix = _looked_up(module, parts)
                    if prefix == _PREFIX:
                        yield prefix + last


def _looked_up(module: str, parts: list[str]) -> object:
    value: object = importlib.import_module(module)
    for word in parts:
        value = getattr(value, word)
    return value
