"""The successor's config: everything is copied, only what a restart advances is changed, nothing is dropped."""

import base64
from pathlib import PurePosixPath
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.restart import clone
from kubemend.common.pb.runtime.v1 import api_pb2
from tests.unit.restart import builders

# The form in which containerd 2.1 returns a config (Go's JSON: snake_case, enums as numbers, plain env values).
CONFIG: dict[str, Any] = {
    "metadata": {"name": "trainer"},
    "image": {"image": "sha256:0123", "user_specified_image": "localhost/busybox:dev"},
    "command": ["/bin/sh"],
    "args": ["-c", "train"],
    "envs": [{"key": "RANK", "value": "3"}, {"key": "MASTER_ADDR", "value": "trainer-0.trainer"}],
    "mounts": [
        {"container_path": "/checkpoints", "host_path": "/var/lib/kubelet/pods/uid-1/volumes/x"},
        {"container_path": "/dev/termination-log", "host_path": "/var/lib/kubelet/pods/uid-1/containers/trainer/ab12"},
    ],
    "devices": [{"container_path": "/dev/nvidia0", "host_path": "/dev/nvidia0", "permissions": "rw"}],
    "CDI_devices": [{"name": "nvidia.com/gpu=0"}],
    "labels": {"io.kubernetes.container.name": "trainer", "io.kubernetes.pod.uid": "uid-1"},
    "annotations": {
        "io.kubernetes.container.hash": "deadbeef",
        "io.kubernetes.container.restartCount": "0",
        "io.kubernetes.container.terminationMessagePath": "/dev/termination-log",
    },
    "log_path": "trainer/0.log",
    "linux": {
        "resources": {"cpu_period": 100000, "cpu_shares": 2, "cpuset_cpus": "0-3"},
        "security_context": {"namespace_options": {"pid": 1}, "run_as_user": {}},
    },
}
ENV = ("PATH=/bin", "RANK=3", "MASTER_ADDR=trainer-0.trainer")


def successor(config: dict[str, Any] | None = None, **changes: Any) -> clone.Successor:
    arguments: dict[str, Any] = {"intent": builders.intent(), "runtime_env": ENV, "live_cpuset": None} | changes
    return clone.successor(config if config is not None else CONFIG, **arguments)


def env_of(config: api_pb2.ContainerConfig) -> dict[str, str]:
    return {item.key: item.value.decode() for item in config.envs}


def test_clone_advances_the_attempt_fields() -> None:
    result = successor()
    config = result.config
    assert config.metadata.attempt == 1
    assert config.annotations["io.kubernetes.container.restartCount"] == "1"
    assert config.annotations["kubemend.io/restart-id"] == "r1"
    assert config.log_path == "trainer/1.log"
    assert env_of(config)["KUBEMEND_RESTART_COUNT"] == "1"
    assert env_of(config)["KUBEMEND_RESTART_REASON"] == "Xid31"


KUBELETS = "/var/lib/kubelet/pods/uid-1/containers/trainer"


def at_termination_path(*mounts: dict[str, Any]) -> dict[str, Any]:
    return CONFIG | {"mounts": [{"container_path": "/dev/termination-log"} | mount for mount in mounts]}


def test_successor_gets_its_own_termination_log() -> None:
    made = successor()
    assert made.termination_log is not None
    before, after = made.config.mounts[1], clone.with_own_termination_log(made).mounts[1]
    assert before.host_path == f"{KUBELETS}/ab12"
    assert after.host_path == made.termination_log.path
    assert str(PurePosixPath(after.host_path).parent) == KUBELETS
    assert after.host_path != before.host_path
    assert clone.with_own_termination_log(made).mounts[0] == made.config.mounts[0]


def test_termination_log_is_unique_per_restart_and_stable_per_attempt() -> None:
    paths = [successor(intent=builders.intent(id=restart)).termination_log for restart in ("r1", "r1", "r2")]
    assert paths[0] == paths[1] != paths[2]


@pytest.mark.parametrize(
    "mounts",
    [
        [{"host_path": "/etc/passwd"}],
        [{"host_path": "/etc/passwd", "readonly": True}],
        [{"host_path": f"{KUBELETS}/ab12", "readonly": True}],
        [{"host_path": "/var/lib/kubelet/pods/uid-2/containers/trainer/ab12"}],
        [{"host_path": "/var/lib/kubelet/pods/uid-1/containers/other/ab12"}],
        [{"host_path": "/var/lib/kubelet/pods/uid-1/volumes/containers/trainer/ab12"}],
        [{"host_path": f"{KUBELETS}/deep/ab12"}],
        [{"host_path": "/etc/../pods/uid-1/containers/trainer/ab12"}],
        [{"host_path": "pods/uid-1/containers/trainer/ab12"}],
        [],
    ],
)
def test_file_not_made_by_kubelet_is_no_termination_log(mounts: list[dict[str, Any]]) -> None:
    assert successor(at_termination_path(*mounts)).termination_log is None


def test_kubelets_file_is_found_among_mounts_at_the_path() -> None:
    theirs, kubelets = {"host_path": "/etc/passwd", "readonly": True}, {"host_path": f"{KUBELETS}/ab12"}
    made = successor(at_termination_path(theirs, kubelets))
    mounts = clone.with_own_termination_log(made).mounts
    assert made.termination_log is not None
    assert [mount.host_path for mount in mounts] == ["/etc/passwd", made.termination_log.path]


def test_clone_copies_everything_else_unchanged() -> None:
    config = successor().config
    back = json_format.MessageToDict(config, preserving_proto_field_name=True)
    for key in ("image", "command", "args", "mounts", "devices", "CDI_devices", "labels"):
        assert back[key] == CONFIG[key], key
    assert config.annotations["io.kubernetes.container.hash"] == "deadbeef"
    assert config.linux.security_context.HasField("run_as_user")
    assert env_of(config)["MASTER_ADDR"] == "trainer-0.trainer"


def test_unknown_field_is_refused() -> None:
    with pytest.raises(clone.CloneRefusedError) as refused:
        successor(CONFIG | {"field_of_the_future": 1})
    assert refused.value.reason is clone.CloneRefusal.UNSUPPORTED


@pytest.mark.parametrize(
    "other", [{"metadata": {"name": "sidecar"}}, {"labels": {"io.kubernetes.pod.uid": "uid-2"}}, {"labels": {}}]
)
def test_the_config_of_another_container_is_refused(other: dict[str, Any]) -> None:
    """Its copy would be started as a container of a pod that has not asked for it."""
    with pytest.raises(clone.CloneRefusedError, match="another container"):
        successor({**CONFIG, **other})


def test_a_number_out_of_range_is_refused() -> None:
    linux = {"security_context": {"namespace_options": {"pid": float("inf")}}}
    with pytest.raises(clone.CloneRefusedError) as refused:
        successor({**CONFIG, "linux": linux})
    assert refused.value.reason is clone.CloneRefusal.UNSUPPORTED


def test_unknown_nested_field_is_refused() -> None:
    with pytest.raises(clone.CloneRefusedError):
        successor(CONFIG | {"linux": {"resources": {"quantum_shares": 7}}})


def test_base64_env_values_are_recognised_by_the_process_environment() -> None:
    encoded = [{"key": "RANK", "value": base64.b64encode(b"3").decode()}]
    assert env_of(successor(CONFIG | {"envs": encoded}).config)["RANK"] == "3"


def test_plain_value_that_looks_like_base64_stays_plain() -> None:
    config = successor(CONFIG | {"envs": [{"key": "TOKEN", "value": "abcd"}]}, runtime_env=("TOKEN=abcd",)).config
    assert env_of(config)["TOKEN"] == "abcd"


@pytest.mark.parametrize("runtime_env", [None, ("RANK=5",)], ids=["not-shown", "does-not-match"])
def test_ambiguous_environment_is_refused(runtime_env: tuple[str, ...] | None) -> None:
    with pytest.raises(clone.CloneRefusedError) as refused:
        successor(CONFIG | {"envs": [{"key": "RANK", "value": "3333"}]}, runtime_env=runtime_env)
    assert refused.value.reason is clone.CloneRefusal.ENV_AMBIGUOUS


def test_empty_env_values_need_no_proof() -> None:
    assert env_of(successor(CONFIG | {"envs": [{"key": "EMPTY"}]}, runtime_env=None).config)["EMPTY"] == ""


def test_missing_config_is_refused() -> None:
    with pytest.raises(clone.CloneRefusedError) as refused:
        clone.successor(None, intent=builders.intent(), runtime_env=ENV)
    assert refused.value.reason is clone.CloneRefusal.NO_CONFIG


@pytest.mark.parametrize("count", ["", "-1", "one", str(2**31)])
def test_restart_count_that_is_no_number_of_kubelets_is_refused(count: str) -> None:
    with pytest.raises(clone.CloneRefusedError) as refused:
        successor(CONFIG | {"annotations": {clone.RESTART_COUNT_ANNOTATION: count} if count else {}})
    assert refused.value.reason is clone.CloneRefusal.NO_RESTART_COUNT


@pytest.mark.parametrize("attempt", [-1, 2**31, 2**32 - 1])
def test_attempt_after_which_none_can_come_is_refused(attempt: int) -> None:
    with pytest.raises(clone.CloneRefusedError, match="attempt"):
        successor(intent=builders.intent(old_attempt=attempt))


def test_moved_cpu_pool_is_taken_from_the_live_cgroup() -> None:
    assert successor(live_cpuset="0-1").config.linux.resources.cpuset_cpus == "0-1"


def test_missing_cpuset_stays_missing() -> None:
    config = CONFIG | {"linux": {"resources": {"cpu_shares": 2}}}
    assert successor(config, live_cpuset="0-3").config.linux.resources.cpuset_cpus == ""


def test_resize_in_place_is_kept() -> None:
    """Current resources override the requested ones; unreported ones stay."""
    asked = {"cpu_period": 100000, "cpu_shares": 2, "cpuset_mems": "0", "memory_limit_in_bytes": 64}
    asked |= {"hugepage_limits": [{"page_size": "2MB", "limit": 1}], "unified": {"memory.high": "60"}}
    present = api_pb2.LinuxContainerResources(
        cpu_period=50000,
        cpu_quota=200000,
        cpu_shares=1024,
        memory_limit_in_bytes=256,
        memory_swap_limit_in_bytes=256,
        oom_score_adj=-997,
        cpuset_cpus="2-3",
        hugepage_limits=[api_pb2.HugepageLimit(page_size="2MB", limit=2)],
        unified={"memory.high": "240"},
    )
    made = successor(CONFIG | {"linux": {"resources": asked}}, resources=present).config.linux.resources
    wanted = api_pb2.LinuxContainerResources(cpuset_mems="0")
    wanted.MergeFrom(present)
    assert made == wanted


def test_config_is_a_copy_unless_resources_or_images_were_replaced() -> None:
    asked = successor().config.linux.resources
    assert successor(resources=asked).is_copy
    assert not successor(resources=api_pb2.LinuxContainerResources(cpu_shares=asked.cpu_shares + 1)).is_copy
    assert not successor(CONFIG | {"linux": {"resources": {"cpuset_cpus": "0"}}}, live_cpuset="0-1").is_copy
    assert not successor(CONFIG | {"mounts": [IMAGE_MOUNT]}).is_copy
    limited = CONFIG | {"linux": {"resources": {"memory_limit_in_bytes": 64}}}
    for shown, swap, is_copy in ((64, 64, True), (64, 0, True), (64, 128, False), (128, 128, False)):
        present = api_pb2.LinuxContainerResources(memory_limit_in_bytes=shown, memory_swap_limit_in_bytes=swap)
        assert successor(limited, resources=present).is_copy is is_copy


def test_unreported_resources_stay_as_requested() -> None:
    asked = successor().config.linux.resources
    assert successor(resources=None).config.linux.resources == asked
    assert successor(resources=api_pb2.LinuxContainerResources()).config.linux.resources == asked


def test_moved_cpu_pool_overrides_current_resources() -> None:
    present = api_pb2.LinuxContainerResources(cpuset_cpus="0-3")
    assert successor(resources=present, live_cpuset="0-1").config.linux.resources.cpuset_cpus == "0-1"


IMAGE_MOUNT = {
    "container_path": "/model",
    "host_path": "/run/x/rootfs",
    "readonly": True,
    "image": {"image": "sha256:1"},
}


def test_image_mount_is_cloned_without_its_host_path() -> None:
    (mount,) = successor(CONFIG | {"mounts": [IMAGE_MOUNT]}).config.mounts
    assert (mount.host_path, mount.image.image, mount.readonly) == ("", "sha256:1", True)


def test_config_from_kubelet_breaks_no_rule() -> None:
    assert clone.refusals(successor().config) == ()


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"image": {}}, "the config names no image"),
        ({"windows": {}}, "Windows"),
        ({"log_path": "/var/log/0.log"}, "is not below the sandbox's"),
        ({"log_path": "../other/0.log"}, "is not below the sandbox's"),
        ({"mounts": [{"container_path": "/data"}]}, "neither host path nor image"),
        ({"mounts": [{"host_path": "/data"}]}, "no path in the container"),
        ({"mounts": [IMAGE_MOUNT | {"readonly": False}]}, "not read-only"),
        ({"mounts": [IMAGE_MOUNT | {"image": {}}]}, "names no image"),
        ({"mounts": [{"container_path": "/a", "host_path": "/a", "image_sub_path": "b"}]}, "no image"),
        (
            {"mounts": [{"container_path": "/a", "host_path": "/a", "recursive_read_only": True}]},
            "needs readonly and private propagation",
        ),
        ({"devices": [{"container_path": "/dev/x", "permissions": "rw"}]}, "no path on the host"),
        ({"devices": [{"container_path": "/dev/x", "host_path": "/dev/x", "permissions": "x"}]}, "permissions 'x'"),
        ({"CDI_devices": [{"name": "gpu0"}]}, "not a CDI device name"),
        ({"linux": {"resources": {"hugepage_limits": [{"limit": 1}]}}}, "names no size"),
    ],
)
def test_uncreatable_config_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(clone.CloneRefusedError, match=reason) as refused:
        successor(CONFIG | changes)
    assert refused.value.reason is clone.CloneRefusal.NOT_CREATABLE


def test_second_restart_replaces_kubemends_variables() -> None:
    envs = [*CONFIG["envs"], {"key": "KUBEMEND_RESTART_COUNT", "value": "1"}]
    annotations = CONFIG["annotations"] | {"io.kubernetes.container.restartCount": "1"}
    config = successor(
        CONFIG | {"envs": envs, "annotations": annotations}, runtime_env=(*ENV, "KUBEMEND_RESTART_COUNT=1")
    ).config
    assert [item.value for item in config.envs if item.key == "KUBEMEND_RESTART_COUNT"] == [b"2"]


@given(st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), st.text(max_size=20), max_size=6), st.booleans())
def test_any_environment_is_preserved_in_either_encoding(values: dict[str, str], encoded: bool) -> None:
    envs = [
        {"key": key, "value": base64.b64encode(value.encode()).decode() if encoded else value}
        for key, value in values.items()
    ]
    runtime_env = tuple(f"{key}={value}" for key, value in values.items())
    try:
        config = successor(CONFIG | {"envs": envs}, runtime_env=runtime_env).config
    except clone.CloneRefusedError:
        return  # a value and its decoding may both be present: refused, never guessed
    ours = {"KUBEMEND_RESTART_COUNT", "KUBEMEND_RESTART_REASON"}
    assert {key: value for key, value in env_of(config).items() if key not in ours} == values
