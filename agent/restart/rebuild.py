"""Rebuild the config of a container from its status and OCI spec. Pure.

CRI-O does not return the config that it was given: ``ContainerStatus(verbose)`` has the OCI spec, and whether the
container is privileged. CRI-O makes the spec from the config, the sandbox, the image and its own settings, so each
value of the spec can be requested explicitly: the whole command line, the whole environment, user and groups by number,
capabilities one by one. What the spec does not show is left out. A rebuilt config is therefore a proposal: the
spec of the container that is created from it must be the old one's (``agent.restart.likeness``).

Sources: CRI-O 1.34 ``server/container_create.go``, ``server/container_create_linux.go`` and
``internal/factory/container``.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, Final

from kubemend.agent.restart.clone import CloneRefusal, CloneRefusedError
from kubemend.common.pb.runtime.v1 import api_pb2
from kubemend.common.protobuf_json import json_format

_OWN: Final = "io.kubernetes.cri-o."  # pkg/annotations/internal.go
_MOST_ITEMS: Final = 10_000
"""Maximum length of a list or of a map in the spec; a privileged container has some hundred devices."""
_SIGNED: Final = range(-(2**31), 2**63)
_NATURAL: Final = range(2**63)
_UINT32: Final = range(2**32)
_NO_TEXT: Final = "\ufffd"  # Go writes it in JSON for bytes that are not UTF-8
_DEFAULT_APPARMOR: Final = "crio-default"
_SIGNALS: Final = frozenset(api_pb2.Signal.keys()) - {"RUNTIME_DEFAULT"}
_PROPAGATION: Final = {"rshared": api_pb2.PROPAGATION_BIDIRECTIONAL, "rslave": api_pb2.PROPAGATION_HOST_TO_CONTAINER}
_HUGE_PAGES: Final = "hugepageLimits"


def container_config(status: api_pb2.ContainerStatus, info: Mapping[str, Any]) -> dict[str, Any]:
    """Return a container's config, in the form in which containerd returns it.

    ``info`` is the verbose part of the status. Raises CloneRefusedError, which names the field, if ``info`` has no OCI
    spec or one that is not understood.
    """
    spec = _map(info, "runtimeSpec", "info")
    own = _texts_by_key(spec, "annotations", "spec")
    if f"{_OWN}ContainerID" not in own:
        raise CloneRefusedError(CloneRefusal.NO_CONFIG, "ContainerStatus(verbose) has no config, and no spec of CRI-O")
    if own[f"{_OWN}ContainerID"] != status.id:
        raise _malformed("info.runtimeSpec", "is another container's")
    process = _map(spec, "process", "spec")
    log = PurePosixPath(status.log_path)
    config = api_pb2.ContainerConfig(
        metadata=status.metadata,
        image=api_pb2.ImageSpec(
            image=own.get(f"{_OWN}Image") or status.image_id, user_specified_image=status.image.image
        ),
        command=_texts(process, "args", "process"),
        working_dir=_text(process, "cwd", "process"),
        labels=status.labels,
        annotations=status.annotations,
        log_path=f"{log.parent.name}/{log.name}" if log.name else "",
        tty=own.get(f"{_OWN}TTY") == "true",
        stdin=own.get(f"{_OWN}Stdin") == "true",
        stdin_once=own.get(f"{_OWN}StdinOnce") == "true",
        mounts=_mounts(status.mounts, spec=spec),
        devices=_devices(spec),
        linux=api_pb2.LinuxContainerConfig(
            resources=_resources(spec), security_context=_security_context(spec, privileged=_flag(info, "privileged"))
        ),
    )
    signal = own.get("org.opencontainers.image.stopSignal", "")
    if signal in _SIGNALS:
        config.stop_signal = api_pb2.Signal.Value(signal)
    made = json_format.MessageToDict(config, preserving_proto_field_name=True)
    # Protobuf's JSON has bytes in base64, which would leave the values ambiguous.
    made["envs"] = [{"key": key, "value": value} for key, value in _environment(process).items()]
    return made


def with_image(config: Mapping[str, Any], *, named: str) -> dict[str, Any]:
    """Return a rebuilt config with the image's name in the pod: CRI-O checks the image's signature by it."""
    return {**config, "image": {**config["image"], "user_specified_image": named}}


def with_cdi_devices(config: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    """Return a rebuilt config that requests these CDI devices, of which the spec shows only what they became."""
    return {**config, "CDI_devices": [{"name": name} for name in names]}


def sandbox_config(
    answer: api_pb2.PodSandboxStatusResponse, info: Mapping[str, Any]
) -> api_pb2.PodSandboxConfig | None:
    """Return the part of a sandbox's config that CRI-O reads to create a container; None if it is not returned.

    CRI-O knows the rest: cgroup, network, log directory and labels of the sandbox are its own records. ``info`` is the
    verbose part of the answer. Raises CloneRefusedError if that is not understood.
    """
    status = answer.status
    own = _texts_by_key(_map(info, "runtimeSpec", "info"), "annotations", "sandbox")
    if not status.metadata.uid or f"{_OWN}SandboxID" not in own:
        return None
    return api_pb2.PodSandboxConfig(
        metadata=status.metadata,
        labels=status.labels,
        annotations=status.annotations,
        log_directory=str(PurePosixPath(own[f"{_OWN}LogPath"]).parent) if own.get(f"{_OWN}LogPath") else "",
        linux=api_pb2.LinuxPodSandboxConfig(
            cgroup_parent=own.get(f"{_OWN}CgroupParent", ""),
            security_context=api_pb2.LinuxSandboxSecurityContext(
                namespace_options=status.linux.namespaces.options,
                privileged=own.get(f"{_OWN}PrivilegedRuntime") == "true",
            ),
        ),
    )


def _environment(process: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables as the process gets them: the last one of a name counts."""
    made = {}
    for number, item in enumerate(_texts(process, "env", "process")):
        key, equals, value = item.partition("=")
        if not (key and equals):
            raise _malformed(f"process.env[{number}]", "is not K=V")
        made[key] = value
    return made


def _mounts(shown: Iterable[api_pb2.Mount], *, spec: Mapping[str, Any]) -> list[api_pb2.Mount]:
    """Return the mounts with their id mappings, which only the spec has. A pod can have thousands.

    An image that is a volume is mounted only by its name in the pod, which CRI-O does not return.
    """
    items: dict[str, list[Mapping[str, Any]]] = {}
    for item in _items(spec, "mounts", "spec"):
        items.setdefault(_text(item, "destination", "mounts"), []).append(item)
    made = []
    for each in shown:
        if each.image.image and not each.image.user_specified_image:
            text = f"the runtime does not return the name of the image at {each.container_path}"
            raise CloneRefusedError(CloneRefusal.NO_CONFIG, text)
        mount = api_pb2.Mount()
        mount.CopyFrom(each)
        for item in items.get(each.container_path, ()):
            for kind, into in (("uidMappings", mount.uidMappings), ("gidMappings", mount.gidMappings)):
                into.extend(_id_mapping(mapping) for mapping in _items(item, kind, "mounts"))
        made.append(mount)
    return made


def _id_mapping(item: Mapping[str, Any]) -> api_pb2.IDMapping:
    return api_pb2.IDMapping(
        host_id=_whole(item, "hostID", "mounts", _UINT32),
        container_id=_whole(item, "containerID", "mounts", _UINT32),
        length=_whole(item, "size", "mounts", _UINT32),
    )


def _devices(spec: Mapping[str, Any]) -> list[api_pb2.Device]:
    """Return the devices with a rule of their own; a privileged container has all devices of the node without one.

    The path on the node is not in the spec. It is nearly always the same; where it is not, the numbers will differ.
    """
    linux, where = _map(spec, "linux", "spec"), "linux.resources.devices"
    rules = {
        _node(rule, where): _text(rule, "access", where)
        for rule in _items(_map(linux, "resources", "linux"), "devices", "linux.resources")
        if rule.get("allow") is True and rule.get("major") is not None
    }
    found = []
    for device in _items(linux, "devices", "linux"):
        access = rules.get(_node(device, "linux.devices"))
        if access is not None:
            path = _text(device, "path", "linux.devices")
            found.append(api_pb2.Device(container_path=path, host_path=path, permissions=access))
    return found


def _node(of: Mapping[str, Any], where: str) -> tuple[str, int, int]:
    """Return the type and the numbers of a device, or of the device that a rule is about."""
    return _text(of, "type", where), _whole(of, "major", where), _whole(of, "minor", where)


def _resources(spec: Mapping[str, Any]) -> api_pb2.LinuxContainerResources:
    where, pages = "linux.resources", f"linux.resources.{_HUGE_PAGES}"
    found = _map(_map(spec, "linux", "spec"), "resources", "linux")
    cpu, memory = _map(found, "cpu", where), _map(found, "memory", where)
    return api_pb2.LinuxContainerResources(
        cpu_period=_whole(cpu, "period", where),
        cpu_quota=_whole(cpu, "quota", where),
        cpu_shares=_whole(cpu, "shares", where),
        cpuset_cpus=_text(cpu, "cpus", where),
        cpuset_mems=_text(cpu, "mems", where),
        memory_limit_in_bytes=_whole(memory, "limit", where),
        memory_swap_limit_in_bytes=_whole(memory, "swap", where),
        oom_score_adj=_whole(_map(spec, "process", "spec"), "oomScoreAdj", "process"),
        unified=_texts_by_key(found, "unified", where),
        hugepage_limits=[
            api_pb2.HugepageLimit(
                page_size=_text(item, "pageSize", pages), limit=_whole(item, "limit", pages, _NATURAL)
            )
            for item in _items(found, _HUGE_PAGES, where)
        ],
    )


def _security_context(spec: Mapping[str, Any], *, privileged: bool) -> api_pb2.LinuxContainerSecurityContext:
    process, linux = _map(spec, "process", "spec"), _map(spec, "linux", "spec")
    user = _map(process, "user", "process")
    bounding = _texts(_map(process, "capabilities", "process"), "bounding", "process.capabilities")
    made = api_pb2.LinuxContainerSecurityContext(
        privileged=privileged,
        namespace_options=_namespaces(linux),
        run_as_user=api_pb2.Int64Value(value=_whole(user, "uid", "process.user")),
        run_as_group=api_pb2.Int64Value(value=_whole(user, "gid", "process.user")),
        supplemental_groups=_numbers(user, "additionalGids", "process.user"),
        supplemental_groups_policy=api_pb2.Strict,  # exactly these, whatever the image says
        readonly_rootfs=_flag(_map(spec, "root", "spec"), "readonly"),
        no_new_privs=_flag(process, "noNewPrivileges"),
        masked_paths=_texts(linux, "maskedPaths", "linux"),
        readonly_paths=_texts(linux, "readonlyPaths", "linux"),
        seccomp=_seccomp(spec),
        apparmor=_apparmor(_text(process, "apparmorProfile", "process")),
    )
    if not privileged:
        made.capabilities.drop_capabilities.append("ALL")
        made.capabilities.add_capabilities.extend(name.removeprefix("CAP_") for name in bounding)
    if label := _text(process, "selinuxLabel", "process"):
        parts = label.split(":", 3)
        if len(parts) < len(("user", "role", "type")):
            raise _malformed("process.selinuxLabel", "is not user:role:type:level")
        made.selinux_options.user, made.selinux_options.role, made.selinux_options.type = parts[:3]
        made.selinux_options.level = parts[3] if len(parts) > len(("user", "role", "type")) else ""
    return made


def _namespaces(linux: Mapping[str, Any]) -> api_pb2.NamespaceOption:
    """Return the namespaces: none in the spec is the node's, a path is the pod's."""
    where = "linux.namespaces"
    paths = {_text(item, "type", where): _text(item, "path", where) for item in _items(linux, "namespaces", "linux")}
    pid = api_pb2.NODE if "pid" not in paths else api_pb2.POD if paths["pid"] else api_pb2.CONTAINER
    return api_pb2.NamespaceOption(
        network=api_pb2.POD if "network" in paths else api_pb2.NODE,
        ipc=api_pb2.POD if "ipc" in paths else api_pb2.NODE,
        pid=pid,
    )


def _seccomp(spec: Mapping[str, Any]) -> api_pb2.SecurityProfile | None:
    profile = _texts_by_key(spec, "annotations", "spec").get(f"{_OWN}SeccompProfilePath", "")
    if profile.startswith("/"):
        return api_pb2.SecurityProfile(profile_type=api_pb2.SecurityProfile.Localhost, localhost_ref=profile)
    if profile in ("RuntimeDefault", "Unconfined"):
        return api_pb2.SecurityProfile(profile_type=api_pb2.SecurityProfile.ProfileType.Value(profile))
    return None


def _apparmor(profile: str) -> api_pb2.SecurityProfile | None:
    if not profile:
        return None
    if profile == _DEFAULT_APPARMOR:
        return api_pb2.SecurityProfile(profile_type=api_pb2.SecurityProfile.RuntimeDefault)
    if profile == "unconfined":
        return api_pb2.SecurityProfile(profile_type=api_pb2.SecurityProfile.Unconfined)
    return api_pb2.SecurityProfile(profile_type=api_pb2.SecurityProfile.Localhost, localhost_ref=profile)


def _malformed(where: str, how: str) -> CloneRefusedError:
    return CloneRefusedError(CloneRefusal.UNSUPPORTED, f"{where} of the runtime's verbose answer {how}")


def _map(of: Mapping[str, Any], key: str, where: str) -> Mapping[str, Any]:
    value = of.get(key)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise _malformed(f"{where}.{key}", "is not an object")
    return value


def _list(of: Mapping[str, Any], key: str, where: str) -> list[Any]:
    value = of.get(key)
    if value is None:
        return []
    if not isinstance(value, list):
        raise _malformed(f"{where}.{key}", "is not a list")
    if len(value) > _MOST_ITEMS:
        raise _malformed(f"{where}.{key}", f"has more than {_MOST_ITEMS} items")
    return value


def _items(of: Mapping[str, Any], key: str, where: str) -> list[Mapping[str, Any]]:
    found = _list(of, key, where)
    if not all(isinstance(item, dict) for item in found):
        raise _malformed(f"{where}.{key}", "is not a list of objects")
    return found


def _texts(of: Mapping[str, Any], key: str, where: str) -> list[str]:
    return [_checked(item, f"{where}.{key}") for item in _list(of, key, where)]


def _texts_by_key(of: Mapping[str, Any], key: str, where: str) -> dict[str, str]:
    found = _map(of, key, where)
    if len(found) > _MOST_ITEMS:
        raise _malformed(f"{where}.{key}", f"has more than {_MOST_ITEMS} items")
    return {_checked(name, f"{where}.{key}"): _checked(value, f"{where}.{key}") for name, value in found.items()}


def _text(of: Mapping[str, Any], key: str, where: str) -> str:
    value = of.get(key)
    return "" if value is None else _checked(value, f"{where}.{key}")


def _checked(value: object, where: str) -> str:
    """Return a text from which nothing was lost on the way."""
    if not isinstance(value, str):
        raise _malformed(where, "is not text")
    if _NO_TEXT in value:
        raise _malformed(where, "is not UTF-8")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise _malformed(where, "is not UTF-8") from None
    return value


def _numbers(of: Mapping[str, Any], key: str, where: str) -> list[int]:
    return [_number(item, f"{where}.{key}") for item in _list(of, key, where)]


def _whole(of: Mapping[str, Any], key: str, where: str, among: range = _SIGNED) -> int:
    value = of.get(key)
    return 0 if value is None else _number(value, f"{where}.{key}", among)


def _number(value: object, where: str, among: range = _SIGNED) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value not in among:
        raise _malformed(where, "is not a number in range")
    return value


def _flag(of: Mapping[str, Any], key: str) -> bool:
    value = of.get(key)
    if value is not None and not isinstance(value, bool):
        raise _malformed(key, "is not true or false")
    return bool(value)
