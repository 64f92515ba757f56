"""From the results of a scan to verdicts: as an agent would judge, and never better than observed."""

from dataclasses import replace
from random import Random
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.health.catalog.catalog import FaultKey
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceId, DeviceInventory, DeviceLocator, Gpu, PciAddress
from kubemend.agent.model.findings import Finding, FindingKind, Source
from kubemend.agent.model.nics import LinkLayer, Nic, RdmaPort
from kubemend.agent.model.verdicts import Health, Verdict
from kubemend.agent.scan import judging
from kubemend.agent.scan.report import Found, GpusFound, LogFound, NicsFound, Report, Unseen
from kubemend.agent.sources.nvml.protocol import Condition, DeviceAnswer, ProcessUse

CATALOG = catalog_file.builtin()
NOW = 1_700_000_000.0
UPTIME = 10_000.0  # seconds; the machine booted so long before NOW
GPU = Gpu(uuid=DeviceId("GPU-1"), pci=PciAddress.parse("0000:10:00.0"), index=0, name="H100")
OTHER_GPU = replace(GPU, uuid=DeviceId("GPU-2"), pci=PciAddress.parse("0000:20:00.0"))
NIC = Nic(
    pci=PciAddress.parse("0000:3b:00.0"),
    netdevs=("ib0",),
    ports=(RdmaPort("mlx5_0", 1, LinkLayer.INFINIBAND),),
    driver="mlx5_core",
    model="15b3:1021:15b3:0041",
)
WELL = DeviceAnswer(uuid=GPU.uuid, condition=Condition.ANSWERS, processes=(), recovery_action=0)
SILENT = DeviceAnswer(uuid=GPU.uuid, condition=Condition.UNREADABLE, error="unknown error")


def logged(
    kind: FindingKind, code: str = "", *, at: float = 5_000.0, pid: int | None = None, where: Gpu | Nic = GPU
) -> Finding:
    """A fault that the kernel logged ``at`` seconds after the boot."""
    return Finding(
        source=Source.KERNEL_LOG,
        kind=kind,
        code=code,
        device=DeviceLocator(pci=where.pci),
        action=CATALOG.action(FaultKey(kind, code)),
        observed_at=NOW - UPTIME + at,
        boot_seconds=at,
        pid=pid,
    )


def found(*findings: Finding, answer: DeviceAnswer | None = WELL, started: dict[int, float] | None = None) -> Found:
    """The results of a machine with one GPU, its answer, and the findings of the kernel log."""
    answers = {GPU.uuid: answer} if answer is not None else {}
    return Found(
        gpus=GpusFound(inventory=DeviceInventory((GPU,), complete=True), answers=MappingProxyType(answers)),
        log=LogFound(findings=findings),
        started=MappingProxyType(started or {}),
    )


def judged(what: Found) -> Report:
    return judging.judge(what, catalog=CATALOG, now=NOW)


def verdict(what: Found) -> Verdict:
    (row,) = judged(what).rows
    return row.verdict


def test_gpu_that_answers_without_faults_is_healthy() -> None:
    (row,) = judged(found()).rows

    assert (row.label, row.name, row.pci) == ("GPU 0", "H100", "0000:10:00.0")
    assert row.verdict.health is Health.HEALTHY


@pytest.mark.parametrize("answer", [SILENT, None])
def test_gpu_without_answer_is_unknown(answer: DeviceAnswer | None) -> None:
    assert verdict(found(answer=answer)).health is Health.UNKNOWN


def test_fault_beyond_a_restart_counts_at_any_age() -> None:
    judged = verdict(found(logged(FindingKind.XID, "79", at=1.0)))

    assert (judged.health, judged.reason) == (Health.UNHEALTHY, "Xid79")
    assert judged.since == NOW - UPTIME + 1.0


@pytest.mark.parametrize(
    ("started", "health"),
    [
        ({4711: 100.0}, Health.DEGRADED),  # it still runs
        ({4711: 5_000.5}, Health.DEGRADED),  # started within the two clocks' difference
        ({}, Health.HEALTHY),  # it has ended
        ({4711: 7_000.0}, Health.HEALTHY),  # it has ended, and another process has its pid
    ],
)
def test_app_class_fault_holds_while_its_process_runs(started: dict[int, float], health: Health) -> None:
    assert verdict(found(logged(FindingKind.XID, "31", pid=4711), started=started)).health is health


@pytest.mark.parametrize(
    ("finding", "health"),
    [
        pytest.param(logged(FindingKind.XID, "31", pid=4711), Health.UNKNOWN, id="a-program-may-still-run"),
        pytest.param(logged(FindingKind.XID, "45", pid=4711), Health.HEALTHY, id="no-fault"),
        pytest.param(logged(FindingKind.XID, "31"), Health.HEALTHY, id="no-pid"),
    ],
)
def test_pid_of_another_namespace_proves_no_end(finding: Finding, health: Health) -> None:
    """In a container without the host's PID namespace, the pid in the log is another process's, or none's."""
    assert judged(replace(found(finding), knows_pids=False)).health is health


@pytest.mark.parametrize(("began", "health"), [(100.0, Health.DEGRADED), (7_000.0, Health.HEALTHY)])
def test_fault_without_pid_may_concern_any_process_on_device(began: float, health: Health) -> None:
    answer = replace(WELL, processes=(ProcessUse(pid=99, used=1),))

    assert verdict(found(logged(FindingKind.XID, "31"), answer=answer, started={99: began})).health is health


def test_fault_without_pid_holds_while_the_processes_on_its_device_are_unknown() -> None:
    answer = replace(WELL, processes=None)

    assert verdict(found(logged(FindingKind.XID, "31"), answer=answer)).health is Health.DEGRADED


def test_fault_without_pid_of_a_gpu_that_is_not_listed_ends() -> None:
    assert verdict(found(logged(FindingKind.XID, "31", where=OTHER_GPU))).health is Health.HEALTHY


def test_fault_of_an_ended_program_is_not_named_next_to_a_later_one() -> None:
    ended, current = logged(FindingKind.XID, "31", at=1_000.0, pid=1), logged(FindingKind.XID, "43", pid=2)

    judged = verdict(found(ended, current, started={2: 100.0}))

    assert (judged.reason, judged.since) == ("Xid43", current.observed_at)


def test_faults_of_ended_programs_do_not_accumulate() -> None:
    many = [logged(FindingKind.XID, "31", at=600.0 * count, pid=count) for count in range(1, 10)]

    assert verdict(found(*many)).health is Health.HEALTHY


def test_fault_that_recurs_counts_as_for_an_agent() -> None:
    recurring = [logged(FindingKind.XID, "79", at=at) for at in (1_000.0, 3_000.0, 5_000.0)]

    assert verdict(found(*recurring[:2])).action is ActionClass.REBOOT_NODE
    assert verdict(found(*recurring)).action is ActionClass.REPLACE


def test_fault_left_to_silent_driver_is_unknown() -> None:
    unknown = logged(FindingKind.XID, "9999")
    assert unknown.action is ActionClass.ASK_DRIVER

    assert verdict(found(unknown, answer=replace(WELL, recovery_action=None))).health is Health.UNKNOWN


def test_fault_left_to_driver_ends_with_process_on_none() -> None:
    unknown = logged(FindingKind.XID, "9999", pid=4711)

    assert verdict(found(unknown)).health is Health.HEALTHY
    assert verdict(found(unknown, started={4711: 1.0})).action is ActionClass.RESTART_APP


def test_fault_left_to_driver_ends_with_its_process_whatever_else_runs() -> None:
    ended, elsewhere = logged(FindingKind.XID, "9999", pid=1), logged(FindingKind.XID, "31", pid=2, where=OTHER_GPU)
    no_fault = logged(FindingKind.XID, "45", pid=2)

    rows = judged(found(ended, elsewhere, no_fault, started={2: 1.0})).rows

    assert [row.verdict.health for row in rows] == [Health.HEALTHY, Health.DEGRADED]


def test_fault_that_the_driver_shows_now_needs_no_process() -> None:
    """People can override the catalog's class of a fault."""
    shown = replace(logged(FindingKind.ECC_UNCORRECTED), boot_seconds=None, action=ActionClass.RESTART_APP)
    what = found()

    judged = verdict(replace(what, gpus=replace(what.gpus, findings=(shown,))))

    assert (judged.health, judged.reason) == (Health.DEGRADED, "EccUncorrected")


def test_driver_is_asked_only_about_faults_that_are_left_to_it() -> None:
    """People can override the catalog's class of a fault."""
    fatal = logged(FindingKind.AER_FATAL)

    assert verdict(found(fatal)).health is Health.HEALTHY
    assert verdict(found(replace(fatal, action=ActionClass.RESET_DEVICE))).health is Health.UNHEALTHY


def test_recovery_action_counts_where_it_is_more_severe() -> None:
    judged = verdict(found(logged(FindingKind.XID, "9999"), answer=replace(WELL, recovery_action=1)))

    assert (judged.health, judged.action) == (Health.UNHEALTHY, ActionClass.RESET_DEVICE)


def test_degradation_is_over_after_long_absence() -> None:
    silence = CATALOG.over_after(FaultKey(FindingKind.AER_NON_FATAL))
    assert silence is not None

    def judged(age: float) -> Health:
        return verdict(found(logged(FindingKind.AER_NON_FATAL, at=UPTIME - age))).health

    assert (judged(silence - 1), judged(silence)) == (Health.DEGRADED, Health.HEALTHY)


def test_nic_has_its_names_and_log_faults() -> None:
    what = replace(found(logged(FindingKind.NIC_FATAL, where=NIC)), nics=NicsFound(nics=(NIC,)))

    row = judged(what).rows[1]

    assert (row.label, row.name, row.pci) == ("mlx5_0 ib0", "mlx5_core 15b3:1021", "0000:3b:00.0")
    assert (row.verdict.health, row.verdict.reason) == (Health.UNHEALTHY, "NicFatal")


def test_link_that_is_not_up_is_noted_without_fault() -> None:
    down = NicsFound(nics=(NIC,), silent=MappingProxyType({NIC: ("mlx5_0/1",)}))
    fatal = LogFound(findings=(logged(FindingKind.NIC_FATAL, where=NIC),))

    judged = verdict(Found(nics=down))

    assert judged.health is Health.HEALTHY
    assert judged.message == "no fault known; not up, since before this scan or never cabled: mlx5_0/1"
    assert verdict(Found(nics=replace(down, silent={}))).message == "answers, no fault known"
    assert verdict(Found(nics=down, log=fatal)) == verdict(Found(nics=replace(down, silent={}), log=fatal))


def test_fault_of_unlisted_device_has_its_own_row() -> None:
    what = replace(found(logged(FindingKind.XID, "79")), gpus=GpusFound())

    (row,) = judged(what).rows

    assert (row.label, row.pci, row.verdict.health) == ("0000:10:00.0", "0000:10:00.0", Health.UNHEALTHY)


def test_incomplete_checks_are_reported() -> None:
    blind = [Unseen(part, "what", "hint") for part in ("nvml", "kernel-log", "network")]
    what = Found(
        gpus=GpusFound(unseen=(blind[0],), notes=("one",)),
        log=LogFound(unseen=(blind[1],), notes=("two",)),
        nics=NicsFound(unseen=(blind[2],)),
    )

    assert judged(what) == Report(unseen=tuple(blind), notes=("one", "two"))


xids = st.builds(
    lambda code, at, pid: logged(FindingKind.XID, str(code), at=at, pid=pid),
    st.integers(1, 200),
    st.floats(0, UPTIME),
    st.none() | st.integers(1, 20),
)


@given(st.lists(xids, max_size=6), st.dictionaries(st.integers(1, 20), st.floats(0, UPTIME)))
def test_gpu_without_an_answer_is_never_healthy(findings: list[Finding], started: dict[int, float]) -> None:
    assert verdict(found(*findings, answer=None, started=started)).health is not Health.HEALTHY


@given(st.lists(xids, max_size=6))
def test_app_class_fault_of_ended_process_changes_no_verdict(findings: list[Finding]) -> None:
    of_apps = [each for each in findings if each.action is ActionClass.RESTART_APP]
    others = [each for each in findings if each not in of_apps]

    assert verdict(found(*findings)) == verdict(found(*others))


@given(st.lists(xids, max_size=6), st.randoms())
def test_order_of_findings_is_irrelevant(findings: list[Finding], random: Random) -> None:
    at_once = {each.observed_at for each in findings}
    shuffled = random.sample(findings, len(findings))

    if len(at_once) == len(findings):
        assert verdict(found(*findings)) == verdict(found(*shuffled))


def test_agents_verdicts_are_shown_unchanged() -> None:
    listed = [
        {
            "device": "GPU-1",
            "health": "Degraded",
            "action": "RestartApp",
            "reason": "Xid31",
            "message": "Xid 31",
            "since": 1.0,
        },
        {
            "device": "0000:3b:00.0",
            "health": "Healthy",
            "action": "None",
            "reason": "Healthy",
            "message": "",
            "since": 0.0,
        },
    ]

    report = judging.of_agent(listed)

    assert [(row.label, row.pci) for row in report.rows] == [("GPU-1", ""), ("0000:3b:00.0", "0000:3b:00.0")]
    assert report.rows[0].verdict == Verdict("GPU-1", Health.DEGRADED, ActionClass.RESTART_APP, "Xid31", "Xid 31", 1.0)
    assert (report.health, judging.of_agent(listed[1:]).health) == (Health.DEGRADED, Health.HEALTHY)


def test_agent_without_devices_gives_unknown() -> None:
    assert judging.of_agent([]).exit_code == 3


@pytest.mark.parametrize("listed", [[{}], [{"health": "Healthy", "action": "None"}], [{"health": "Fine"}], [1]])
def test_invalid_device_list_is_refused(listed: list[dict[str, str]]) -> None:
    with pytest.raises(ValueError, match="not a"):
        judging.of_agent(listed)
