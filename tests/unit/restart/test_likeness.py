"""The comparison of a successor's OCI spec: what must differ may, and every other field is named."""

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.restart import clone, likeness, rebuild
from kubemend.common.pb.runtime.v1 import api_pb2
from tests.unit.restart import crio

Json = dict[str, Any]
TERMINATION = "/dev/termination-log"
LAYER = "6" * 64


def successor_spec() -> Json:
    """Return the spec of a successor as CRI-O makes it."""
    old = crio.spec()
    text = json.dumps(old).replace(crio.status().id, crio.NEW_ID)
    spec: Json = json.loads(text)
    spec["root"]["path"] = f"/var/lib/containers/storage/overlay/{LAYER}/merged"
    spec["process"]["env"] += [f"{clone.RESTART_COUNT_ENV}=1", f"{clone.RESTART_REASON_ENV}=Xid31"]
    spec["annotations"] |= {
        clone.RESTART_COUNT_ANNOTATION: "1",
        clone.RESTART_ID_ANNOTATION: "r1",
        **{f"io.kubernetes.cri-o.{name}": "new" for name in ("Annotations", "Name", "SomeNameOfTheImage", "Volumes")},
        "io.kubernetes.cri-o.Created": "2027-01-01T00:00:00Z",
        "io.kubernetes.cri-o.MountPoint": spec["root"]["path"],
        "io.kubernetes.cri-o.Metadata": '{"name":"trainer","attempt":1}',
        "io.kubernetes.cri-o.LogPath": "/var/log/pods/x/trainer/1.log",
    }
    mount = next(each for each in spec["mounts"] if each["destination"] == TERMINATION)
    mount["source"] = f"{mount['source']}new"
    return spec


def config() -> api_pb2.ContainerConfig:
    made = rebuild.container_config(crio.status(), crio.info())
    return clone.successor(made, intent=crio.intent(), runtime_env=crio.spec()["process"]["env"]).config


def difference(
    new: Json, *, old: Json | None = None, of: api_pb2.ContainerConfig | None = None, **resources: Any
) -> str | None:
    """Compare; ``of`` is the successor's config, ``resources`` are those that the old container has now."""
    return likeness.difference(
        crio.original(crio.spec() if old is None else old, **resources),
        likeness.Container(crio.NEW_ID, new),
        config=config() if of is None else of,
        termination_path=TERMINATION,
    )


def test_what_must_differ_may() -> None:
    assert difference(successor_spec()) is None


def test_a_list_that_is_a_set_may_be_in_another_order() -> None:
    old, new = crio.spec(), successor_spec()
    for spec, groups in ((old, [99, 100]), (new, [100, 99])):
        spec["process"]["user"]["additionalGids"] = groups
    for key in ("bounding", "effective", "permitted"):
        new["process"]["capabilities"][key].reverse()
    new["linux"]["maskedPaths"].reverse()
    new["linux"]["readonlyPaths"].reverse()
    new["process"]["env"].reverse()
    new["process"]["env"].remove("PATH=/bin")
    new["process"]["env"].append("PATH=/bin")
    assert difference(new, old=old) is None


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        ("process.args", ["/bin/sh"], "process.args"),
        ("process.cwd", "/root", "process.cwd differs"),
        ("process.user.uid", 1, "process.user.uid differs"),
        ("process.noNewPrivileges", True, "process.noNewPrivileges is new"),
        ("process.capabilities.bounding", [], "process.capabilities.bounding"),
        ("process.oomScoreAdj", 5, "process.oomScoreAdj differs"),
        ("hostname", "", "hostname is missing"),
        ("hooks", {"prestart": [{"path": "/usr/bin/hook"}]}, "hooks.prestart"),
        ("linux.seccomp", {"defaultAction": "SCMP_ACT_ERRNO"}, "linux.seccomp.defaultAction is new"),
        ("linux.cgroupsPath", "/kubepods/other", "linux.cgroupsPath differs"),
        ("linux.devices", [{"path": "/dev/kvm", "type": "c", "major": 10, "minor": 232}], "linux.devices"),
        ("linux.resources.cpu.shares", 1024, "linux.resources.cpu.shares differs"),
        ("linux.resources.hugepageLimits", [], "linux.resources.hugepageLimits"),
        ("linux.resources.memory", {"limit": 1 << 30}, "linux.resources.memory.limit is new"),
        ("linux.namespaces", [], "linux.namespaces"),
        ("annotations.io.kubernetes.cri-o", "x", "annotations"),
        ("mounts", [], "mounts./"),
        ("root.readonly", True, "root.readonly is new"),
    ],
)
def test_every_other_field_is_named(path: str, value: Any, named: str) -> None:
    new = successor_spec()
    *parents, last = path.split(".")
    at = new
    for key in parents:
        at = at.setdefault(key, {})
    at[last] = value
    reported = difference(new)
    assert reported is not None
    assert reported.startswith(named), reported


def test_a_variable_is_named_and_its_value_is_not() -> None:
    new = successor_spec()
    new["process"]["env"] = [item for item in new["process"]["env"] if not item.startswith("KUBERNETES_PORT=")]
    new["process"]["env"].append("KUBERNETES_PORT=s3cret")
    reported = difference(new)
    assert reported == "process.env.KUBERNETES_PORT differs"


def test_a_mount_that_lost_its_source_or_covers_another_is_named() -> None:
    new = successor_spec()
    mount = next(each for each in new["mounts"] if each["destination"] == "/checkpoints")
    mount["source"] = "/elsewhere"
    assert difference(new) == "mounts./checkpoints.source differs"
    new = successor_spec()
    new["mounts"].sort(key=lambda each: each["destination"], reverse=True)  # /dev after /dev/shm
    reported = difference(new)
    assert reported is not None
    assert "covered by" in reported


def test_the_file_that_crio_mounts_may_be_missing_and_a_volume_there_may_not() -> None:
    """A CRI-O that has been restarted mounts it in no pod that it finds."""
    new, place = successor_spec(), "/run/.containerenv"
    new["mounts"] = [each for each in new["mounts"] if each["destination"] != place]
    assert difference(new) is None
    volume = config()
    volume.mounts.add(container_path=place, host_path="/data")
    assert difference(new, of=volume) == f"mounts.{place}.destination is missing"


def with_mounts(spec: Json, *destinations: str) -> Json:
    spec["mounts"] += [{"destination": each, "source": f"/{number}"} for number, each in enumerate(destinations)]
    return spec


@pytest.mark.parametrize(
    ("inner", "outer"), [("/a/b", "/a"), ("/a-b/c/d", "/a-b"), ("/x", "/"), ("//a/./b", "/a/"), ("a/b", "//a")]
)
def test_a_mount_that_hides_one_below_it_is_named(inner: str, outer: str) -> None:
    beside = ("/a-", "/a-b.c", "/z")
    old, new = with_mounts(crio.spec(), *beside, outer, inner), with_mounts(successor_spec(), *beside, outer, inner)
    assert difference(new, old=old) is None
    new["mounts"][-2:] = reversed(new["mounts"][-2:])
    reported = difference(new, old=old)
    assert reported is not None
    assert "covered by" in reported


def test_a_long_place_of_a_mount_is_compared_in_a_short_time() -> None:
    deep = "/a" * 100_000
    old, new = with_mounts(crio.spec(), deep), with_mounts(successor_spec(), deep)
    began = time.process_time()
    assert difference(new, old=old) is None
    assert time.process_time() - began < 1.0


def test_several_mounts_at_one_place_are_compared_in_their_order() -> None:
    old, new = crio.spec(), successor_spec()
    for spec in (old, new):
        spec["mounts"] += [{"destination": "/a", "source": "/1"}, {"destination": "/a", "source": "/2"}]
    assert difference(new, old=old) is None
    new["mounts"][-2:] = reversed(new["mounts"][-2:])
    assert difference(new, old=old) == "mounts./a.0.source differs"


def test_a_directory_with_a_random_name_below_its_own_may_have_another() -> None:
    old, new = crio.spec(), successor_spec()
    for spec, container_id, name in ((old, crio.status().id, "7" * 64), (new, crio.NEW_ID, "8" * 64)):
        source = f"/run/containers/storage/overlay-containers/{container_id}/userdata/mounts/{name}"
        spec["mounts"].append({"destination": "/anonymous", "type": "bind", "source": source})
    assert difference(new, old=old) is None
    new["mounts"][-1]["source"] = f"/run/containers/storage/overlay-containers/{crio.NEW_ID}/userdata/passwd"
    assert difference(new, old=old) == "mounts./anonymous.source differs"


def test_resources_that_were_resized_are_expected_and_none_is_lost() -> None:
    new = successor_spec()
    new["linux"]["resources"]["cpu"] |= {"quota": 200000, "shares": 2048}
    assert difference(new, cpu_quota=200000, cpu_shares=2048) is None
    assert difference(new, cpu_quota=200000) == "linux.resources.cpu.shares differs"
    old = crio.spec()
    old["linux"]["resources"]["memory"] = {"limit": 1 << 30}
    assert difference(successor_spec(), old=old) == "linux.resources.memory.limit is missing"


@pytest.mark.parametrize(
    ("group", "key", "resource"),
    [
        ("cpu", "period", "cpu_period"),
        ("cpu", "quota", "cpu_quota"),
        ("cpu", "shares", "cpu_shares"),
        ("memory", "limit", "memory_limit_in_bytes"),
        ("memory", "swap", "memory_swap_limit_in_bytes"),
    ],
)
def test_each_resource_may_be_as_the_old_container_has_it_now(group: str, key: str, resource: str) -> None:
    new = successor_spec()
    present: Json = {resource: 4711}
    new["linux"]["resources"].setdefault(group, {})[key] = 4711
    assert difference(new) is not None
    assert difference(new, **present) is None


def test_the_score_for_the_oom_killer_may_be_as_the_old_container_has_it_now() -> None:
    new = successor_spec()
    new["process"]["oomScoreAdj"] = 997
    assert difference(new) == "process.oomScoreAdj differs"
    assert difference(new, oom_score_adj=997) is None


@pytest.mark.parametrize(
    ("group", "key", "before", "after"),
    [("memory", "limit", 2**30, 0), ("cpu", "quota", 50_000, 0), ("unified", "memory.high", "4096", None)],
)
def test_a_limit_that_is_lost_is_named_though_the_runtime_shows_none(
    group: str, key: str, before: object, after: object
) -> None:
    old, new = crio.spec(), successor_spec()
    old["linux"]["resources"].setdefault(group, {})[key] = before
    new["linux"]["resources"][group] = {} if after is None else {key: after}
    reported = difference(new, old=old)
    assert reported is not None
    assert reported.startswith(f"linux.resources.{group}")


def test_huge_pages_and_unified_limits_are_as_the_old_container_has_them_now() -> None:
    new = successor_spec()
    new["linux"]["resources"]["hugepageLimits"] = [{"pageSize": "2MB", "limit": 4096}]
    pages = [api_pb2.HugepageLimit(page_size="2MB", limit=4096)]
    assert difference(new, hugepage_limits=pages) is None
    pages[0].limit = 2048
    reported = difference(new, hugepage_limits=pages)
    assert reported is not None
    assert reported.startswith("linux.resources.hugepageLimits")
    new = successor_spec()
    new["linux"]["resources"]["unified"] = {"memory.high": "4096"}
    assert difference(new, unified={"memory.high": "4096"}) is None
    reported = difference(new, unified={"memory.high": "2048"})
    assert reported is not None
    assert reported.startswith("linux.resources.unified")


def test_a_resize_that_a_clone_lost_is_named_although_its_own_config_agrees() -> None:
    old, new = crio.spec(), successor_spec()
    old["linux"]["resources"]["memory"] = {"limit": 1 << 30}
    new["linux"]["resources"]["memory"] = {"limit": 1 << 20}
    made = config()
    made.linux.resources.memory_limit_in_bytes = 1 << 20
    named = "linux.resources.memory.limit differs"
    assert difference(new, old=old, of=made, memory_limit_in_bytes=1 << 30) == named


@pytest.mark.parametrize("place", ["cpus", "mems"])
def test_cpus_that_are_not_requested_are_chosen_by_the_node(place: str) -> None:
    old, new = crio.spec(), successor_spec()
    old["linux"]["resources"]["cpu"][place] = "0-3"
    new["linux"]["resources"]["cpu"][place] = "4-7"
    requested: Json = {f"cpuset_{place}": "0-3"}
    assert difference(new, old=old) is None
    assert difference(new, old=old, **requested) == f"linux.resources.cpu.{place} differs"
    del new["linux"]["resources"]["cpu"][place]
    assert difference(new, old=old, **requested) == f"linux.resources.cpu.{place} is missing"


def test_the_cpuset_of_the_old_containers_cgroup_is_expected() -> None:
    old, new, made = crio.spec(), successor_spec(), config()
    old["linux"]["resources"]["cpu"]["cpus"] = "0-3"
    made.linux.resources.cpuset_cpus = new["linux"]["resources"]["cpu"]["cpus"] = "2-3"
    assert difference(new, old=old, of=made, cpuset_cpus="0-3") is None
    old["linux"]["resources"]["cpu"]["mems"], new["linux"]["resources"]["cpu"]["mems"] = "0", "2-3"
    assert difference(new, old=old, of=made, cpuset_cpus="0-3", cpuset_mems="0") == "linux.resources.cpu.mems differs"


def test_a_privileged_container_has_the_devices_that_the_node_has_now() -> None:
    old, new, made = crio.spec(), successor_spec(), config()
    old["linux"]["devices"] = [{"path": "/dev/loop0", "type": "b", "major": 7, "minor": 0}]
    assert difference(new, old=old) == "linux.devices./dev/loop0.major is missing"
    made.linux.security_context.privileged = True
    assert difference(new, old=old, of=made) is None


def test_devices_hooks_and_rules_from_cdi_may_be_in_another_order() -> None:
    old, new = crio.spec(), successor_spec()
    for spec, numbers in ((old, (0, 1)), (new, (1, 0))):
        spec["linux"]["devices"] = [{"path": f"/dev/gpu{each}", "minor": each} for each in numbers]
        spec["linux"]["resources"]["devices"] += [{"allow": True, "minor": each} for each in numbers]
        spec["hooks"] = {"createContainer": [{"path": "/hook", "args": [str(each)]} for each in numbers]}
    assert difference(new, old=old) is None
    new["hooks"]["createContainer"].pop(0)
    assert difference(new, old=old) == "hooks.createContainer has 1 items instead of 2"
    del new["hooks"]
    assert difference(new, old=old) == "hooks.createContainer has 0 items instead of 2"


def test_the_runtimes_own_filter_may_be_another_and_a_requested_one_may_not() -> None:
    old, new, made = crio.spec(), successor_spec(), config()
    old["linux"]["seccomp"], new["linux"]["seccomp"] = {"syscalls": ["read"]}, {"syscalls": ["read", "write"]}
    seccomp = made.linux.security_context.seccomp
    seccomp.profile_type, seccomp.localhost_ref = api_pb2.SecurityProfile.Localhost, "/profile"
    assert difference(new, old=old, of=made) == "linux.seccomp.syscalls has 2 items instead of 1"
    seccomp.profile_type = api_pb2.SecurityProfile.RuntimeDefault
    assert difference(new, old=old, of=made) is None
    del new["linux"]["seccomp"]
    assert difference(new, old=old, of=made) == "linux.seccomp is missing"


def test_a_filter_may_not_be_another_if_no_profile_is_requested() -> None:
    old, new = crio.spec(), successor_spec()
    old["linux"]["seccomp"], new["linux"]["seccomp"] = {"syscalls": ["read"]}, {"syscalls": ["read", "write"]}
    made = config()
    made.linux.security_context.ClearField("seccomp")
    assert difference(new, old=old, of=made) == "linux.seccomp.syscalls has 2 items instead of 1"


def test_a_level_that_is_not_requested_is_the_runtimes_choice() -> None:
    old, new, made = crio.spec(), successor_spec(), config()
    old["process"]["selinuxLabel"] = "system_u:system_r:container_t:s0:c1,c2"
    new["process"]["selinuxLabel"] = "system_u:system_r:container_t:s0:c3,c4"
    options = made.linux.security_context.selinux_options
    options.type, options.level = "container_t", "s0:c1,c2"
    assert difference(new, old=old, of=made) == "process.selinuxLabel differs"
    options.level = ""
    assert difference(new, old=old, of=made) is None
    old["linux"]["mountLabel"] = "system_u:object_r:container_file_t:s0:c1,c2"
    new["linux"]["mountLabel"] = "system_u:object_r:container_file_t:s0:c3,c4"
    assert difference(new, old=old, of=made) is None
    made.linux.security_context.ClearField("selinux_options")  # then it has the label of its pod
    assert difference(new, old=old, of=made) == "linux.mountLabel differs"
    made.linux.security_context.selinux_options.type = "container_t"
    new["process"]["selinuxLabel"] = "system_u:system_r:spc_t:s0:c3,c4"
    assert difference(new, old=old, of=made) == "process.selinuxLabel differs"


def test_a_container_without_reported_resources_or_a_file_for_its_termination_message_is_compared() -> None:
    """A runtime may not report the resources, and a container need not have such a file."""
    old, new = likeness.Container(crio.status().id, crio.spec()), likeness.Container(crio.NEW_ID, successor_spec())
    mount = next(each for each in new.spec["mounts"] if each["destination"] == TERMINATION)
    mount["source"] = mount["source"].removesuffix("new")
    new.spec["linux"]["resources"]["cpu"]["cpus"] = "4-7"  # chosen by the node
    assert likeness.difference(old, new, config=config()) is None
    mount["options"] = []
    assert likeness.difference(old, new, config=config()) is not None


def test_an_upgrade_of_the_runtime_and_another_name_of_the_image_are_not_named() -> None:
    old, new = crio.spec(), successor_spec()
    old["ociVersion"], new["ociVersion"] = "1.2.0", "1.2.1"
    old["annotations"]["io.kubernetes.cri.image-name"] = "trainer:1"
    new["annotations"]["io.kubernetes.cri.image-name"] = "trainer:latest"
    assert difference(new, old=old) is None


def test_a_rule_for_devices_that_is_repeated_changes_nothing() -> None:
    new = successor_spec()
    rules = new["linux"]["resources"]["devices"]
    rules.append(dict(rules[-1]))
    assert difference(new) is None
    rules.append({"allow": True, "access": "rwm"})
    assert difference(new) is not None


def test_a_rule_that_denies_again_a_device_allowed_since_is_named() -> None:
    old, new = crio.spec(), successor_spec()
    for spec in (old, new):
        spec["linux"]["resources"]["devices"].append({"allow": True, "access": "rwm"})
    assert difference(new, old=old) is None
    new["linux"]["resources"]["devices"].append({"allow": False, "access": "rwm"})
    assert difference(new, old=old) == "linux.resources.devices has 3 items instead of 2"


def test_an_answer_without_a_spec_or_with_one_too_deep_is_reported() -> None:
    deep: Json = {}
    at = deep
    for _ in range(500):
        at["x"] = {}
        at = at["x"]
    for new in ({}, {**successor_spec(), "deep": deep}, {**successor_spec(), "mounts": [1]}):
        assert difference(new) is not None


def test_a_name_that_a_pod_has_chosen_is_bounded_and_printable() -> None:
    new = successor_spec()
    new["process"]["env"].append("\n" * 1000 + "=x")
    reported = difference(new)
    assert reported is not None
    assert reported.isprintable()
    assert len(reported) < 600


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


@given(key=st.sampled_from(sorted(crio.spec())), value=JSON)
def test_no_spec_is_an_internal_error_and_none_passes_by_chance(key: str, value: Any) -> None:
    new = successor_spec()
    same = new[key] == value
    new[key] = value
    reported = difference(new)
    may_be_another = ("ociVersion", "root")
    assert reported is not None or same or key in may_be_another
