"""Parse the catalog's structured rules, ``subcodes`` and ``repeats``, from YAML nodes."""

import re

import yaml

from kubemend.agent.health.catalog import fault_names, yaml_nodes
from kubemend.agent.health.catalog.repeats import Repeats
from kubemend.agent.health.catalog.subcodes import Bits, SubCode
from kubemend.agent.health.state import evidence
from kubemend.agent.model.actions import ActionClass

_SUBCODE_REQUIRED = frozenset({"name", "class", "units", "info", "statuses"})
_SUBCODE_FIELDS = _SUBCODE_REQUIRED | {"numbers", "nvidia"}
_REPEATS_REQUIRED = frozenset({"count", "within", "class"})
_REPEATS_FIELDS = _REPEATS_REQUIRED | {"same"}
_PLACES = frozenset({evidence.GPC, evidence.TPC, evidence.SM, evidence.MMU_CLIENT, evidence.LINK})

_UNIT = re.compile(r"[A-Z][A-Z0-9_]*", re.ASCII)
_REGISTER = re.compile(r"0x[0-9a-f]{1,8}", re.ASCII | re.IGNORECASE)
_LARGEST_NUMBER = 63


def subcodes(node: yaml.Node) -> tuple[SubCode, ...]:
    """Parse the rules for the registers of one fault, in order: the first that matches decides. Raises CatalogError."""
    if not isinstance(node, yaml.SequenceNode):
        raise yaml_nodes.error(yaml_nodes.line_of(node), "'subcodes' is not a list: begin each with '- {units:'")
    return tuple(_subcode(item) for item in node.value)


def _subcode(node: yaml.Node) -> SubCode:
    line = yaml_nodes.line_of(node)
    found = yaml_nodes.fields(node, what="a sub-code", known=_SUBCODE_FIELDS, required=_SUBCODE_REQUIRED)
    units = _list(found["units"])
    for unit in units:
        if _UNIT.fullmatch(unit) is None:
            raise yaml_nodes.error(line, f"units: {unit!r} is not a unit: write it as in the line, NETIR_LINK_EVT")
    return SubCode(
        name=found["name"],
        action=yaml_nodes.member(ActionClass, found["class"], line=line, name="class"),
        units=frozenset(units),
        info=tuple(_bits(text, line=line) for text in _list(found["info"])),
        numbers=_numbers(found.get("numbers", "0"), line=line),
        statuses=frozenset(_register(text, line=line) for text in _list(found["statuses"])),
        nvidia=found.get("nvidia", ""),
    )


def repeats(node: yaml.Node) -> Repeats:
    """Parse the rule for a fault that occurs repeatedly. Raises CatalogError."""
    line = yaml_nodes.line_of(node)
    found = yaml_nodes.fields(node, what="'repeats'", known=_REPEATS_FIELDS, required=_REPEATS_REQUIRED)
    if not found["count"].isdecimal() or not 1 < int(found["count"]) < 1000:
        raise yaml_nodes.error(line, f"count {found['count']!r} is not a count: write a number from 2 to 999")
    same = _list(found.get("same", ""))
    for name in sorted(set(same) - _PLACES):
        raise yaml_nodes.error(line, f"same: {name!r} is not a place: use {', '.join(sorted(_PLACES))}")
    return Repeats(
        count=int(found["count"]),
        within=yaml_nodes.seconds(found["within"], line=line, name="within"),
        action=yaml_nodes.member(ActionClass, found["class"], line=line, name="class"),
        same=tuple(same),
    )


def _bits(text: str, *, line: int) -> Bits:
    """Parse ``0x1c6/0x3ff``: the required value of the bits under the mask."""
    value, slash, mask = text.partition("/")
    bits = Bits(value=_register(value, line=line), mask=_register(mask, line=line) if slash else 0xFFFFFFFF)
    if bits.value & ~bits.mask:
        raise yaml_nodes.error(line, f"info {text!r} can never match: its value has bits beyond its mask")
    return bits


def _register(text: str, *, line: int) -> int:
    if _REGISTER.fullmatch(text) is None:
        raise yaml_nodes.error(line, f"{text!r} is not a 32-bit register: write for example 0x80000000")
    return int(text, 16)


def _numbers(text: str, *, line: int) -> frozenset[int]:
    try:
        numbers = frozenset(map(int, fault_names.codes(text)))
    except ValueError as failure:
        raise yaml_nodes.error(line, f"numbers: {failure}") from failure
    if max(numbers) > _LARGEST_NUMBER:
        raise yaml_nodes.error(line, f"numbers: {max(numbers)} does not fit into six bits: use 0 to 63")
    return numbers


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
