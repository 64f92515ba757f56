"""Build kubelet's sandbox and container configs with its labels and annotations. Pure.

After ``kuberuntime_sandbox.go``, ``kuberuntime_container.go`` and ``labels.go``. Left out: environment variables that
are not literal, DNS settings (the runtime copies the node's resolv.conf), SELinux, AppArmor and swap.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kubemend.common.pb.runtime.v1 import api_pb2 as cri
from tests.devnode.podconfig import hashing, quantities
from tests.devnode.podconfig.spec import Container, Json, Pod

POD_NAME, POD_NAMESPACE, POD_UID = (f"io.kubernetes.pod.{key}" for key in ("name", "namespace", "uid"))
CONTAINER_NAME = "io.kubernetes.container.name"
HASH, RESTART_COUNT = "io.kubernetes.container.hash", "io.kubernetes.container.restartCount"
MESSAGE_PATH = "io.kubernetes.container.terminationMessagePath"
MESSAGE_POLICY = "io.kubernetes.container.terminationMessagePolicy"
DEFAULT_MESSAGE_PATH, DEFAULT_MESSAGE_POLICY = "/dev/termination-log", "File"

_MAX_HOSTNAME = 63
_MASKED = (
    "/proc/asound",
    "/proc/acpi",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
)
_READ_ONLY = ("/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger")


@dataclass(frozen=True, slots=True)
class Mount:
    """Describe one bind mount of a container."""

    host: Path
    container: str
    read_only: bool = False


def pod_log_directory(root: Path, pod: Pod) -> Path:
    """Return ``<root>/<namespace>_<name>_<uid>``."""
    return root / f"{pod.namespace}_{pod.name}_{pod.uid}"


def pod_cgroup(root: str, pod: Pod) -> str:
    """Return kubelet's name for the pod's cgroup, such as ``/<root>/kubepods/besteffort/pod<uid>``."""
    qos = quantities.qos_class([dict(container.raw) for container in pod.mains])
    parts = [root.strip("/"), "kubepods", "" if qos == "Guaranteed" else qos.lower(), f"pod{pod.uid}"]
    return "/" + "/".join(part for part in parts if part)


def sandbox_config(pod: Pod, *, attempt: int, pod_logs: Path, cgroup_parent: str) -> cri.PodSandboxConfig:
    """Return the config of the pod's sandbox; ``attempt`` counts the sandboxes of the pod.

    ``cgroup_parent`` is the pod's cgroup as the cgroup driver has it (``devnode.cgroups.parent``).
    """
    metadata = pod.raw["metadata"]
    security = pod.spec.get("securityContext") or {}
    context = cri.LinuxSandboxSecurityContext(
        namespace_options=_namespaces(pod),
        privileged=any(_privileged(container) for container in pod.mains),
        supplemental_groups=_groups(pod),
        seccomp=cri.SecurityProfile(profile_type=cri.SecurityProfile.RuntimeDefault),
        run_as_user=_int64(security.get("runAsUser")),
        run_as_group=_int64(security.get("runAsGroup")),
    )
    return cri.PodSandboxConfig(
        metadata=cri.PodSandboxMetadata(name=pod.name, uid=pod.uid, namespace=pod.namespace, attempt=attempt),
        hostname="" if pod.host_network else (pod.spec.get("hostname") or pod.name)[:_MAX_HOSTNAME],
        log_directory=str(pod_log_directory(pod_logs, pod)),
        labels={**(metadata.get("labels") or {}), **_pod_labels(pod)},
        annotations=metadata.get("annotations") or {},
        linux=cri.LinuxPodSandboxConfig(cgroup_parent=cgroup_parent, security_context=context),
    )


@dataclass(frozen=True, slots=True)
class Launch:
    """Hold the values of each start: the attempt, the image, the mounts on disk."""

    attempt: int
    image_ref: str
    mounts: Sequence[Mount]


def container_config(container: Container, *, pod: Pod, launch: Launch) -> cri.ContainerConfig:
    """Return the config of one container, whose environment must be literal."""
    raw = container.raw
    return cri.ContainerConfig(
        metadata=cri.ContainerMetadata(name=container.name, attempt=launch.attempt),
        image=cri.ImageSpec(image=launch.image_ref, user_specified_image=container.image),
        command=raw.get("command") or (),
        args=raw.get("args") or (),
        working_dir=raw.get("workingDir", ""),
        envs=[cri.KeyValue(key=item["name"], value=item["value"].encode()) for item in raw.get("env") or ()],
        mounts=[
            cri.Mount(host_path=str(item.host), container_path=item.container, readonly=item.read_only)
            for item in launch.mounts
        ],
        labels={**_pod_labels(pod), CONTAINER_NAME: container.name},
        annotations=container_annotations(container, pod=pod, attempt=launch.attempt),
        log_path=f"{container.name}/{launch.attempt}.log",
        stdin=bool(raw.get("stdin")),
        stdin_once=bool(raw.get("stdinOnce")),
        tty=bool(raw.get("tty")),
        linux=cri.LinuxContainerConfig(
            resources=_resources(container, pod), security_context=_container_security(container, pod)
        ),
    )


def container_annotations(container: Container, *, pod: Pod, attempt: int) -> dict[str, str]:
    """Return kubelet's annotations on a container: all that it reads back after its own restart."""
    raw, metadata = container.raw, pod.raw["metadata"]
    made = {
        HASH: hashing.container_hash(container),
        RESTART_COUNT: str(attempt),
        MESSAGE_PATH: raw.get("terminationMessagePath", DEFAULT_MESSAGE_PATH),
        MESSAGE_POLICY: raw.get("terminationMessagePolicy", DEFAULT_MESSAGE_POLICY),
    }
    if metadata.get("deletionGracePeriodSeconds") is not None:
        made["io.kubernetes.pod.deletionGracePeriod"] = str(metadata["deletionGracePeriodSeconds"])
    if pod.spec.get("terminationGracePeriodSeconds") is not None:
        made["io.kubernetes.pod.terminationGracePeriod"] = str(pod.spec["terminationGracePeriodSeconds"])
    if (hook := container.hook("preStop")) is not None:
        made["io.kubernetes.container.preStopHandler"] = _compact(hook)
    if raw.get("ports"):
        made["io.kubernetes.container.ports"] = _compact(raw["ports"])
    return made


def _pod_labels(pod: Pod) -> dict[str, str]:
    return {POD_NAME: pod.name, POD_NAMESPACE: pod.namespace, POD_UID: pod.uid}


def _compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":"))


def _int64(value: int | None) -> cri.Int64Value | None:
    return cri.Int64Value(value=value) if value is not None else None


def _namespaces(pod: Pod) -> cri.NamespaceOption:
    own_or_shared = cri.POD if pod.spec.get("shareProcessNamespace") else cri.CONTAINER
    return cri.NamespaceOption(
        network=cri.NODE if pod.host_network else cri.POD,
        pid=cri.NODE if pod.spec.get("hostPID") else own_or_shared,
        ipc=cri.NODE if pod.spec.get("hostIPC") else cri.POD,
    )


def _groups(pod: Pod) -> list[int]:
    security = pod.spec.get("securityContext") or {}
    groups = list(security.get("supplementalGroups") or ())
    return [security["fsGroup"], *groups] if security.get("fsGroup") is not None else groups


def _privileged(container: Container) -> bool:
    return bool((container.raw.get("securityContext") or {}).get("privileged"))


def _container_security(container: Container, pod: Pod) -> cri.LinuxContainerSecurityContext:
    own: Json = container.raw.get("securityContext") or {}
    both: Json = {**(pod.spec.get("securityContext") or {}), **own}
    privileged = _privileged(container)
    capabilities = own.get("capabilities") or {}
    return cri.LinuxContainerSecurityContext(
        capabilities=cri.Capability(
            add_capabilities=capabilities.get("add") or (), drop_capabilities=capabilities.get("drop") or ()
        ),
        privileged=privileged,
        namespace_options=_namespaces(pod),
        run_as_user=_int64(both.get("runAsUser", 0)),
        run_as_group=_int64(both.get("runAsGroup")),
        supplemental_groups=_groups(pod),
        readonly_rootfs=bool(own.get("readOnlyRootFilesystem")),
        no_new_privs=own.get("allowPrivilegeEscalation") is False,
        seccomp=cri.SecurityProfile(profile_type=cri.SecurityProfile.Unconfined),
        masked_paths=() if privileged else _MASKED,
        readonly_paths=() if privileged else _READ_ONLY,
    )


def _resources(container: Container, pod: Pod) -> cri.LinuxContainerResources:
    qos = quantities.qos_class([dict(item.raw) for item in pod.mains])
    resources = quantities.cgroup_limits(container.raw.get("resources") or {})
    resources.oom_score_adj = {"Guaranteed": -997, "Burstable": 999, "BestEffort": 1000}[qos]
    return resources
