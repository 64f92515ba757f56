"""Custom resources against the schema of their definition: what is unknown is dropped, what is wrong refused. Pure.

Types, required fields, enums, bounds, lengths, patterns and list sizes, in the words of kube-openapi's validation.
Defaults are filled in when an object is written; one that was stored before its definition got them lacks them here.
Rules in CEL (``x-kubernetes-validations``) are not run: that takes a real kube-apiserver.
"""

import copy
import json
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

Json = Mapping[str, Any]

_TYPES: Final[Mapping[str, Callable[[Any], bool]]] = {
    "object": lambda value: isinstance(value, dict),
    "array": lambda value: isinstance(value, list),
    "string": lambda value: isinstance(value, str),
    "boolean": lambda value: isinstance(value, bool),
    "integer": lambda value: isinstance(value, int) and not isinstance(value, bool),
    "number": lambda value: isinstance(value, int | float) and not isinstance(value, bool),
}
_IMPLIED: Final = frozenset({"apiVersion", "kind", "metadata"})


def pruned(schema: Json, obj: dict[str, Any]) -> dict[str, Any]:
    """Return the object without fields that its schema does not know."""
    return {**_pruned(schema, obj), **{key: obj[key] for key in obj if key in _IMPLIED}}


def defaulted(schema: Json, value: Any) -> Any:
    """Return a value with the defaults of what it does not say; null says nothing, unless it is allowed."""
    if isinstance(value, list):
        return [defaulted(schema.get("items", {}), each) for each in value]
    if not isinstance(value, dict):
        return value
    properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
    said = {key: each for key, each in value.items() if each is not None or properties.get(key, {}).get("nullable")}
    missing = {
        key: copy.deepcopy(below["default"])
        for key, below in properties.items()
        if "default" in below and key not in said
    }
    others = rest if isinstance(rest, Mapping) else {}
    return {key: defaulted(properties.get(key, others), each) for key, each in (said | missing).items()}


def faults(schema: Json, value: Any, path: str = "") -> Iterator[str]:
    """Yield what is wrong with a value, each with the path of its field."""
    if schema.get("x-kubernetes-int-or-string"):
        if not _TYPES["integer"](value) and not isinstance(value, str):
            yield f"{path}: Invalid value: must be of type integer or string"
        return
    kind = schema.get("type")
    if kind is not None and not _TYPES[kind](value):
        yield f"{path or '<root>'}: Invalid value: must be of type {kind}"
        return
    yield from _value_faults(schema, value, path)
    if isinstance(value, dict):
        yield from _object_faults(schema, value, path)
    if isinstance(value, list):
        yield from _list_faults(schema, value, path)


def _value_faults(schema: Json, value: Any, path: str) -> Iterator[str]:
    if "enum" in schema and value not in schema["enum"]:
        supported = ", ".join(f'"{each}"' for each in schema["enum"])
        yield f'{path}: Unsupported value: "{value}": supported values: {supported}'
    if isinstance(value, str):
        if len(value) < schema.get("minLength", 0):
            yield f"{path}: Invalid value: should be at least {schema['minLength']} chars long"
        if len(value) > schema.get("maxLength", len(value)):
            yield f"{path}: Too long: may not be more than {schema['maxLength']} bytes"
        if "pattern" in schema and not re.search(schema["pattern"], value):
            yield f"{path}: Invalid value: should match '{schema['pattern']}'"
    if _TYPES["number"](value):
        if value < schema.get("minimum", value):
            yield f"{path}: Invalid value: should be greater than or equal to {schema['minimum']}"
        if value > schema.get("maximum", value):
            yield f"{path}: Invalid value: should be less than or equal to {schema['maximum']}"


def _object_faults(schema: Json, value: Json, path: str) -> Iterator[str]:
    properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
    for name in schema.get("required", ()):
        if name not in value:
            yield f"{_join(path, name)}: Required value"
    for name, below in value.items():
        if name in properties:
            yield from faults(properties[name], below, _join(path, name))
        elif isinstance(rest, Mapping):
            yield from faults(rest, below, _join(path, name))


def _list_faults(schema: Json, value: list[Any], path: str) -> Iterator[str]:
    if len(value) > schema.get("maxItems", len(value)):
        yield f"{path}: Too many: must have at most {schema['maxItems']} items"
    identities = [_identity(schema, each) for each in value]
    for index, each in enumerate(identities):
        if each is not None and each in identities[:index]:
            yield f"{path}[{index}]: Duplicate value: {json.dumps(each)}"
    for index, each in enumerate(value):
        yield from faults(schema.get("items", {}), each, f"{path}[{index}]")


def _identity(schema: Json, item: Any) -> Any:
    """Return what no other item of its list may be, too; None where the list does not care."""
    kind = schema.get("x-kubernetes-list-type")
    if kind == "map" and isinstance(item, dict):
        return {key: item.get(key) for key in schema["x-kubernetes-list-map-keys"]}
    return item if kind == "set" else None


def _pruned(schema: Json, value: Any) -> Any:
    if isinstance(value, list):
        return [_pruned(schema.get("items", {}), each) for each in value]
    if not isinstance(value, dict) or schema.get("x-kubernetes-preserve-unknown-fields"):
        return value
    properties, rest = schema.get("properties", {}), schema.get("additionalProperties")
    return {
        name: _pruned(properties.get(name, rest if isinstance(rest, Mapping) else {}), below)
        for name, below in value.items()
        if name in properties or rest
    }


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
