"""Custom resources against the schema of their definition: what is unknown is dropped, what is wrong refused. Pure.

Types, required fields, enums, bounds, lengths, patterns and list sizes, in the words of kube-openapi's validation.
Rules in CEL (``x-kubernetes-validations``) are not run: that takes a real kube-apiserver. Defaults are refused.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from hack.devnode.api import errors

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


def check_definition(schema: Json) -> None:
    """Raise ApiError 501 for a schema that needs more than is done here."""
    if "default" in schema:
        raise errors.cannot("defaults of custom resources", "they are part of what is read, too")
    for below in (*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")):
        if isinstance(below, Mapping):
            check_definition(below)


def pruned(schema: Json, obj: dict[str, Any]) -> dict[str, Any]:
    """Return the object without fields that its schema does not know."""
    return {**_pruned(schema, obj), **{key: obj[key] for key in obj if key in _IMPLIED}}


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
    if schema.get("x-kubernetes-list-type") == "set":
        for index, each in enumerate(value):
            if each in value[:index]:
                yield f'{path}[{index}]: Duplicate value: "{each}"'
    for index, each in enumerate(value):
        yield from faults(schema.get("items", {}), each, f"{path}[{index}]")


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
