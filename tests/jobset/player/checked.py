"""Check parts of a scenario's YAML for their types; an error is one line with its place. Pure."""

import difflib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import yaml

Json = Mapping[str, Any]


class ScenarioError(ValueError):
    """A scenario cannot be played. The text has in one line the place, the error and the hint."""

    def __init__(self, where: str, *, what: str, hint: str) -> None:
        super().__init__(f"{where}: {what}; {hint}")


class _Loader(yaml.SafeLoader):
    """Refuse a duplicate key: one of two expectations would silently be ignored."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if key in seen:
                where = f"{key_node.start_mark.name}:{key_node.start_mark.line + 1}"
                raise ScenarioError(where, what=f"key {key!r} occurs twice", hint="leave one of them out")
            seen.add(key)
        return super().construct_mapping(node, deep=deep)


def load(text: str, where: str) -> Any:
    """Parse YAML. Raises ScenarioError."""
    loader = _Loader(text)
    loader.name = where
    try:
        return loader.get_single_data()
    except yaml.YAMLError as error:
        raise ScenarioError(where, what=" ".join(str(error).split()), hint="fix the YAML") from error
    finally:
        loader.dispose()


def mapping(value: object, where: str, *, known: Collection[str] = (), required: Collection[str] = ()) -> Json:
    """Return an object; ``known`` are all keys that it may have (empty: any)."""
    if not isinstance(value, Mapping):
        raise ScenarioError(where, what=f"is a {_kind(value)}", hint="write an object (KEY: VALUE)")
    for key in value:
        if known and key not in known:
            raise ScenarioError(where, what=f"unknown key {key!r}", hint=_known(str(key), known))
    for key in required:
        if key not in value:
            raise ScenarioError(where, what=f"lacks {key!r}", hint="give it a value")
    return value


def items(value: object, where: str) -> Sequence[Any]:
    """Return a list."""
    if not isinstance(value, list):
        raise ScenarioError(where, what=f"is a {_kind(value)}", hint="write a list ([A, B])")
    return value


def text(value: object, where: str) -> str:
    """Return a text that is not empty."""
    if not isinstance(value, str) or not value:
        raise ScenarioError(where, what=f"is a {_kind(value)}", hint="write a text")
    return value


def number(value: object, where: str) -> float:
    """Return a number."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise ScenarioError(where, what=f"is a {_kind(value)}", hint="write a number")
    return value


def whole(value: object, where: str) -> int:
    """Return a whole number."""
    if not isinstance(value, int) or isinstance(value, bool):
        raise ScenarioError(where, what=f"is a {_kind(value)}", hint="write a whole number")
    return value


def flag(value: object, where: str) -> bool:
    """Return a boolean."""
    if not isinstance(value, bool):
        raise ScenarioError(where, what=f"is a {_kind(value)}", hint="write true or false")
    return value


def texts(value: object, where: str) -> tuple[str, ...]:
    """Return texts: one, or a list of them."""
    if isinstance(value, str):
        return (text(value, where),)
    return tuple(text(each, f"{where}[{index}]") for index, each in enumerate(items(value, where)))


def one_of(value: object, where: str, known: Collection[str]) -> str:
    """Return a text that must be one of these."""
    found = text(value, where)
    if found not in known:
        raise ScenarioError(where, what=f"{found!r} is not known", hint=_known(found, known))
    return found


def _known(found: str, known: Collection[str]) -> str:
    if close := difflib.get_close_matches(found, known, n=1):
        return f"write {close[0]!r}"
    return f"write one of {', '.join(sorted(known))}"


def _kind(value: object) -> str:
    return "nothing" if value is None else type(value).__name__
