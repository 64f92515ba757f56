"""The node's directory of a container's /dev/shm: it may be emptied only if it is certainly the pod's own."""

from typing import Any

import pytest

from kubemend.agent.model.workloads import PodUid, SandboxId
from kubemend.agent.restart import shm
from kubemend.agent.restart.shm import NotOurs, Place

UID = PodUid("0c1f6f9e-3d0e-4c3d-9d4e-1f6b0c1f6f9e")
SANDBOX = SandboxId("ab" * 32)
COMMON = f"/run/containerd/io.containerd.grpc.v1.cri/sandboxes/{SANDBOX}/shm"
OWN = f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~empty-dir/dshm"


def place(source: str | None, **changes: Any) -> Place | NotOurs:
    known: dict[str, Any] = {
        "pod_uid": UID,
        "sandbox_id": SANDBOX,
        "cgroup_parent": f"/kubepods/pod{UID}",
        "shares_node_ipc": False,
    }
    return shm.place(source, **known | changes)


@pytest.mark.parametrize(
    "source",
    [COMMON, f"/run/containers/storage/overlay-containers/{SANDBOX}/userdata/shm", OWN],
    ids=["containerd", "cri-o", "emptyDir"],
)
def test_pods_own_directory_is_identified_by_its_path(source: str) -> None:
    assert place(source) == Place(directory=source, cgroup=f"/kubepods/pod{UID}")


@pytest.mark.parametrize(
    "source",
    [
        "/dev/shm",
        "/",
        "/run",
        f"/var/lib/kubelet/pods/{UID}/volume-subpaths/dshm/trainer/0",
        f"/var/lib/kubelet/pods/{UID}/volumes/kubernetes.io~csi/pvc-1/mount",
        "/var/lib/kubelet/pods/another/volumes/kubernetes.io~empty-dir/dshm",
        f"{OWN}/../../../../../..",
        f"/run/sandboxes/{SANDBOX}/../../..",
    ],
)
def test_other_paths_are_not_touched(source: str) -> None:
    assert isinstance(place(source), NotOurs)


def test_node_shm_is_left_with_a_reason() -> None:
    assert place("/dev/shm", shares_node_ipc=True) == NotOurs("it is the node's (hostIPC)")


def test_own_volume_is_emptied_despite_host_ipc() -> None:
    assert isinstance(place(OWN, shares_node_ipc=True), Place)


def test_unreported_source_is_left() -> None:
    assert place(None) == NotOurs("the runtime does not report its path")


@pytest.mark.parametrize(
    ("parent", "path"),
    [
        ("/kubepods/besteffort/pod1", "/kubepods/besteffort/pod1"),
        (
            "kubepods-burstable-pod1_2.slice",
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice",
        ),
        ("/kubepods.slice/kubepods-pod1.slice", "/kubepods.slice/kubepods-pod1.slice"),
    ],
    ids=["cgroupfs", "systemd", "systemd, whole path"],
)
def test_cgroup_path_is_derived_from_kubelets_name(parent: str, path: str) -> None:
    assert shm.cgroup_path(parent) == path
