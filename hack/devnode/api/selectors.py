"""Label and field selectors, as a list or watch request writes them. Pure."""

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from hack.devnode.api import errors

Object = dict[str, Any]
Predicate = Callable[[Object], bool]

_EVERYWHERE: Final = ("metadata.name", "metadata.namespace")
_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    "pods": (
        "spec.nodeName", "spec.restartPolicy", "spec.schedulerName", "spec.serviceAccountName", "spec.hostNetwork",
        "status.phase", "status.podIP", "status.nominatedNodeName",
    ),
    "nodes": ("spec.unschedulable",),
    "jobs": ("status.successful",),
    "namespaces": ("status.phase",),
    "resourceslices": ("spec.nodeName", "spec.driver"),
    "events": (
        "involvedObject.kind", "involvedObject.namespace", "involvedObject.name", "involvedObject.uid",
        "reason", "type", "source", "reportingComponent",
    ),
}  # fmt: skip

_SET = re.compile(r"(?P<key>[^\s!=,()]+)\s+(?P<op>in|notin)\s*\((?P<values>[^()]*)\)")
_EQUALITY = re.compile(r"(?P<key>[^\s!=,()]+)\s*(?P<op>==|=|!=)\s*(?P<value>[^\s!=,()]*)")
_EXISTS = re.compile(r"(?P<no>!?)\s*(?P<key>[^\s!=,()]+)")
_COMMAS = re.compile(r",(?![^()]*\))")


def labels(text: str) -> Predicate:
    """Return the predicate of a label selector; raises ApiError 400 when it cannot be parsed."""
    tests = [_label_test(part.strip()) for part in _COMMAS.split(text) if part.strip()]
    return lambda obj: all(test((obj.get("metadata") or {}).get("labels") or {}) for test in tests)


def fields(text: str, *, resource: str) -> Predicate:
    """Return the predicate of a field selector; raises ApiError 400 for a field that the resource has not."""
    tests = [_field_test(part.strip(), resource) for part in text.split(",") if part.strip()]
    return lambda obj: all(test(obj) for test in tests)


def _label_test(part: str) -> Callable[[Mapping[str, str]], bool]:
    if match := _SET.fullmatch(part):
        key, values = match["key"], {value.strip() for value in match["values"].split(",")}
        if match["op"] == "in":
            return lambda found: found.get(key) in values
        return lambda found: found.get(key) not in values
    if match := _EQUALITY.fullmatch(part):
        key, value = match["key"], match["value"]
        if match["op"] == "!=":
            return lambda found: found.get(key) != value
        return lambda found: found.get(key) == value
    if match := _EXISTS.fullmatch(part):
        key, wanted = match["key"], not match["no"]
        return lambda found: (key in found) is wanted
    raise errors.bad_request(f"unable to parse requirement: {part!r}")


def _field_test(part: str, resource: str) -> Predicate:
    match = _EQUALITY.fullmatch(part)
    if match is None:
        raise errors.bad_request(f"invalid selector: {part!r}; can't understand it")
    key, value = match["key"], match["value"]
    if key not in (*_EVERYWHERE, *_FIELDS.get(resource, ())):
        raise errors.bad_request(f"field label not supported: {key}")
    path = key.split(".")
    if match["op"] == "!=":
        return lambda obj: _field(obj, path) != value
    return lambda obj: _field(obj, path) == value


def _field(obj: Object, path: list[str]) -> str:
    found: Any = obj
    for step in path:
        found = found.get(step) if isinstance(found, dict) else None
    if isinstance(found, bool):
        return str(found).lower()
    return "" if found is None else str(found)
