"""Read the catalog from YAML, with an operator's overrides on top. Any inconsistency stops the load, with its line.

There is no lenient mode: a partly read catalog would act on only some of the faults.
"""

import functools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from kubemend.agent.health.catalog import fault_names, rules, yaml_nodes
from kubemend.agent.health.catalog.catalog import AppCaused, Catalog, Entry, FaultKey
from kubemend.agent.health.catalog.sensor_limits import SensorLimits
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import FindingKind

SCHEMA = 1

_Loader: type[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_NEEDED = frozenset({"schema", "version", "does", "faults"})
_TOP = _NEEDED | {"limits"}
_TEXTS = ("name", "meaning", "does", "nvidia", "note")
_LINKS = ("effect_of", "cancels")
_RULES = frozenset({"subcodes", "repeats"})
_FLAGS = ("word_decides", "ends_programs")
_FIELDS = frozenset({"kind", "codes", "class", "app_caused", "over_after", *_FLAGS, *_TEXTS, *_LINKS, *_RULES})
_REQUIRED = ("name", "class", "app_caused", "meaning")
_MOVES = (ActionClass.RESET_DEVICE, ActionClass.REBOOT_NODE, ActionClass.REPLACE)


CatalogError = yaml_nodes.CatalogError


@dataclass(frozen=True, slots=True)
class _Fault:
    """One item under ``faults`` as written, with its first line."""

    line: int
    keys: tuple[FaultKey, ...]
    fields: Mapping[str, Any]


@functools.cache
def builtin() -> Catalog:
    """Return the catalog that kubemend ships with."""
    return parse(Path(__file__).with_name("catalog.yaml").read_text("utf-8"))


def load(overrides: Path | None) -> Catalog:
    """Return the built-in catalog with the operator's file of changes (None: without). Raises CatalogError."""
    if overrides is None:
        return builtin()
    try:
        return merged(builtin(), overrides.read_text("utf-8"))
    except OSError as error:
        raise CatalogError(f"cannot read the catalog file {overrides}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise CatalogError(f"the catalog file {overrides} is not UTF-8: {error}") from error


def parse(text: str) -> Catalog:
    """Parse a whole catalog. Raises CatalogError."""
    top = _read_top(text)
    missing = _NEEDED - top.keys()
    if missing:
        raise CatalogError(f"catalog: {', '.join(sorted(missing))} missing at the top: add it")
    does = _does(top["does"], required=True)
    entries = _apply(_faults(top), onto={})
    return Catalog(
        version=str(top["version"]),
        entries=MappingProxyType(entries),
        does=MappingProxyType(does),
        limits=_limits(top, onto=SensorLimits()),
    )


def merged(base: Catalog, overrides: str) -> Catalog:
    """Return the catalog with an operator's overrides: the same format, only the differences, new codes in full.

    Raises CatalogError; the base is not modified.
    """
    top = _read_top(overrides)
    does = {**base.does, **_does(top.get("does", {}), required=False)}
    entries = _apply(_faults(top), onto=base.entries)
    suffix = str(top.get("version", "site"))
    return Catalog(
        version=f"{base.version}+{suffix}",
        entries=MappingProxyType(entries),
        does=MappingProxyType(does),
        limits=_limits(top, onto=base.limits),
    )


def _limits(top: Mapping[str, Any], *, onto: SensorLimits) -> SensorLimits:
    try:
        return onto.changed(top.get("limits", {}))
    except ValueError as error:
        raise CatalogError(f"catalog: {error}") from error


def _read_top(text: str) -> dict[str, Any]:
    """Return the top mapping; its ``faults`` stay YAML nodes, which know their lines."""
    try:
        loader = _Loader(text)
        try:
            root = loader.get_single_node()
            if not isinstance(root, yaml.MappingNode):
                raise CatalogError("catalog: the file is not a mapping: begin it with 'schema: 1'")
            top = {
                name: node if name == "faults" else loader.construct_object(node, deep=True)
                for name, node in yaml_nodes.items(root)
            }
        finally:
            loader.dispose()
    except yaml.YAMLError as error:
        raise CatalogError(f"catalog: not YAML: {' '.join(str(error).split())}: fix the syntax there") from error
    for name in top.keys() - _TOP:
        raise CatalogError(f"catalog: unknown key {name!r} at the top: use {', '.join(sorted(_TOP))}")
    if top.get("schema") != SCHEMA:
        raise CatalogError(f"catalog: schema is {top.get('schema')!r}: this kubemend reads 'schema: {SCHEMA}'")
    return top


def _faults(top: Mapping[str, Any]) -> Iterator[_Fault]:
    node = top.get("faults")
    if node is None:
        return
    if not isinstance(node, yaml.SequenceNode):
        raise yaml_nodes.error(yaml_nodes.line_of(node), "'faults' is not a list: begin each fault with '- kind:'")
    for item in node.value:
        yield _fault(item)


def _fault(node: yaml.Node) -> _Fault:
    line = yaml_nodes.line_of(node)
    if not isinstance(node, yaml.MappingNode):
        raise yaml_nodes.error(line, "a fault is not a mapping: begin it with '- kind:'")
    fields = {name: value if name in _RULES else yaml_nodes.plain(value) for name, value in yaml_nodes.items(node)}
    for name in fields.keys() - _FIELDS:
        raise yaml_nodes.error(line, f"unknown field {name!r}: use {', '.join(sorted(_FIELDS))}")
    kind = yaml_nodes.member(FindingKind, fields.get("kind"), line=line, name="kind")
    codes = str(fields["codes"]) if "codes" in fields else ""
    if bool(codes) == (kind in fault_names.CODELESS):
        raise yaml_nodes.error(
            line, f"{kind.value} {'has no codes: leave them out' if codes else 'lacks codes: add them'}"
        )
    try:
        keys = tuple(FaultKey(kind, code) for code in fault_names.codes(codes)) if codes else (FaultKey(kind),)
    except ValueError as error:
        raise yaml_nodes.error(line, f"codes: {error}") from error
    return _Fault(line=line, keys=keys, fields=fields)


def _apply(faults: Iterable[_Fault], *, onto: Mapping[FaultKey, Entry]) -> dict[FaultKey, Entry]:
    entries, lines = dict(onto), dict[FaultKey, int]()
    for fault in faults:
        for key in fault.keys:
            if key in lines:
                raise yaml_nodes.error(fault.line, f"{key} is already in line {lines[key]}: keep one of them")
            lines[key] = fault.line
            entries[key] = _entry(fault, key=key, old=onto.get(key))
    for key, line in lines.items():
        entry = entries[key]
        unknown = [each for each in entry.effect_of | entry.cancels if each not in entries]
        for target in sorted(unknown, key=str):
            raise yaml_nodes.error(
                line, f"{key} links to {target}, which is not in the catalog: add it or drop the link"
            )
        if key in entry.effect_of:
            raise yaml_nodes.error(line, f"{key} is named as its own cause: drop the link")
    return entries


def _entry(fault: _Fault, *, key: FaultKey, old: Entry | None) -> Entry:
    given = {name: text for name, text in fault.fields.items() if text}
    for name in _REQUIRED:
        if old is None and name not in given:
            raise yaml_nodes.error(fault.line, f"{key} lacks {name!r}: a new fault needs {', '.join(_REQUIRED)}")
    changes: dict[str, Any] = {name: given[name] for name in _TEXTS if name in given}
    for name in _LINKS:
        if name in given:
            changes[name] = frozenset(_links(given[name], kind=key.kind, line=fault.line))
    if "app_caused" in given:
        changes["app_caused"] = yaml_nodes.member(AppCaused, given["app_caused"], line=fault.line, name="app_caused")
    if "over_after" in given:
        if key.code:
            raise yaml_nodes.error(
                fault.line, f"{key} has a code, and over_after would end all of its kind: leave over_after out"
            )
        changes["over_after"] = yaml_nodes.seconds(given["over_after"], line=fault.line, name="over_after")
    if "repeats" in given:
        changes["repeats"] = rules.repeats(given["repeats"])
    if "class" in given:
        changes["action"] = yaml_nodes.member(ActionClass, given["class"], line=fault.line, name="class")
        # Other settings of the old class do not apply to the new one.
        changes |= {"does": changes.get("does", ""), "subcodes": (), "ends_programs": False}
    for name in _FLAGS:
        if name in given:
            changes[name] = yaml_nodes.boolean(given[name], line=fault.line, name=name)
    if "subcodes" in given:
        known = old.subcodes if old is not None and "class" not in given else ()
        changes["subcodes"] = (*rules.subcodes(given["subcodes"]), *known)
    entry = replace(old, **changes) if old is not None else Entry(key=key, **changes)
    if entry.ends_programs and not {entry.action, *(rule.action for rule in entry.subcodes)} <= {*_MOVES}:
        classes = ", ".join(action.value for action in _MOVES)
        raise yaml_nodes.error(
            fault.line, f"{key} ends programs, but new ones may follow on the device: make its classes one of {classes}"
        )
    return entry


def _links(text: str, *, kind: FindingKind, line: int) -> Iterator[FaultKey]:
    """Parse ``13, 144-150, FallenOffBus``: bare codes belong to the fault's own kind."""
    for part in text.split(","):
        try:
            yield from fault_names.keys(part, default=kind)
        except ValueError as error:
            raise yaml_nodes.error(line, str(error)) from error


def _does(given: object, *, required: bool) -> dict[ActionClass, str]:
    if not isinstance(given, dict):
        raise CatalogError("catalog: 'does' is not a mapping: give one text for each action class")
    texts: dict[ActionClass, str] = {
        yaml_nodes.member(ActionClass, name, line=None, name="does"): " ".join(str(text).split())
        for name, text in given.items()
    }
    for action in ActionClass:
        if required and not texts.get(action):
            raise CatalogError(f"catalog: 'does' lacks {action.value}: describe kubemend's reaction to it")
    return texts
