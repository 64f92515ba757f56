"""A config that is rebuilt from CRI-O's answers: nothing is invented, and a lie is refused by its field."""

import itertools
import json
from collections.abc import Callable
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.clients.cri import convert
from kubemend.agent.restart import clone, rebuild
from kubemend.common.pb.runtime.v1 import api_pb2
from tests.unit.restart import crio


def rebuilt(info: dict[str, Any] | None = None, **changes: Any) -> api_pb2.ContainerConfig:
    made = rebuild.container_config(crio.status(), info if info is not None else {**crio.info(), **changes})
    spec = (info or {**crio.info(), **changes})["runtimeSpec"]
    return clone.successor(made, intent=crio.intent(), runtime_env=spec["process"]["env"]).config


def changed(path: str, value: Any) -> dict[str, Any]:
    """Return the verbose answer with one value replaced."""
    info = crio.info()
    *parents, last = path.split(".")
    at = info
    for key in parents:
        at = at.setdefault(key, {})
    at[last] = value
    return info


def test_a_config_has_the_fields_of_spec_and_status() -> None:
    config = rebuilt()
    spec = crio.spec()
    env = {item.key: item.value.decode() for item in config.envs}
    assert config.metadata.name == "trainer"
    assert config.image.image == crio.status().image_id
    assert list(config.command) == spec["process"]["args"]
    assert not config.args
    assert config.working_dir == "/"
    assert env["KUBERNETES_SERVICE_HOST"] == "10.96.0.1"
    assert env["PATH"] == "/bin", "of two variables of a name the last one counts"
    assert {mount.container_path for mount in config.mounts} == {"/checkpoints", "/etc/hosts", "/dev/termination-log"}
    assert config.log_path == "trainer/1.log"
    assert config.labels == crio.status().labels
    resources, security = config.linux.resources, config.linux.security_context
    assert (resources.cpu_shares, resources.cpu_period, resources.oom_score_adj) == (2, 100000, 1000)
    assert [limit.page_size for limit in resources.hugepage_limits] == ["2MB", "1GB"]
    assert security.run_as_user.value == 0
    assert security.capabilities.drop_capabilities == ["ALL"]
    assert "NET_BIND_SERVICE" in security.capabilities.add_capabilities
    assert security.namespace_options.pid == api_pb2.CONTAINER
    assert security.seccomp.profile_type == api_pb2.SecurityProfile.Unconfined
    assert set(security.readonly_paths) == set(spec["linux"]["readonlyPaths"])


def test_the_image_gets_its_name_in_the_pod() -> None:
    made = rebuild.container_config(crio.status(), crio.info())
    named = rebuild.with_image(made, named="registry.example/trainer:1")
    assert named["image"] == made["image"] | {"user_specified_image": "registry.example/trainer:1"}
    assert named["envs"] == made["envs"]


OWN = "io.kubernetes.cri-o."


def with_annotation(key: str, value: str) -> dict[str, Any]:
    info = crio.info()
    info["runtimeSpec"]["annotations"][key] = value
    return info


@pytest.mark.parametrize(
    ("info", "of", "expected"),
    [
        (with_annotation(f"{OWN}TTY", "true"), lambda made: made.tty, True),
        (with_annotation(f"{OWN}Stdin", "true"), lambda made: made.stdin, True),
        (with_annotation(f"{OWN}StdinOnce", "true"), lambda made: made.stdin_once, True),
        (
            with_annotation("org.opencontainers.image.stopSignal", "SIGUSR1"),
            lambda made: made.stop_signal,
            api_pb2.Signal.Value("SIGUSR1"),
        ),
        (with_annotation("org.opencontainers.image.stopSignal", "SIGNONE"), lambda made: made.stop_signal, 0),
        (
            with_annotation(f"{OWN}SeccompProfilePath", "/var/lib/kubelet/seccomp/mine.json"),
            lambda made: made.linux.security_context.seccomp.localhost_ref,
            "/var/lib/kubelet/seccomp/mine.json",
        ),
        (
            changed("runtimeSpec.process.apparmorProfile", "crio-default"),
            lambda made: made.linux.security_context.apparmor,
            api_pb2.SecurityProfile(profile_type=api_pb2.SecurityProfile.RuntimeDefault),
        ),
        (
            changed("runtimeSpec.process.apparmorProfile", "unconfined"),
            lambda made: made.linux.security_context.apparmor,
            api_pb2.SecurityProfile(profile_type=api_pb2.SecurityProfile.Unconfined),
        ),
        (
            changed("runtimeSpec.process.apparmorProfile", "mine"),
            lambda made: made.linux.security_context.apparmor,
            api_pb2.SecurityProfile(profile_type=api_pb2.SecurityProfile.Localhost, localhost_ref="mine"),
        ),
        (
            changed("runtimeSpec.process.user", {"uid": 4711, "gid": 4712, "additionalGids": [99, 100]}),
            lambda made: (
                made.linux.security_context.run_as_user.value,
                made.linux.security_context.run_as_group.value,
                list(made.linux.security_context.supplemental_groups),
                made.linux.security_context.supplemental_groups_policy,
            ),
            (4711, 4712, [99, 100], api_pb2.Strict),
        ),
        (
            changed("runtimeSpec.root.readonly", True),
            lambda made: made.linux.security_context.readonly_rootfs,
            True,
        ),
        (
            changed("runtimeSpec.linux.maskedPaths", ["/proc/keys"]),
            lambda made: list(made.linux.security_context.masked_paths),
            ["/proc/keys"],
        ),
        (
            changed(
                "runtimeSpec.linux.resources",
                {
                    "cpu": {"period": 1, "quota": 2, "shares": 3, "cpus": "0-3", "mems": "1"},
                    "memory": {"limit": 4, "swap": 5},
                    "unified": {"memory.high": "6"},
                },
            ),
            lambda made: made.linux.resources,
            api_pb2.LinuxContainerResources(
                cpu_period=1,
                cpu_quota=2,
                cpu_shares=3,
                cpuset_cpus="0-3",
                cpuset_mems="1",
                memory_limit_in_bytes=4,
                memory_swap_limit_in_bytes=5,
                oom_score_adj=1000,
                unified={"memory.high": "6"},
            ),
        ),
        (
            changed("runtimeSpec.process.selinuxLabel", "system_u:system_r:container_t:s0:c1,c2"),
            lambda made: made.linux.security_context.selinux_options.level,
            "s0:c1,c2",
        ),
        (
            changed("runtimeSpec.linux.namespaces", [{"type": "network", "path": "/var/run/netns/a"}]),
            lambda made: made.linux.security_context.namespace_options,
            api_pb2.NamespaceOption(network=api_pb2.POD, pid=api_pb2.NODE, ipc=api_pb2.NODE),
        ),
        (
            changed("runtimeSpec.linux.namespaces", [{"type": "ipc", "path": "/var/run/ipcns/a"}, {"type": "pid"}]),
            lambda made: made.linux.security_context.namespace_options,
            api_pb2.NamespaceOption(network=api_pb2.NODE, pid=api_pb2.CONTAINER, ipc=api_pb2.POD),
        ),
        (
            changed("runtimeSpec.linux.namespaces", [{"type": "pid", "path": "/proc/1/ns/pid"}]),
            lambda made: made.linux.security_context.namespace_options.pid,
            api_pb2.POD,
        ),
        (
            changed("privileged", True),
            lambda made: (made.linux.security_context.privileged, made.linux.security_context.HasField("capabilities")),
            (True, False),
        ),
    ],
)
def test_a_setting_is_recognised(
    info: dict[str, Any], of: Callable[[api_pb2.ContainerConfig], object], expected: object
) -> None:
    assert of(rebuilt(info)) == expected


def test_only_devices_with_a_rule_of_their_own_are_asked_for() -> None:
    info = crio.info()
    info["runtimeSpec"]["linux"]["devices"] = [
        {"path": "/dev/nvidia0", "type": "c", "major": 195, "minor": 0},
        {"path": "/dev/sda", "type": "b", "major": 8, "minor": 0},
    ]
    info["runtimeSpec"]["linux"]["resources"]["devices"].append(
        {"allow": True, "type": "c", "major": 195, "minor": 0, "access": "rw"}
    )
    assert list(rebuilt(info).devices) == [
        api_pb2.Device(host_path="/dev/nvidia0", container_path="/dev/nvidia0", permissions="rw")
    ]


def test_a_mount_gets_its_id_mappings_from_the_spec() -> None:
    info = crio.info()
    mount = next(each for each in info["runtimeSpec"]["mounts"] if each["destination"] == "/checkpoints")
    mount["uidMappings"] = [{"hostID": 65536, "containerID": 7, "size": 4096}]
    (made,) = (each for each in rebuilt(info).mounts if each.container_path == "/checkpoints")
    assert list(made.uidMappings) == [api_pb2.IDMapping(host_id=65536, container_id=7, length=4096)]


def test_an_image_that_is_a_volume_is_refused_with_its_path() -> None:
    status = crio.status()
    status.mounts.add(container_path="/tools", readonly=True, image=api_pb2.ImageSpec(image="sha256:abc"))
    with pytest.raises(clone.CloneRefusedError, match="the image at /tools"):
        rebuild.container_config(status, crio.info())


def test_a_pods_many_mounts_are_read_once_each() -> None:
    """A pod decides how many it has."""
    reads = itertools.count()

    class Mount(dict[str, Any]):
        def get(self, key: str, default: Any = None) -> Any:
            next(reads)
            return super().get(key, default)

    info, status = crio.info(), crio.status()
    places = [f"/data/{number}" for number in range(300)]
    info["runtimeSpec"]["mounts"] = [Mount(destination=place) for place in places]
    status.mounts.extend(api_pb2.Mount(container_path=place) for place in places)
    assert len(rebuild.container_config(status, info)["mounts"]) >= len(places)
    assert next(reads) <= 5 * len(places)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ("runtimeSpec", "text"),
        ("runtimeSpec.mounts", [{"destination": ["/checkpoints"]}]),
        ("runtimeSpec.process", []),
        ("runtimeSpec.process.args", {"0": "sh"}),
        ("runtimeSpec.process.args", ["sh", 1]),
        ("runtimeSpec.process.cwd", "\ufffd"),
        ("runtimeSpec.process.cwd", "/\ud800"),
        ("runtimeSpec.process.args", ["x"] * 10_001),
        ("runtimeSpec.process.env", ["NO_VALUE"]),
        ("runtimeSpec.process.env", ["=x"]),
        ("runtimeSpec.process.user.uid", "0"),
        ("runtimeSpec.process.user.uid", True),
        ("runtimeSpec.process.user.uid", 2**63),
        ("runtimeSpec.process.user.uid", 1.5),
        ("runtimeSpec.process.selinuxLabel", "container_t"),
        ("runtimeSpec.process.noNewPrivileges", "true"),
        ("runtimeSpec.linux.devices", ["/dev/null"]),
        ("runtimeSpec.linux.resources", 7),
        ("runtimeSpec.linux.resources.hugepageLimits", [[]]),
        ("runtimeSpec.linux.resources.hugepageLimits", [{"pageSize": "2MB", "limit": -1}]),
        ("runtimeSpec.linux.resources.unified", {"\ud800": "1"}),
        ("runtimeSpec.linux.resources.devices", [{"allow": True, "type": [], "major": 195}]),
        ("runtimeSpec.linux.devices", [{"path": "/dev/nvidia0", "type": {}}]),
        ("runtimeSpec.linux.namespaces", [{"type": ["pid"]}]),
        ("runtimeSpec.mounts", [{"destination": "/checkpoints", "uidMappings": [{"hostID": 2**32}]}]),
        ("privileged", 1),
    ],
)
def test_an_answer_that_lies_is_refused_with_its_field(path: str, value: Any) -> None:
    with pytest.raises(clone.CloneRefusedError) as refused:
        rebuild.container_config(crio.status(), changed(path, value))
    assert refused.value.reason is clone.CloneRefusal.UNSUPPORTED
    assert path.rsplit(".", maxsplit=1)[-1] in str(refused.value)
    assert len(str(refused.value)) < 200


def test_the_spec_of_another_container_is_not_rebuilt() -> None:
    with pytest.raises(clone.CloneRefusedError, match="is another container's"):
        rebuilt(with_annotation(f"{OWN}ContainerID", "6" * 64))


def test_the_spec_of_another_runtime_is_not_rebuilt() -> None:
    info = crio.info()
    info["runtimeSpec"]["annotations"] = {"io.kubernetes.cri.container-type": "container"}
    with pytest.raises(clone.CloneRefusedError) as refused:
        rebuild.container_config(crio.status(), info)
    assert refused.value.reason is clone.CloneRefusal.NO_CONFIG


def test_a_sandbox_has_what_crio_reads_of_it() -> None:
    made = rebuild.sandbox_config(*crio.sandbox())
    assert made is not None
    uid = made.metadata.uid
    assert (made.metadata.name, made.metadata.namespace) == ("one", "default")
    assert made.log_directory == f"/var/log/pods/default_one_{uid}"
    assert made.linux.cgroup_parent == f"/kubepods/besteffort/pod{uid}"
    assert (made.labels, made.annotations) == (crio.sandbox()[0].status.labels, crio.sandbox()[0].status.annotations)
    assert not made.linux.security_context.privileged
    assert made.linux.security_context.namespace_options.pid == api_pb2.CONTAINER


def test_a_sandbox_for_privileged_containers_stays_one() -> None:
    answer, info = crio.sandbox()
    info["runtimeSpec"]["annotations"][f"{OWN}PrivilegedRuntime"] = "true"
    made = rebuild.sandbox_config(answer, info)
    assert made is not None
    assert made.linux.security_context.privileged


def test_a_sandbox_of_another_runtime_is_not_rebuilt() -> None:
    answer, _ = crio.sandbox()
    assert rebuild.sandbox_config(answer, {}) is None


def answer_with(info: str) -> api_pb2.ContainerStatusResponse:
    return api_pb2.ContainerStatusResponse(status=crio.status(), info={"info": info})


def test_a_status_without_a_config_has_the_reason() -> None:
    lies = convert.container_status(answer_with(json.dumps(changed("runtimeSpec.process.args", 3))), endpoint="cri")
    assert lies.config is None
    assert "info.runtimeSpec" not in lies.hidden
    assert "process.args" in lies.hidden
    tells = convert.container_status(answer_with(json.dumps(crio.info())), endpoint="cri")
    assert tells.config is not None
    assert tells.spec == crio.spec()
    assert "KUBERNETES" not in repr(tells), "an environment may contain secrets"


def test_a_container_that_has_ended_has_no_pid() -> None:
    """CRI-O keeps it."""
    answer = answer_with(json.dumps(crio.info()))
    assert convert.container_status(answer, endpoint="cri").pid == crio.info()["pid"]
    answer.status.state = api_pb2.CONTAINER_EXITED
    assert convert.container_status(answer, endpoint="cri").pid is None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
PATHS = st.sampled_from(
    [
        *(f"runtimeSpec.{key}" for key in ("process", "root", "mounts", "annotations", "linux")),
        *(f"runtimeSpec.process.{key}" for key in ("user", "args", "env", "cwd", "capabilities", "oomScoreAdj")),
        *(f"runtimeSpec.linux.{key}" for key in ("devices", "resources", "namespaces", "maskedPaths")),
        *(f"runtimeSpec.linux.resources.{key}" for key in ("cpu", "memory", "devices", "unified")),
    ]
)


@given(path=PATHS, value=JSON)
def test_no_answer_is_an_internal_error(path: str, value: Any) -> None:
    try:
        made = rebuild.container_config(crio.status(), changed(path, value))
    except clone.CloneRefusedError:
        return
    json_format.ParseDict({**made, "envs": []}, api_pb2.ContainerConfig())
