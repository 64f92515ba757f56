"""Write a tree of a manifest, with conditions and values, as a Helm template."""

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import yaml

from hack.chart.conditional import ABSENT, Choice, FromValues, When, unless

NAMESPACE: Final = "{{ .Release.Namespace }}"
IMAGE: Final = '{{ include "kubemend.image" . }}'

_PLAIN: Final = re.compile(r"[A-Za-z/$][A-Za-z0-9./_$()-]*")
_NAMESPACE: Final = "kubemend"
_IN_NAMESPACE: Final = (
    (re.compile(rf"(system:serviceaccount:){_NAMESPACE}(?=:)"), rf"\1{NAMESPACE}"),
    (re.compile(rf"(kubemend-hub\.){_NAMESPACE}(?=\.svc)"), rf"\1{NAMESPACE}"),
    (re.compile(rf"\b{_NAMESPACE}(?=/kubemend-agent\b)"), NAMESPACE),
    (re.compile(rf"(request\.namespace [!=]= '){_NAMESPACE}(?=')"), rf"\1{NAMESPACE}"),
)
"""Where text names the namespace of the manifests, and how it names the release's."""


def text(tree: Mapping[str, Any]) -> str:
    """Return a manifest as a template, with the release's namespace in place of the manifests'."""
    return "\n".join(_map(tree, 0)) + "\n"


def when(condition: str, body: str) -> str:
    """Return a template that is empty unless the condition holds."""
    return f"{{{{- if {condition} }}}}\n{body}{{{{- end }}}}\n"


def _map(tree: Mapping[str, Any], indent: int) -> Iterator[str]:
    for key, value in tree.items():
        yield from _entry(key, value, indent)


def _entry(key: str, value: Any, indent: int) -> Iterator[str]:
    space = " " * indent
    if isinstance(value, Choice):
        yield f"{space}{{{{- if {value.condition if value.then is not ABSENT else unless(value.condition)} }}}}"
        yield from _entry(key, value.then if value.then is not ABSENT else value.otherwise, indent)
        if ABSENT not in (value.then, value.otherwise):
            yield f"{space}{{{{- else }}}}"
            yield from _entry(key, value.otherwise, indent)
        yield f"{space}{{{{- end }}}}"
    elif isinstance(value, FromValues) and value.scalar:
        yield f"{space}{key}: {{{{ {value.path} }}}}"
    elif isinstance(value, FromValues):
        yield f"{space}{{{{- with {value.path} }}}}"
        yield f"{space}{key}:"
        yield f"{space}  {{{{- toYaml . | nindent {indent + 2} }}}}"
        yield f"{space}{{{{- end }}}}"
    elif isinstance(value, Mapping) and value:
        yield f"{space}{_scalar(key)}:"
        yield from _map(value, indent + 2)
    elif isinstance(value, list) and value:
        yield f"{space}{_scalar(key)}:"
        yield from _list(value, indent + 2)
    elif isinstance(value, str) and key == "namespace" and value == _NAMESPACE:
        yield f"{space}{key}: {_scalar(NAMESPACE)}"
    else:
        first, *more = _value(value, indent + 2)
        yield f"{space}{_scalar(key)}: {first}"
        yield from more


def _list(items: list[Any], indent: int) -> Iterator[str]:
    space = " " * indent
    for item in items:
        if isinstance(item, When):
            yield f"{space}{{{{- if {item.condition} }}}}"
            yield from _list([item.item], indent)
            yield f"{space}{{{{- end }}}}"
        elif isinstance(item, FromValues):
            yield f"{space}{{{{- with {item.path} }}}}"
            yield f"{space}{{{{- toYaml . | nindent {indent} }}}}"
            yield f"{space}{{{{- end }}}}"
        elif isinstance(item, Mapping) and item:
            first, *more = _map(item, indent + 2)
            if first.lstrip().startswith("{{"):  # a conditional first field would leave the dash alone
                yield f"{space}-"
                yield first
            else:
                yield f"{space}- {first.lstrip()}"
            yield from more
        else:
            first, *more = _value(item, indent + 2)
            yield f"{space}- {first}"
            yield from more


def _value(value: Any, indent: int) -> list[str]:
    """Return the lines of a scalar, or of an empty map or list; the first one has no indent."""
    if not isinstance(value, str):
        return [json.dumps(value)]
    if "\n" not in value or value.startswith((" ", "\n")) or value.endswith("\n\n"):
        return [_scalar(value)]
    lines = [f"{' ' * indent}{line}" if line else "" for line in _escaped(value).removesuffix("\n").split("\n")]
    return ["|" if value.endswith("\n") else "|-", *lines]


def _scalar(value: str) -> str:
    if value == NAMESPACE:  # a namespace may be called 123 or true
        return "{{ quote .Release.Namespace }}"
    if value == IMAGE:
        return value
    if _PLAIN.fullmatch(value) and yaml.safe_load(value) == value:
        return _escaped(value)
    return _escaped(json.dumps(value, ensure_ascii=False))


def _escaped(value: str) -> str:
    """Return text of a manifest as text of a template."""
    value = value.replace("{{", "{{`{{`}}")
    for pattern, replacement in _IN_NAMESPACE:
        value = pattern.sub(replacement, value)
    return value
