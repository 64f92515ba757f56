"""Read and check the catalog's YAML as nodes, which know their lines."""

import re
from collections.abc import Iterator
from typing import Any

import yaml

_DURATION = re.compile(r"(\d{1,6})([smhd])", re.ASCII)
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


class CatalogError(ValueError):
    """The catalog is inconsistent. The message names the line, the problem and its fix."""


def error(line: int | None, what: str) -> CatalogError:
    """Return the error about one line, or about the whole file."""
    return CatalogError(f"catalog, line {line}: {what}" if line is not None else f"catalog: {what}")


def line_of(node: yaml.Node) -> int:
    """Return the first line of a node, counted from 1."""
    return int(node.start_mark.line) + 1


def items(node: yaml.MappingNode) -> Iterator[tuple[str, yaml.Node]]:
    """Yield a mapping's names and values; a duplicate name, which YAML would accept silently, raises CatalogError."""
    seen: set[str] = set()
    for key, value in node.value:
        name = str(key.value)
        if name in seen:
            raise error(line_of(key), f"{name!r} is given twice: keep one of them")
        seen.add(name)
        yield name, value


def fields(node: yaml.Node, *, what: str, known: frozenset[str], required: frozenset[str]) -> dict[str, str]:
    """Return a mapping of plain values; unknown and missing fields are errors.

    Raises CatalogError; ``what`` names the mapping in it.
    """
    line = line_of(node)
    if not isinstance(node, yaml.MappingNode):
        raise error(line, f"{what} is not a mapping: write {', '.join(sorted(known))}")
    found = {name: plain(value) for name, value in items(node)}
    for name in sorted(found.keys() - known):
        raise error(line, f"{what}: unknown field {name!r}: use {', '.join(sorted(known))}")
    for name in sorted(required):
        if not found.get(name):
            raise error(line, f"{what} lacks {name!r}: add it")
    return found


def plain(node: yaml.Node) -> str:
    """Return a scalar or a list of scalars as written: 031, 1_0 and no are not converted by YAML's rules.

    Raises CatalogError where it is a mapping.
    """
    if isinstance(node, yaml.ScalarNode):
        return " ".join(str(node.value).split())
    if isinstance(node, yaml.SequenceNode):
        return ", ".join(plain(item) for item in node.value)
    raise error(line_of(node), "a field is a mapping: write text or a list")


def member(enum_type: type[Any], value: object, *, line: int | None, name: str) -> Any:
    """Return the enum member with that value. Raises CatalogError, which lists the valid values."""
    try:
        return enum_type(value)
    except ValueError as failure:
        known = ", ".join(str(each.value) for each in enum_type)
        raise error(line, f"{name} {value!r} is unknown: use one of {known}") from failure


def boolean(text: str, *, line: int, name: str) -> bool:
    """Parse ``true`` or ``false``. Raises CatalogError."""
    if text not in ("true", "false"):
        raise error(line, f"{name} {text!r} is unknown: use true or false")
    return text == "true"


def seconds(text: str, *, line: int, name: str) -> float:
    """Parse ``90s``, ``10m``, ``24h``, ``7d``. Raises CatalogError."""
    match = _DURATION.fullmatch(text)
    if match is None or int(match[1]) == 0:
        raise error(line, f"{name} {text!r} is not a duration: write for example 10m, 24h or 7d")
    return int(match[1]) * _SECONDS[match[2]]
