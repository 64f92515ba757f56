"""Generate the kustomization with which the tests install kubemend: the published one, with changes for a dev node.

Each change has its reason; there are no others. The controller is installed as published.
"""

import os
import platform
from pathlib import Path
from typing import Any, Final

import yaml

from hack.devnode import layout
from hack.fakenvml import control as nvml_control
from tests.unit.daemonset import manifests

DAEMONSET: Final = manifests.REPOSITORY / "daemonset"
_AGENT: Final = {"kind": "DaemonSet", "name": "kubemend-agent"}
_TEMPLATE: Final = "/spec/template/spec"
_CONTAINER: Final = f"{_TEMPLATE}/containers/0"

Json = dict[str, Any]


def write(directory: Path, *, node: layout.NodeLayout, tag: str) -> Path:
    """Write the kustomization for a cluster of one dev node, and return its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    wanted = {
        "resources": [os.path.relpath(DAEMONSET, directory)],
        "images": [{"name": "kubemend", "newTag": tag}],
        "patches": [{"target": _AGENT, "patch": yaml.safe_dump(_patch(_published(), node))}],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(wanted))
    return directory


def prepare(node: layout.NodeLayout) -> None:
    """Create the directories of a real node: the driver's, with the fake NVML, and the state's."""
    library = _driver(node) / "lib" / f"{platform.machine()}-linux-gnu"
    library.mkdir(parents=True)
    (library / nvml_control.LIBRARY).hardlink_to(node.nvml_dir / nvml_control.LIBRARY)


def state(node: layout.NodeLayout) -> Path:
    """Return the agent's state directory on the node: it stands for /var/lib/kubemend."""
    return node.root / "var-lib-kubemend"


def _driver(node: layout.NodeLayout) -> Path:
    return node.root / "usr"


def _published() -> Json:
    (found,) = [each for each in manifests.build(DAEMONSET) if each["kind"] == "DaemonSet"]
    pod: Json = found["spec"]["template"]["spec"]
    return pod


def _patch(pod: Json, node: layout.NodeLayout) -> list[Json]:
    return [*_volumes(pod, node), *_mounts(pod, node), *_environment(pod, node), *_probes()]


def _volumes(pod: Json, node: layout.NodeLayout) -> list[Json]:
    """A dev node lies in a directory of its machine, so that several nodes run side by side and leave nothing."""
    places = {
        "runtime": node.containerd_socket.parent,
        "pod-resources": node.pod_resources_socket.parent,
        "kubelet-pods": node.kubelet_root / "pods",
        "pod-logs": node.pod_logs,
        "log-links": node.container_log_links,
        "state": state(node),
        "driver": _driver(node),  # the fake NVML lies at the image's path of the real one
        "driver-container": node.root / "run-nvidia",
    }
    names = [volume["name"] for volume in pod["volumes"]]
    return [_replace(f"{_TEMPLATE}/volumes/{names.index(name)}/hostPath/path", str(places[name])) for name in places]


def _mounts(pod: Json, node: layout.NodeLayout) -> list[Json]:
    """The runtime names paths of its machine, and they must be valid inside, as daemonset.yaml requires."""
    places = {
        "runtime": node.containerd_socket.parent,
        "pod-resources": node.pod_resources_socket.parent,
        "kubelet-pods": node.kubelet_root / "pods",
        "pod-logs": node.pod_logs,
        "log-links": node.container_log_links,
    }
    names = [mount["name"] for mount in pod["containers"][0]["volumeMounts"]]
    return [
        _replace(f"{_CONTAINER}/volumeMounts/{names.index(name)}/mountPath", str(place))
        for name, place in places.items()
    ]


def _environment(pod: Json, node: layout.NodeLayout) -> list[Json]:
    address = {"name": "HOST_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.hostIP"}}}
    settings = {
        # The same directories once more.
        "CONTAINER_RUNTIME_ENDPOINT": str(node.containerd_socket),
        "KUBEMEND_POD_RESOURCES_SOCKET": str(node.pod_resources_socket),
        "KUBEMEND_POD_LOG_SYMLINKS": str(node.container_log_links),
        # Faults are written here, never to the machine's kernel log.
        "KUBEMEND_KERNEL_LOG": str(node.kernel_log),
        # The properties of the fake GPUs.
        nvml_control.STATE_VARIABLE: str(node.nvml_dir / "state"),
        # The machine's loopback belongs to all dev nodes; the node's own address belongs to one.
        "KUBEMEND_METRICS_ADDRESS": "$(HOST_IP):9464",
        "KUBEMEND_PROBES_ADDRESS": "$(HOST_IP):9467",
    }
    kept = [each for each in pod["containers"][0]["env"] if each["name"] not in settings]
    own = [{"name": name, "value": value} for name, value in settings.items()]
    return [_replace(f"{_CONTAINER}/env", [address, *kept, *own])]


def _probes() -> list[Json]:
    """Kubelet then probes the pod's address, which is the node's."""
    return [
        {"op": "remove", "path": f"{_CONTAINER}/{probe}/httpGet/host"} for probe in ("livenessProbe", "readinessProbe")
    ]


def _replace(path: str, value: object) -> Json:
    return {"op": "replace", "path": path, "value": value}
