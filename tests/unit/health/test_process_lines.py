"""Lines about processes: out of memory, stuck, hung; and driver assertions, which name no device either."""

import pytest

from kubemend.agent.health.state import evidence
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import FindingKind
from tests.unit.health.reading import read, read_one

CONTAINER = "4f1c" * 16
POD = "0f6f7b0e-3a52-4c5e-9c58-0d8f1a2b3c4d"
SLICE = f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{POD.replace('-', '_')}.slice"


def summary(cgroup: str, *, limited: str | None = None, task: str = "python3", pid: int = 4242) -> str:
    """Return the line. ``limited`` is the cgroup whose limit was reached; None: the node's memory was."""
    constraint, scope = ("NONE", "global_oom") if limited is None else ("MEMCG", f"oom_memcg={limited}")
    return (
        f"oom-kill:constraint=CONSTRAINT_{constraint},nodemask=(null),cpuset=x,mems_allowed=0-1,{scope},"
        f"task_memcg={cgroup},task={task},pid={pid},uid=0"
    )


@pytest.mark.parametrize(
    "cgroup",
    [
        f"{SLICE}/cri-containerd-{CONTAINER}.scope",
        f"{SLICE}/crio-{CONTAINER}.scope/nested",
        f"/kubepods/burstable/pod{POD}/{CONTAINER}",
        f"/kubepods/pod{POD}/{CONTAINER}",
        f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-kubepods-burstable-pod"
        f"{POD.replace('-', '_')}.slice/cri-containerd-{CONTAINER}.scope",
    ],
)
def test_oom_kill_names_process_container_and_pod(cgroup: str) -> None:
    finding = read_one(summary(cgroup, limited=cgroup))

    assert (finding.kind, finding.action) == (FindingKind.OOM_KILL, ActionClass.NONE)
    assert (finding.pid, finding.process_name, finding.device.pci) == (4242, "python3", None)
    assert finding.evidence[evidence.CONTAINER_ID] == CONTAINER
    assert finding.evidence[evidence.POD_UID] == POD
    assert finding.evidence[evidence.OOM_SCOPE] == "cgroup"


def test_cgroup_named_by_a_container_shows_no_other_pod() -> None:
    own = f"/kubepods/pod{POD}/{CONTAINER}"
    nested = f"{own}/x,task_memcg=/kubepods/pod{POD.replace('0', '1')}/{CONTAINER.replace('4', '5')}"
    for line in (summary(nested, limited=nested), summary(nested, limited=own), summary(nested)):
        finding = read_one(line)

        assert finding.evidence[evidence.POD_UID] == POD
        assert finding.evidence[evidence.CONTAINER_ID] == CONTAINER


def test_uid_of_static_pod_has_no_dashes() -> None:
    finding = read_one(summary(f"/kubepods/burstable/pod{'9a' * 16}/{CONTAINER}"))

    assert finding.evidence[evidence.POD_UID] == "9a" * 16


def test_oom_kill_outside_pods_and_of_node_is_marked() -> None:
    finding = read_one(summary("/system.slice/ssh.service", task="a,pid=7,uid=0 x"))

    assert (finding.pid, finding.process_name) == (4242, "a,pid=7,uid=0 x")
    assert evidence.CONTAINER_ID not in finding.evidence
    assert evidence.POD_UID not in finding.evidence
    assert finding.evidence[evidence.OOM_SCOPE] == "node"


@pytest.mark.parametrize(
    ("line", "scope"),
    [
        ("Memory cgroup out of memory: Killed process 77 (python3) total-vm:8kB, anon-rss:4kB", "cgroup"),
        ("Memory cgroup out of memory: Killed process 77 (python3), total-vm:8kB, anon-rss:4kB", "cgroup"),
        ("Memory cgroup out of memory: Kill process 77 (python3) score 1973 or sacrifice child", "cgroup"),
        ("Out of memory: Killed process 77 (python3) total-vm:8kB, anon-rss:4kB, UID:0", "node"),
        ("Out of memory: Kill process 77 (python3) score 973 or sacrifice child", "node"),
        ("Out of memory (oom_kill_allocating_task): Killed process 77 (python3) total-vm:8kB", "node"),
    ],
)
def test_older_line_names_only_the_process(line: str, scope: str) -> None:
    finding = read_one(line)

    assert (finding.kind, finding.pid, finding.process_name) == (FindingKind.OOM_KILL, 77, "python3")
    assert finding.evidence == {evidence.OOM_SCOPE: scope}


def test_two_lines_about_one_death_are_one_finding() -> None:
    killed = "Memory cgroup out of memory: Killed process {} (python3) total-vm:8kB, anon-rss:4kB"

    findings = read(summary(SLICE), killed.format(4242), killed.format(4243))

    assert [each.pid for each in findings] == [4242, 4243], "the second is one of the container's other processes"


@pytest.mark.parametrize(
    "line",
    [
        summary(SLICE)[:-9],
        "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=x,mems_allowed=0",
        "python3 invoked oom-killer: gfp_mask=0x6000c0(GFP_KERNEL), nodemask=(null), order=0, oom_score_adj=974",
        "Memory cgroup out of memory: Killed process",
        "Memory cgroup out of memory: OOM victim 77 (python3) is already exiting. Skip killing the task",
        "oom_reaper: reaped process 77 (python3), now anon-rss:0kB",
        "INFO: task python3:77 is blocked on a mutex likely owned by task cat:78.",
        "INFO: task xyz blocked for more than 60 seconds.",
        "watchdog: BUG: soft lockup - CPU#0 stuck for 27s! [python3:",
        "x: INFO: task jfsmount:136986 blocked for more than 120 seconds.",
    ],
)
def test_line_without_victim_gives_no_finding(line: str) -> None:
    assert read(line) == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "watchdog: BUG: soft lockup - CPU#18 stuck for 27s! [cuda-EvtHandlr:2254956]",
            ("SoftLockup", 2254956, "cuda-EvtHandlr", "27"),
        ),
        (
            "NMI watchdog: BUG: soft lockup - CPU#0 stuck for 22s! [kworker/0:1:77]",
            ("SoftLockup", 77, "kworker/0:1", "22"),
        ),
        ("BUG: soft lockup - CPU#0 stuck for 22s! [swapper/0:0]", ("SoftLockup", None, "swapper/0", "22")),
        (
            "INFO: task jfsmount:136986 blocked for more than 120 seconds.",
            ("HungTask", 136986, "jfsmount", "120"),
        ),
        (
            "INFO: task kworker/u8:3:1177 blocked for more than 122 seconds.",
            ("HungTask", 1177, "kworker/u8:3", "122"),
        ),
        (
            "INFO: task python3:4242 blocked in I/O wait for more than 245 seconds.",
            ("HungTask", 4242, "python3", "245"),
        ),
    ],
)
def test_stuck_task_is_named_with_its_pid(line: str, expected: tuple[str, int | None, str, str]) -> None:
    finding = read_one(line)

    seconds = finding.evidence[evidence.SECONDS]
    assert (finding.kind.value, finding.pid, finding.process_name, seconds) == expected
    assert finding.device.pci is None


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: nvAssertFailedNoLog: Assertion failed: 0 @ rs_client.c:1194",
        "NVRM nvAssertFailedNoLog: Assertion failed: NV_FALSE @ gpu_mgr.c:296",
        "NVRM: GPU0 nvAssertOkFailedNoLog: Assertion failed: Call timed out [NV_ERR_TIMEOUT] (0x00000065) returned",
    ],
)
def test_driver_assertion_is_counted_without_a_gpu(line: str) -> None:
    finding = read_one(line)

    assert (finding.kind, finding.action) == (FindingKind.NVRM_ASSERT, ActionClass.NONE)
    assert finding.device.pci is None
    assert finding.text.startswith("Assertion failed: ")
