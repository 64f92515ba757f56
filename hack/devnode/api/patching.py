"""The three patch types that the API takes. Pure: the object that is patched stays as it is.

Strategic merge follows the ``patchMergeKey`` tags of k8s.io/api for the lists that pods, nodes and jobs have; lists
without one are replaced. Directives that nobody here sends are refused instead of being ignored.
"""

import copy
from collections.abc import Callable, Mapping
from typing import Any, Final

import jsonpatch

from hack.devnode.api import errors

Object = dict[str, Any]

_MERGE_KEYS: Final[Mapping[str, str]] = {
    "conditions": "type",
    "containers": "name",
    "initContainers": "name",
    "ephemeralContainers": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "env": "name",
    "imagePullSecrets": "name",
    "ownerReferences": "uid",
    "addresses": "type",
    "podIPs": "ip",
    "hostIPs": "ip",
    "taints": "",  # patchStrategy is atomic: replaced
}
_PRIMITIVE_MERGE: Final = frozenset({"finalizers"})  # merged as a set


def strategic(obj: Object, patch: Any) -> Object:
    """Apply a strategic merge patch."""
    if not isinstance(patch, dict):
        raise errors.bad_request("a strategic merge patch must be an object")
    return _merge_map(obj, patch)


def merge(obj: Object, patch: Any) -> Object:
    """Apply a JSON merge patch (RFC 7386)."""
    if not isinstance(patch, dict):
        raise errors.bad_request("a merge patch must be an object")
    result = dict(obj)
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, dict):
            below = result.get(key)
            result[key] = merge(below if isinstance(below, dict) else {}, value)
        else:
            result[key] = copy.deepcopy(value)
    return result


def json_patch(obj: Object, patch: Any) -> Object:
    """Apply a JSON patch (RFC 6902). A test that fails, or a path that is not there, is 422 as in the real server."""
    try:
        result: Object = jsonpatch.apply_patch(obj, patch)
    except jsonpatch.JsonPatchConflict as error:
        raise errors.ApiError(422, "Invalid", f"the server rejected our request due to an error: {error}") from error
    except jsonpatch.JsonPatchTestFailed as error:
        raise errors.ApiError(422, "Invalid", f"testing value failed: {error}") from error
    except (jsonpatch.JsonPatchException, jsonpatch.JsonPointerException, TypeError) as error:
        raise errors.bad_request(f"not a JSON patch: {error}") from error
    return result


BY_CONTENT_TYPE: Final[Mapping[str, Callable[[Object, Any], Object]]] = {
    "application/strategic-merge-patch+json": strategic,
    "application/merge-patch+json": merge,
    "application/json-patch+json": json_patch,
}


def _merge_map(obj: Object, patch: Object) -> Object:
    patch = dict(patch)
    order = {key.partition("/")[2]: patch.pop(key) for key in list(patch) if key.startswith("$setElementOrder/")}
    match patch.pop("$patch", "merge"):
        case "replace":
            return copy.deepcopy(patch)
        case "delete":
            return {}
        case "merge":
            pass
        case other:
            raise errors.bad_request(f"unknown $patch directive {other!r}")
    result = dict(obj)
    for key, value in patch.items():
        if key.startswith("$"):
            raise errors.cannot(f"the patch directive {key}", "only $patch and $setElementOrder are understood")
        if value is None:
            result.pop(key, None)
        else:
            result[key] = _merge_value(key, result.get(key), value)
    for key, wanted in order.items():
        if isinstance(result.get(key), list):
            result[key] = _ordered(result[key], wanted, _MERGE_KEYS.get(key, ""))
    return result


def _merge_value(key: str, old: Any, new: Any) -> Any:
    if isinstance(new, dict):
        return _merge_map(old if isinstance(old, dict) else {}, new)
    if not isinstance(new, list):
        return new
    before = old if isinstance(old, list) else []
    if key in _PRIMITIVE_MERGE:
        return [*before, *(item for item in new if item not in before)]
    merge_key = _MERGE_KEYS.get(key, "")
    if merge_key and all(isinstance(item, dict) for item in new):
        return _merge_list(before, new, merge_key)
    return copy.deepcopy(new)


def _merge_list(old: list[Object], new: list[Object], merge_key: str) -> list[Object]:
    if any(item.get("$patch") == "replace" for item in new):
        return [copy.deepcopy(item) for item in new if item.get("$patch") != "replace"]
    result = list(old)
    for item in new:
        if merge_key not in item:
            raise errors.bad_request(f"map: {item} does not contain declared merge key: {merge_key}")
        at = next((i for i, known in enumerate(result) if known.get(merge_key) == item[merge_key]), None)
        if item.get("$patch") == "delete":
            result = [known for known in result if known.get(merge_key) != item[merge_key]]
        elif at is None:
            result.append(_merge_map({}, item))
        else:
            result[at] = _merge_map(result[at], item)
    return result


def _ordered(items: list[Any], wanted: list[Any], merge_key: str) -> list[Any]:
    """Sort by ``$setElementOrder``; what it does not name keeps its place at the end."""
    keys = [item[merge_key] if merge_key and isinstance(item, dict) else item for item in wanted]

    def rank(item: Any) -> int:
        key = item.get(merge_key) if merge_key and isinstance(item, dict) else item
        return keys.index(key) if key in keys else len(keys)

    return sorted(items, key=rank)
