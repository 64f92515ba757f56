"""Which directory of the node is a container's /dev/shm: only one that is surely the pod's own may be emptied."""

from typing import Any

import pytest

from agent.model.workloads import PodUid, SandboxId
from agent.restart import shm
from agent.restart.shm import NotOurs, Place

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
def test_the_pods_own_is_known_by_its_path(source: str) -> None:
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
def test_nothing_else_is_touched(source: str) -> None:
    assert isinstance(place(source), NotOurs)


def test_the_nodes_own_is_left_alone_with_its_reason() -> None:
    assert place("/dev/shm", shares_node_ipc=True) == NotOurs("it is the node's (hostIPC)")


def test_a_volume_of_its_own_is_emptied_even_where_the_pod_shares_the_nodes_ipc() -> None:
    assert isinstance(place(OWN, shares_node_ipc=True), Place)


def test_what_the_runtime_does_not_tell_is_left_alone() -> None:
    assert place(None) == NotOurs("the runtime does not tell where it is")


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
def test_a_pods_cgroup_is_found_by_what_kubelet_calls_it(parent: str, path: str) -> None:
    assert shm.cgroup_path(parent) == path
