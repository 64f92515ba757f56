"""Compare the OCI spec of a successor with the old container's, field by field. Pure.

The spec is what the low-level runtime carries out. Where the runtime does not return a container's config, the
successor's config is rebuilt (``agent.restart.rebuild``), and this comparison proves it before anything is stopped.
The necessary differences are a closed list:

- the container's id in any text, and the random names of directories below one that the id names
- the path of its root, which the runtime chooses
- the runtime's records of what it was asked for (``_RECORDS``); what follows from them is compared
- the restart count and the restart's id in the annotations, kubemend's variables in the environment
- the successor's own file for the termination message
- resources that were changed in place since the old container was created: then those in the successor's config count

Lists that are sets (capabilities, groups, masked paths) are compared as sets, and mounts by their place.
"""

import posixpath
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from kubemend.agent.restart import clone
from kubemend.common.pb.runtime.v1 import api_pb2

_OWN: Final = "io.kubernetes.cri-o."
_RECORDS: Final = frozenset(
    {
        clone.RESTART_COUNT_ANNOTATION,
        clone.RESTART_ID_ANNOTATION,
        f"{_OWN}Annotations",
        f"{_OWN}Created",
        f"{_OWN}LogPath",
        f"{_OWN}Metadata",
        f"{_OWN}MountPoint",
        f"{_OWN}Name",
        f"{_OWN}Volumes",
    }
)
_OWN_VARIABLES: Final = frozenset({clone.RESTART_COUNT_ENV, clone.RESTART_REASON_ENV})
_SETS: Final = frozenset(
    {
        *(f"process.capabilities.{kind}" for kind in ("ambient", "bounding", "effective", "inheritable", "permitted")),
        "process.user.additionalGids",
        "linux.maskedPaths",
        "linux.readonlyPaths",
    }
)
_DEVICE_RULES: Final = "linux.resources.devices"
_HUGE_PAGES: Final = "linux.resources.hugepageLimits"
_UNIFIED: Final = "linux.resources.unified"
_RESOURCES: Final[Mapping[str, Callable[[api_pb2.LinuxContainerResources], object]]] = MappingProxyType(
    {
        "linux.resources.cpu.period": lambda made: made.cpu_period,
        "linux.resources.cpu.quota": lambda made: made.cpu_quota,
        "linux.resources.cpu.shares": lambda made: made.cpu_shares,
        "linux.resources.cpu.cpus": lambda made: made.cpuset_cpus,
        "linux.resources.cpu.mems": lambda made: made.cpuset_mems,
        "linux.resources.memory.limit": lambda made: made.memory_limit_in_bytes,
        "linux.resources.memory.swap": lambda made: made.memory_swap_limit_in_bytes,
        "process.oomScoreAdj": lambda made: made.oom_score_adj,
    }
)
_ID: Final = "<id>"
_RANDOM: Final = re.compile(r"(?<=<id>)(/[^,:]{0,200}?/)[0-9a-f]{64}(?![0-9a-f])")
_LONGEST: Final = 200
"""Characters of a field's name: pods choose the names of variables and the places of mounts."""
_DEEPEST: Final = 64


@dataclass(frozen=True, slots=True)
class Original:
    """The container that a successor must be like. ``spec`` is kept out of ``repr``: it may contain secrets."""

    id: str
    spec: Mapping[str, Any] = field(repr=False)


def difference(
    old: Original, new: Original, *, config: api_pb2.ContainerConfig, termination_path: str | None = None
) -> str | None:
    """Return the first field by which the successor differs, and how; None if only by what must be.

    ``config`` is the successor's. ``termination_path`` is where its own termination-message file is mounted; None if it
    has none. The answer has no values of the specs.
    """
    try:
        before, after = _normal(old, termination_path), _normal(new, termination_path)
        return next(_differences(before, after, resources=config.linux.resources), None)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        return f"the specs cannot be compared ({type(error).__name__})"


def _normal(of: Original, termination_path: str | None) -> dict[str, Any]:
    """Return the spec without the differences that must be."""
    made = _without_id(of.spec, of.id)
    assert isinstance(made, dict)
    made["root"] = {**(made.get("root") or {}), "path": ""}
    made["annotations"] = {key: value for key, value in (made.get("annotations") or {}).items() if key not in _RECORDS}
    process = {**(made.get("process") or {})}
    process["env"] = _environment(process.get("env") or ())
    made["process"] = process
    made["mounts"] = _mounts(made.get("mounts") or (), termination_path=termination_path)
    return made


def _without_id(value: Any, container_id: str, depth: int = 0) -> Any:
    if depth > _DEEPEST:
        raise ValueError("too deep")
    match value:
        case str():
            if not container_id or container_id not in value:
                return value
            return _RANDOM.sub(rf"\1{_ID}", value.replace(container_id, _ID))
        case dict():
            return {key: _without_id(item, container_id, depth + 1) for key, item in value.items()}
        case list():
            return [_without_id(item, container_id, depth + 1) for item in value]
    return value


def _environment(items: Sequence[str]) -> dict[str, str]:
    """Return the variables as the process gets them: the last one of a name counts."""
    pairs = (item.partition("=") for item in items)
    return {key: f"={value}" for key, _, value in pairs if key not in _OWN_VARIABLES}


def _mounts(items: Sequence[Mapping[str, Any]], *, termination_path: str | None) -> dict[str, Any]:
    """Return the mounts by their place, and for each those that cover it. Several at one place keep their order."""
    found: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for number, item in enumerate(items):
        place = posixpath.normpath(item["destination"])
        mount = {**item}
        if termination_path is not None and place == posixpath.normpath(termination_path):
            mount["source"] = ""
        found.setdefault(place, []).append((number, mount))
    for place, mounts in found.items():
        for number, mount in mounts:
            parents = [parent for parent in _parents(place) if parent in found]
            mount["covered by"] = [parent for parent in parents if found[parent][-1][0] > number]
    return {
        place: mounts[0][1] if len(mounts) == 1 else [each for _, each in mounts] for place, mounts in found.items()
    }


def _parents(place: str) -> Iterator[str]:
    while place not in ("/", "", "."):
        place = posixpath.dirname(place)
        yield place


def _differences(
    old: Any, new: Any, *, resources: api_pb2.LinuxContainerResources, at: tuple[str, ...] = ()
) -> Iterator[str]:
    where = ".".join(at)
    if _is_empty(old) and _is_empty(new):
        return
    if (of := _RESOURCES.get(where)) is not None and new and new == of(resources):
        return
    if where == _UNIFIED and isinstance(new, dict) and new == dict(resources.unified):
        return
    if where == _HUGE_PAGES and isinstance(new, list) and _huge_pages(new) == _wanted_huge_pages(resources):
        return
    if isinstance(old, dict | None) and isinstance(new, dict | None):
        before, after = old or {}, new or {}
        for key in sorted({*before, *after}):
            yield from _differences(before.get(key), after.get(key), resources=resources, at=(*at, key))
    elif isinstance(old, list | None) and isinstance(new, list | None):
        yield from _differences_of_lists(old or [], new or [], resources=resources, at=at)
    elif old != new or type(old) is not type(new):
        yield _described(where, old, new)


def _differences_of_lists(
    old: list[Any], new: list[Any], *, resources: api_pb2.LinuxContainerResources, at: tuple[str, ...]
) -> Iterator[str]:
    where = ".".join(at)
    if where in _SETS:
        old, new = sorted(set(old)), sorted(set(new))
    elif where == _DEVICE_RULES:
        old, new = _without_repetitions(old), _without_repetitions(new)
    for number, (before, after) in enumerate(zip(old, new, strict=False)):
        yield from _differences(before, after, resources=resources, at=(*at, str(number)))
    if len(old) != len(new):
        yield _described(where, old, new, how=f"has {len(new)} items instead of {len(old)}")


def _without_repetitions(rules: list[Any]) -> list[Any]:
    """Return the rules without those that repeat one since which none of the other kind (allow, deny) came."""
    made: list[Any] = []
    since: set[str] = set()
    for rule in rules:
        if made and made[-1].get("allow") != rule.get("allow"):
            since.clear()
        if (text := repr(sorted(rule.items()))) not in since:
            since.add(text)
            made.append(rule)
    return made


def _huge_pages(limits: list[Any]) -> dict[str, int]:
    return {item["pageSize"]: item["limit"] for item in limits}


def _wanted_huge_pages(resources: api_pb2.LinuxContainerResources) -> dict[str, int]:
    return {item.page_size: item.limit for item in resources.hugepage_limits}


def _is_empty(value: Any) -> bool:
    return value is None or value is False or value == "" or value == [] or value == {}


def _described(where: str, old: Any, new: Any, *, how: str = "") -> str:
    if not how:
        how = "is missing" if _is_empty(new) else "is new" if _is_empty(old) else "differs"
    name = where if len(where) <= _LONGEST else f"{where[:_LONGEST]}…"
    return f"{name if name.isprintable() else ascii(name)} {how}"
