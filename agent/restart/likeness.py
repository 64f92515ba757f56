"""Compare the OCI spec of a successor with the old container's, field by field. Pure.

The spec is what the low-level runtime carries out. The successor's config is a copy of the old one's, or is rebuilt
where the runtime does not return it (``agent.restart.rebuild``); this comparison proves that nothing was lost on the
way, before anything is stopped. The necessary differences are a closed list:

- the container's id in any text, and the random names of directories below one that the id names
- the path of its root, which the runtime chooses
- the runtime's records of what it was asked for (``_RECORDS``); what follows from them is compared
- the restart count and the restart's id in the annotations, kubemend's variables in the environment
- the successor's own file for the termination message
- resources: those that the old container has now count, too, and its current cpuset

What a config does not determine is the choice of runtime and node, and would be the same for kubelet's container:

- the version of the OCI spec
- the devices of a privileged container: those that the node has when it is created
- the filter of the seccomp profile ``RuntimeDefault``, which may change when the runtime is upgraded
- the level of an SELinux label that is requested without a level: the runtime chooses one for each container
- CPUs and memory nodes that are not requested: an NRI plugin chooses them
- CRI-O's own file at /run/.containerenv: it mounts none in pods from before its last start (1.34, container_create.go)

Lists that are sets (capabilities, groups, masked paths) are compared as sets; mounts and devices by their place. Hooks,
and rules for devices between which none of the other kind (allow, deny) is, may be in any order: the CDI library reads
requests for devices from annotations in a random order (``ParseAnnotations``).
"""

import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final

from kubemend.agent.restart import clone, keep
from kubemend.common.pb.runtime.v1 import api_pb2

_OWN: Final = "io.kubernetes.cri-o."
_RECORDS: Final = frozenset(
    {
        clone.RESTART_COUNT_ANNOTATION,
        clone.RESTART_ID_ANNOTATION,
        "io.kubernetes.cri.image-name",  # any of the image's names, before containerd 2
        f"{_OWN}Annotations",
        f"{_OWN}Created",
        f"{_OWN}LogPath",
        f"{_OWN}Metadata",
        f"{_OWN}MountPoint",
        f"{_OWN}Name",
        f"{_OWN}SomeNameOfTheImage",
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
_OF_CRIO: Final = "/run/.containerenv"
_CPUS: Final = "linux.resources.cpu.cpus"
_CHOSEN: Final = frozenset({_CPUS, "linux.resources.cpu.mems"})
"""Of the resources those that the node chooses if they are not requested."""
_RESOURCES: Final[Mapping[str, Callable[[api_pb2.LinuxContainerResources], object]]] = MappingProxyType(
    {
        "linux.resources.cpu.period": lambda made: made.cpu_period,
        "linux.resources.cpu.quota": lambda made: made.cpu_quota,
        "linux.resources.cpu.shares": lambda made: made.cpu_shares,
        _CPUS: lambda made: made.cpuset_cpus,
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


@dataclass(frozen=True, slots=True)
class Container:
    """A container as the runtime shows it. ``spec`` is kept out of ``repr``: it may contain secrets."""

    id: str
    spec: Mapping[str, Any] = field(repr=False)
    resources: api_pb2.LinuxContainerResources | None = None


def difference(
    old: Container, new: Container, *, config: api_pb2.ContainerConfig, termination_path: str | None = None
) -> str | None:
    """Return the first field by which the successor differs, and how; None if only by what must or may be.

    ``config`` is the successor's. ``termination_path`` is where its own termination-message file is mounted; None if it
    has none. The answer has no values of the specs.
    """
    try:
        before, after = (_normal(each, config, termination_path) for each in (old, new))
        return next(_Comparison(old, config).differences(before, after), None)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        return f"the specs cannot be compared ({type(error).__name__})"


def _normal(of: Container, config: api_pb2.ContainerConfig, termination_path: str | None) -> dict[str, Any]:
    """Return the spec without the differences that must or may be."""
    made = _without_id(of.spec, of.id)
    assert isinstance(made, dict)
    made["ociVersion"] = ""
    made["root"] = {**(made.get("root") or {}), "path": ""}
    made["annotations"] = {key: value for key, value in (made.get("annotations") or {}).items() if key not in _RECORDS}
    made["hooks"] = {kind: _in_order(hooks) for kind, hooks in (made.get("hooks") or {}).items()}
    made["mounts"] = _mounts(made.get("mounts") or (), termination_path=termination_path)
    if all(keep.place(mount.container_path) != _OF_CRIO for mount in config.mounts):
        made["mounts"].pop(_OF_CRIO, None)
    process, linux = ({**(made.get(key) or {})} for key in ("process", "linux"))
    made["process"], made["linux"] = process, linux
    process["env"] = _environment(process.get("env") or ())
    security = config.linux.security_context
    linux["devices"] = {} if security.privileged else {item["path"]: item for item in linux.get("devices") or ()}
    if security.seccomp.profile_type == api_pb2.SecurityProfile.RuntimeDefault and security.HasField("seccomp"):
        linux["seccomp"] = bool(linux.get("seccomp"))
    if security.HasField("selinux_options") and not security.selinux_options.level:
        process["selinuxLabel"] = _without_level(process.get("selinuxLabel") or "")
        linux["mountLabel"] = _without_level(linux.get("mountLabel") or "")
    return made


def _in_order(items: Iterable[Mapping[str, Any]] | None) -> list[Mapping[str, Any]]:
    return sorted(items or (), key=lambda item: repr(sorted(item.items())))


def _without_level(label: str) -> str:
    return ":".join(label.split(":")[:3])


def _without_id(value: Any, container_id: str) -> Any:
    match value:
        case str():
            if not container_id or container_id not in value:
                return value
            return _RANDOM.sub(rf"\1{_ID}", value.replace(container_id, _ID))
        case dict():
            return {key: _without_id(item, container_id) for key, item in value.items()}
        case list():
            return [_without_id(item, container_id) for item in value]
    return value


def _environment(items: Sequence[str]) -> dict[str, str]:
    """Return the variables as the process gets them: the last one of a name counts."""
    pairs = (item.partition("=") for item in items)
    return {key: f"={value}" for key, _, value in pairs if key not in _OWN_VARIABLES}


def _mounts(items: Sequence[Mapping[str, Any]], *, termination_path: str | None) -> dict[str, Any]:
    """Return the mounts by their place, and for each those that cover it. Several at one place keep their order."""
    found: dict[str, list[tuple[int, dict[str, Any]]]] = {}
    for number, item in enumerate(items):
        place = keep.place(item["destination"])
        mount = {**item}
        if termination_path is not None and place == keep.place(termination_path):
            mount["source"] = ""
        found.setdefault(place, []).append((number, mount))
    for place, around in _nested(found):
        for number, mount in found[place]:
            mount["covered by"] = [outer for outer in around if found[outer][-1][0] > number]
    return {
        place: mounts[0][1] if len(mounts) == 1 else [each for _, each in mounts] for place, mounts in found.items()
    }


def _nested(places: Iterable[str]) -> Iterator[tuple[str, list[str]]]:
    """Yield each place and those around it. In this order a place is followed by all that are in it."""
    around: list[str] = []
    for place in sorted(places, key=lambda each: each.replace("/", "\0")):
        while around and not keep.is_within(place, around[-1]):
            around.pop()
        yield place, list(around)
        around.append(place)


class _Comparison:
    """The comparison of two specs. Resources may be those that the old container has now, if that shows them."""

    def __init__(self, old: Container, config: api_pb2.ContainerConfig) -> None:
        self._present = old.resources if old.resources is not None else api_pb2.LinuxContainerResources()
        self._cpus = config.linux.resources.cpuset_cpus  # of the old one's cgroup (``clone.successor``)

    def differences(self, old: Any, new: Any, at: tuple[str, ...] = ()) -> Iterator[str]:
        if old == new or (_is_empty(old) and _is_empty(new)):
            return
        where = ".".join(at)
        if self._is_expected(where, new):
            return
        if isinstance(old, dict | None) and isinstance(new, dict | None):
            before, after = old or {}, new or {}
            for key in sorted({*before, *after}):
                yield from self.differences(before.get(key), after.get(key), (*at, key))
        elif isinstance(old, list | None) and isinstance(new, list | None):
            yield from self._of_lists(old or [], new or [], at)
        else:
            yield _described(where, old, new)

    def _of_lists(self, old: list[Any], new: list[Any], at: tuple[str, ...]) -> Iterator[str]:
        where = ".".join(at)
        if where in _SETS:
            old, new = sorted(set(old)), sorted(set(new))
        elif where == _DEVICE_RULES:
            old, new = _without_repetitions(old), _without_repetitions(new)
        for number, (before, after) in enumerate(zip(old, new, strict=False)):
            yield from self.differences(before, after, (*at, str(number)))
        if len(old) != len(new):
            yield _described(where, old, new, how=f"has {len(new)} items instead of {len(old)}")

    def _is_expected(self, where: str, new: Any) -> bool:
        """Return whether a resource of the successor is as the old container has it now, or was not requested."""
        if where == _HUGE_PAGES:
            return isinstance(new, list) and bool(new) and _huge_pages(new) == _wanted_huge_pages(self._present)
        if where == _UNIFIED:
            return isinstance(new, dict) and bool(new) and new == dict(self._present.unified)
        if (of := _RESOURCES.get(where)) is None:
            return False
        wanted = of(self._present)
        if where in _CHOSEN and not wanted:
            return True
        return bool(new) and (new == wanted or (where == _CPUS and new == self._cpus))


def _without_repetitions(rules: list[Any]) -> list[Any]:
    """Return the rules, those between which none of the other kind (allow, deny) is in one order, and each once."""
    runs = (_in_order(run) for _, run in itertools.groupby(rules, key=lambda rule: rule.get("allow")))
    return [rule for run in runs for rule, _ in itertools.groupby(run)]


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
