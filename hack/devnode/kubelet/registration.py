"""The node object: registered once, Ready, with its capacity (kubelet's ``kubelet_node_status.go``). No lease."""

import os
import platform
from pathlib import Path

from common.kube import client, errors, paths
from hack.devnode.kubelet.settings import Settings
from hack.devnode.kubelet.spec import Json

VERSION = "v1.36.2+stand-in"


def node(settings: Settings, *, runtime_version: str, now: str) -> Json:
    """Return the node object."""
    name = settings.node_name
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux"}},
        "status": _status(settings, runtime_version=runtime_version, now=now),
    }


async def register(kube: client.KubeClient, node_object: Json) -> None:
    """Create the node, or bring the status of the one that is there up to date."""
    try:
        await kube.create(paths.NODES, node_object)
    except errors.ConflictError:
        body = {"status": node_object["status"]}
        await kube.patch_status(f"{paths.NODES}/{node_object['metadata']['name']}", body)


def _status(settings: Settings, *, runtime_version: str, now: str) -> Json:
    pages, page = os.sysconf("SC_PHYS_PAGES"), os.sysconf("SC_PAGE_SIZE")
    capacity = {
        "cpu": str(os.cpu_count() or 1),
        "memory": f"{pages * page // 1024}Ki",
        "pods": "110",
        settings.device_resource: str(len(settings.device_ids)),
    }
    return {
        "capacity": capacity,
        "allocatable": capacity,
        "addresses": [
            {"type": "InternalIP", "address": settings.host_ip},
            {"type": "Hostname", "address": settings.node_name},
        ],
        "conditions": [
            _condition("MemoryPressure", value="False", reason="KubeletHasSufficientMemory", now=now),
            _condition("DiskPressure", value="False", reason="KubeletHasNoDiskPressure", now=now),
            _condition("PIDPressure", value="False", reason="KubeletHasSufficientPID", now=now),
            _condition("Ready", value="True", reason="KubeletReady", now=now),
        ],
        "nodeInfo": {
            "machineID": "",
            "systemUUID": "",
            "bootID": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "kernelVersion": platform.release(),
            "osImage": "kubemend dev node",
            "containerRuntimeVersion": runtime_version,
            "kubeletVersion": VERSION,
            "kubeProxyVersion": "",
            "operatingSystem": "linux",
            "architecture": {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine()),
        },
    }


def _condition(kind: str, *, value: str, reason: str, now: str) -> Json:
    return {"type": kind, "status": value, "reason": reason, "lastHeartbeatTime": now, "lastTransitionTime": now}
