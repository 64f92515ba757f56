"""The successor's config: everything carried over, only what a restart moves on is changed, nothing dropped."""

import base64
from pathlib import PurePosixPath
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from agent.restart import clone
from common.pb.runtime.v1 import api_pb2
from tests.unit.restart import builders

# The form in which containerd 2.1 gives a config back (Go's JSON: snake_case, enums as numbers, plain env values).
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
    "labels": {"io.kubernetes.container.name": "trainer"},
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


def test_moves_on_what_a_restart_must_move_on() -> None:
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


def test_the_successor_gets_a_termination_log_of_its_own_beside_the_old_one() -> None:
    made = successor()
    assert made.termination_log is not None
    before, after = made.config.mounts[1], clone.with_own_termination_log(made).mounts[1]
    assert before.host_path == f"{KUBELETS}/ab12"
    assert after.host_path == made.termination_log.path
    assert str(PurePosixPath(after.host_path).parent) == KUBELETS
    assert after.host_path != before.host_path
    assert clone.with_own_termination_log(made).mounts[0] == made.config.mounts[0]


def test_each_restart_has_a_termination_log_of_its_own_and_each_try_of_it_the_same() -> None:
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
def test_what_is_not_kubelets_own_is_no_termination_log(mounts: list[dict[str, Any]]) -> None:
    assert successor(at_termination_path(*mounts)).termination_log is None


def test_kubelets_own_is_found_among_what_the_pod_mounts_at_the_same_path() -> None:
    theirs, kubelets = {"host_path": "/etc/passwd", "readonly": True}, {"host_path": f"{KUBELETS}/ab12"}
    made = successor(at_termination_path(theirs, kubelets))
    mounts = clone.with_own_termination_log(made).mounts
    assert made.termination_log is not None
    assert [mount.host_path for mount in mounts] == ["/etc/passwd", made.termination_log.path]


def test_carries_everything_else_over_untouched() -> None:
    config = successor().config
    back = json_format.MessageToDict(config, preserving_proto_field_name=True)
    for key in ("image", "command", "args", "mounts", "devices", "CDI_devices", "labels"):
        assert back[key] == CONFIG[key], key
    assert config.annotations["io.kubernetes.container.hash"] == "deadbeef"
    assert config.linux.security_context.HasField("run_as_user")
    assert env_of(config)["MASTER_ADDR"] == "trainer-0.trainer"


def test_a_field_that_we_do_not_know_is_refused_not_dropped() -> None:
    with pytest.raises(clone.CloneRefusedError) as refused:
        successor(CONFIG | {"field_of_the_future": 1})
    assert refused.value.reason is clone.CloneRefusal.UNKNOWN_FIELD


def test_a_nested_field_that_we_do_not_know_is_refused_too() -> None:
    with pytest.raises(clone.CloneRefusedError):
        successor(CONFIG | {"linux": {"resources": {"quantum_shares": 7}}})


def test_base64_env_values_are_recognised_by_the_running_environment() -> None:
    encoded = [{"key": "RANK", "value": base64.b64encode(b"3").decode()}]
    assert env_of(successor(CONFIG | {"envs": encoded}).config)["RANK"] == "3"


def test_a_plain_value_that_looks_like_base64_stays_plain() -> None:
    config = successor(CONFIG | {"envs": [{"key": "TOKEN", "value": "abcd"}]}, runtime_env=("TOKEN=abcd",)).config
    assert env_of(config)["TOKEN"] == "abcd"


@pytest.mark.parametrize("runtime_env", [None, ("RANK=5",)], ids=["not-shown", "does-not-match"])
def test_an_environment_that_cannot_be_told_is_refused(runtime_env: tuple[str, ...] | None) -> None:
    with pytest.raises(clone.CloneRefusedError) as refused:
        successor(CONFIG | {"envs": [{"key": "RANK", "value": "3333"}]}, runtime_env=runtime_env)
    assert refused.value.reason is clone.CloneRefusal.ENV_AMBIGUOUS


def test_empty_env_values_need_no_proof() -> None:
    assert env_of(successor(CONFIG | {"envs": [{"key": "EMPTY"}]}, runtime_env=None).config)["EMPTY"] == ""


def test_a_hidden_config_is_refused() -> None:
    with pytest.raises(clone.CloneRefusedError) as refused:
        clone.successor(None, intent=builders.intent(), runtime_env=ENV)
    assert refused.value.reason is clone.CloneRefusal.NO_CONFIG


def test_a_container_without_a_restart_count_is_not_kubelets() -> None:
    with pytest.raises(clone.CloneRefusedError) as refused:
        successor(CONFIG | {"annotations": {}})
    assert refused.value.reason is clone.CloneRefusal.NO_RESTART_COUNT


def test_a_moved_cpu_pool_is_taken_from_the_live_cgroup() -> None:
    assert successor(live_cpuset="0-1").config.linux.resources.cpuset_cpus == "0-1"


def test_a_container_without_a_cpuset_gets_none() -> None:
    config = CONFIG | {"linux": {"resources": {"cpu_shares": 2}}}
    assert successor(config, live_cpuset="0-3").config.linux.resources.cpuset_cpus == ""


def test_a_resize_in_place_is_not_undone() -> None:
    """What is there by now goes over what was asked for; what the runtime does not tell stays."""
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


def test_resources_that_a_runtime_does_not_tell_stay_as_they_were_asked_for() -> None:
    asked = successor().config.linux.resources
    assert successor(resources=None).config.linux.resources == asked
    assert successor(resources=api_pb2.LinuxContainerResources()).config.linux.resources == asked


def test_a_cpu_pool_that_moved_goes_over_the_present_resources() -> None:
    present = api_pb2.LinuxContainerResources(cpuset_cpus="0-3")
    assert successor(resources=present, live_cpuset="0-1").config.linux.resources.cpuset_cpus == "0-1"


IMAGE_MOUNT = {
    "container_path": "/model",
    "host_path": "/run/x/rootfs",
    "readonly": True,
    "image": {"image": "sha256:1"},
}


def test_a_mount_of_an_image_is_cloned_without_the_place_where_the_runtime_has_put_it() -> None:
    (mount,) = successor(CONFIG | {"mounts": [IMAGE_MOUNT]}).config.mounts
    assert (mount.host_path, mount.image.image, mount.readonly) == ("", "sha256:1", True)


def test_what_was_started_by_kubelet_is_refused_by_no_rule() -> None:
    assert clone.refusals(successor().config) == ()


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"metadata": {}}, "it has no name"),
        ({"image": {}}, "it names no image"),
        ({"windows": {}}, "Windows"),
        ({"log_path": "/var/log/0.log"}, "is not below the sandbox's"),
        ({"log_path": "../other/0.log"}, "is not below the sandbox's"),
        ({"mounts": [{"container_path": "/data"}]}, "neither host path nor image"),
        ({"mounts": [{"host_path": "/data"}]}, "no place in the container"),
        ({"mounts": [IMAGE_MOUNT | {"readonly": False}]}, "not read-only"),
        ({"mounts": [IMAGE_MOUNT | {"image": {}}]}, "names no image"),
        ({"mounts": [{"container_path": "/a", "host_path": "/a", "image_sub_path": "b"}]}, "no image"),
        (
            {"mounts": [{"container_path": "/a", "host_path": "/a", "recursive_read_only": True}]},
            "needs readonly and private propagation",
        ),
        ({"devices": [{"container_path": "/dev/x", "permissions": "rw"}]}, "no path on the host"),
        ({"devices": [{"container_path": "/dev/x", "host_path": "/dev/x", "permissions": "x"}]}, "permissions 'x'"),
        ({"CDI_devices": [{"name": "gpu0"}]}, "no CDI device name"),
        ({"linux": {"resources": {"hugepage_limits": [{"limit": 1}]}}}, "names no size"),
    ],
)
def test_what_a_runtime_would_not_create_is_refused_before_anything_is_stopped(
    changes: dict[str, Any], why: str
) -> None:
    with pytest.raises(clone.CloneRefusedError, match=why) as refused:
        successor(CONFIG | changes)
    assert refused.value.reason is clone.CloneRefusal.NOT_CREATABLE


def test_a_second_restart_replaces_our_own_variables() -> None:
    envs = [*CONFIG["envs"], {"key": "KUBEMEND_RESTART_COUNT", "value": "1"}]
    annotations = CONFIG["annotations"] | {"io.kubernetes.container.restartCount": "1"}
    config = successor(
        CONFIG | {"envs": envs, "annotations": annotations}, runtime_env=(*ENV, "KUBEMEND_RESTART_COUNT=1")
    ).config
    assert [item.value for item in config.envs if item.key == "KUBEMEND_RESTART_COUNT"] == [b"2"]


@given(st.dictionaries(st.from_regex(r"[A-Z_]{1,8}", fullmatch=True), st.text(max_size=20), max_size=6), st.booleans())
def test_any_environment_survives_in_either_encoding(values: dict[str, str], encoded: bool) -> None:
    envs = [
        {"key": key, "value": base64.b64encode(value.encode()).decode() if encoded else value}
        for key, value in values.items()
    ]
    runtime_env = tuple(f"{key}={value}" for key, value in values.items())
    try:
        config = successor(CONFIG | {"envs": envs}, runtime_env=runtime_env).config
    except clone.CloneRefusedError:
        return  # a value and its decoding may both be there: refused, never guessed
    ours = {"KUBEMEND_RESTART_COUNT", "KUBEMEND_RESTART_REASON"}
    assert {key: value for key, value in env_of(config).items() if key not in ours} == values
