"""Convert the schema of a custom resource into table rows, one per field. Pure."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

Json = Mapping[str, Any]

_SHOWN_OTHERWISE: Final = {"type", "format", "description", "properties", "items", "required", "additionalProperties"}
_OF_LISTS: Final = {"x-kubernetes-list-type", "x-kubernetes-list-map-keys"}
_AT_LEAST_ONE: Final = ("minLength", "minItems", "minProperties")
_LIMITS: Final = {
    "minimum": "from {}",
    "maximum": "to {}",
    "maxLength": "at most {} characters",
    "maxItems": "at most {} items",
    "pattern": "`{}`",
}


class UnknownKeywordError(ValueError):
    """The schema has a keyword that the page would not show. The text names the field and the keyword."""


@dataclass(frozen=True, slots=True)
class Field:
    """Describe one field. ``path`` is dotted, with ``[]`` for the items of a list; ``rules`` are for people."""

    path: str
    type: str
    rules: tuple[str, ...]
    description: str


def fields(schema: Json, *, path: str) -> Iterator[Field]:
    """Yield a field and all that are below it, in the schema's order. Raises UnknownKeywordError."""
    yield _field(schema, path=path, is_required=False)
    yield from _below(schema, path=path)


def _below(schema: Json, *, path: str) -> Iterator[Field]:
    required = schema.get("required", ())
    for name, each in schema.get("properties", {}).items():
        inner = f"{path}.{name}"
        yield _field(each, path=inner, is_required=name in required)
        yield from _below(each, path=inner)
    if "items" in schema:
        yield from _below(schema["items"], path=f"{path}[]")


def _field(schema: Json, *, path: str, is_required: bool) -> Field:
    rules = (*(("required",) if is_required else ()), *_rules(schema, path=path))
    return Field(path, _type(schema, path=path), rules, schema.get("description", ""))


def _type(schema: Json, *, path: str) -> str:
    if schema.get("x-kubernetes-int-or-string"):
        return "integer or string"
    match schema:
        case {"type": "array", "items": items}:
            return f"list of {_type(items, path=f'{path}[]')}"
        case {"type": "object", "additionalProperties": dict() as values}:
            return f"map of {_type(values, path=path)}"
        case {"format": kind}:
            return str(kind)
        case {"type": kind}:
            return str(kind)
    raise UnknownKeywordError(f"{path} has no type")


def _rules(schema: Json, *, path: str) -> Iterator[str]:
    for keyword, value in schema.items():
        if keyword in _LIMITS:
            yield _LIMITS[keyword].format(value)
        elif keyword == "default":
            yield f"default `{value}`"
        elif keyword in _AT_LEAST_ONE and value == 1:
            yield "not empty"
        elif keyword == "enum":
            yield "one of " + ", ".join(f"`{each}`" for each in value)
        elif keyword == "x-kubernetes-validations":
            yield from (f"refused otherwise: *{rule['message']}*" for rule in value)
        elif keyword == "x-kubernetes-list-type" and value == "set":
            yield "each once"
        elif keyword not in {*_SHOWN_OTHERWISE, *_OF_LISTS, "x-kubernetes-int-or-string"}:
            raise UnknownKeywordError(f"{path}: {keyword} is not supported")
    if "items" in schema:
        yield from (f"each: {rule}" for rule in _rules(schema["items"], path=f"{path}[]"))
