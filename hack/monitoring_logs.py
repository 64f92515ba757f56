"""The events of the log, read from the sources. Writes docs/logs.md."""

import ast
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from hack import generated

PACKAGES: Final = ("agent", "controller", "common", "cli")

_LEVELS: Final = {"debug": "debug", "info": "info", "warning": "warning", "error": "error", "exception": "error"}
_MORE: Final = "…"

_TITLES: Final = {
    "agent": "Events of agents",
    "controller": "Events of controllers",
    "common": "Events of both",
    "cli": "Events of the command line",
}


@dataclass(frozen=True, slots=True)
class Event:
    """An event as one place in the sources writes it. ``keys`` ends with … if the place does not list all of them."""

    package: str
    name: str
    level: str
    keys: tuple[str, ...]
    module: str

    @property
    def row(self) -> tuple[str, ...]:
        """The cells that the page has of it."""
        keys = ", ".join(key if key == _MORE else f"`{key}`" for key in self.keys)
        return self.name, self.level, keys, self.module


def events(root: Path) -> tuple[Event, ...]:
    """Return all events of the sources below ``root``."""
    found: list[Event] = []
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            module = ".".join(path.relative_to(root).with_suffix("").parts)
            found += _of_module(ast.parse(path.read_text("utf-8")), package=package, module=module)
    return tuple(found)


def render(found: Sequence[Event]) -> str:
    """Return docs/logs.md."""
    rows = {package: sorted({each.row for each in found if each.package == package}) for package in PACKAGES}
    return generated.text("logs.md", titles=_TITLES, rows=rows)


def _of_module(tree: ast.Module, *, package: str, module: str) -> Iterator[Event]:
    nodes = tuple(ast.walk(tree))
    chosen = _chosen(nodes)
    for node in nodes:
        if isinstance(node, ast.Call) and node.args and (levels := _levels(node.func, chosen)):
            keys = tuple(keyword.arg or _MORE for keyword in node.keywords)
            for name in _names(node.args[0]):
                for level in levels:
                    yield Event(package, name, level, tuple(sorted(keys, key=_MORE.__eq__)), module)


def _chosen(nodes: Iterable[ast.AST]) -> dict[str, tuple[str, ...]]:
    """Return the names by which a module calls one of two levels (``say = log.debug if … else log.info``)."""
    found: dict[str, tuple[str, ...]] = {}
    for node in nodes:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.IfExp(body=body, orelse=other)):
                if levels := (*_levels(body, {}), *_levels(other, {})):
                    found[name] = levels
    return found


def _levels(called: ast.expr, chosen: Mapping[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Return the levels at which a call logs: ``log.LEVEL(...)``, or one of ``chosen``."""
    match called:
        case ast.Attribute(value=ast.Name(id="log"), attr=level) if level in _LEVELS:
            return (_LEVELS[level],)
        case ast.Name(id=name):
            return chosen.get(name, ())
    return ()


def _names(argument: ast.expr) -> tuple[str, ...]:
    match argument:
        case ast.Constant(value=str(name)):
            return (name,)
        case ast.IfExp(body=body, orelse=other):
            return (*_names(body), *_names(other))
    return ()
