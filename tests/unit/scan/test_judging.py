"""From what was found to verdicts: as an agent would count it, and never better than what was seen."""

from dataclasses import replace
from random import Random
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agent.health import catalog_file
from agent.health.catalog import FaultKey
from agent.model.actions import ActionClass
from agent.model.devices import DeviceLocator, Gpu, GpuUuid, Inventory, PciAddress
from agent.model.findings import Finding, FindingKind, Source
from agent.model.nics import LinkLayer, Nic, RdmaPort
from agent.model.verdicts import Health, Verdict
from agent.scan import judging
from agent.scan.found import Found, GpusFound, LogFound, NicsFound
from agent.scan.report import Report, Unseen
from agent.sources.nvml.protocol import Condition, DeviceAnswer, ProcessUse

CATALOG = catalog_file.builtin()
NOW = 1_700_000_000.0
UPTIME = 10_000.0  # seconds; the machine booted so long before NOW
GPU = Gpu(uuid=GpuUuid("GPU-1"), pci=PciAddress.parse("0000:10:00.0"), index=0, name="H100")
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
    """One GPU that answers so, and a kernel log that says this."""
    answers = {GPU.uuid: answer} if answer is not None else {}
    return Found(
        gpus=GpusFound(inventory=Inventory((GPU,), complete=True), answers=MappingProxyType(answers)),
        log=LogFound(findings=findings),
        started=MappingProxyType(started or {}),
    )


def judged(what: Found) -> Report:
    return judging.judge(what, catalog=CATALOG, now=NOW)


def verdict(what: Found) -> Verdict:
    (row,) = judged(what).rows
    return row.verdict


def test_a_gpu_that_answers_and_has_no_fault_is_healthy() -> None:
    (row,) = judged(found()).rows

    assert (row.label, row.name, row.pci) == ("GPU 0", "H100", "0000:10:00.0")
    assert row.verdict.health is Health.HEALTHY


@pytest.mark.parametrize("answer", [SILENT, None])
def test_a_gpu_that_did_not_answer_is_unknown(answer: DeviceAnswer | None) -> None:
    assert verdict(found(answer=answer)).health is Health.UNKNOWN


def test_a_fault_that_needs_more_than_a_restart_counts_however_old_it_is() -> None:
    told = verdict(found(logged(FindingKind.XID, "79", at=1.0)))

    assert (told.health, told.reason) == (Health.UNHEALTHY, "Xid79")
    assert told.since == NOW - UPTIME + 1.0


@pytest.mark.parametrize(
    ("started", "health"),
    [
        ({4711: 100.0}, Health.DEGRADED),  # it still runs
        ({}, Health.HEALTHY),  # it has ended
        ({4711: 7_000.0}, Health.HEALTHY),  # it has ended, and another one has its pid
    ],
)
def test_an_app_class_fault_holds_while_its_process_runs(started: dict[int, float], health: Health) -> None:
    assert verdict(found(logged(FindingKind.XID, "31", pid=4711), started=started)).health is health


@pytest.mark.parametrize(("began", "health"), [(100.0, Health.DEGRADED), (7_000.0, Health.HEALTHY)])
def test_where_no_process_is_named_any_on_the_device_may_have_been_hit(began: float, health: Health) -> None:
    answer = replace(WELL, processes=(ProcessUse(pid=99, used=1),))

    assert verdict(found(logged(FindingKind.XID, "31"), answer=answer, started={99: began})).health is health


def test_faults_of_ended_programs_do_not_add_up() -> None:
    many = [logged(FindingKind.XID, "31", at=600.0 * count, pid=count) for count in range(1, 10)]

    assert verdict(found(*many)).health is Health.HEALTHY


def test_what_is_left_to_the_driver_is_unknown_where_that_does_not_say() -> None:
    unknown = logged(FindingKind.XID, "9999")
    assert unknown.action is ActionClass.ASK_DRIVER

    assert verdict(found(unknown, answer=replace(WELL, recovery_action=None))).health is Health.UNKNOWN


def test_what_is_left_to_the_driver_ends_with_the_process_where_that_says_none() -> None:
    unknown = logged(FindingKind.XID, "9999", pid=4711)

    assert verdict(found(unknown)).health is Health.HEALTHY
    assert verdict(found(unknown, started={4711: 1.0})).action is ActionClass.RESTART_APP


def test_the_drivers_word_counts_where_it_asks_for_more() -> None:
    told = verdict(found(logged(FindingKind.XID, "9999"), answer=replace(WELL, recovery_action=1)))

    assert (told.health, told.action) == (Health.UNHEALTHY, ActionClass.RESET_DEVICE)


def test_a_degradation_that_was_not_seen_for_long_is_over() -> None:
    silence = CATALOG.over_after(FaultKey(FindingKind.AER_NON_FATAL))
    assert silence is not None

    def told(age: float) -> Health:
        return verdict(found(logged(FindingKind.AER_NON_FATAL, at=UPTIME - age))).health

    assert (told(silence - 1), told(silence)) == (Health.DEGRADED, Health.HEALTHY)


def test_a_nic_is_called_by_its_names_and_keeps_the_logs_word() -> None:
    what = replace(found(logged(FindingKind.NIC_FATAL, where=NIC)), nics=NicsFound(nics=(NIC,)))

    row = judged(what).rows[1]

    assert (row.label, row.name, row.pci) == ("mlx5_0 ib0", "mlx5_core 15b3:1021", "0000:3b:00.0")
    assert (row.verdict.health, row.verdict.reason) == (Health.UNHEALTHY, "NicFatal")


def test_a_link_that_is_not_up_is_told_and_is_no_fault() -> None:
    what = Found(nics=NicsFound(nics=(NIC,), silent=MappingProxyType({NIC: ("mlx5_0/1",)})))

    told = verdict(what)

    assert told.health is Health.HEALTHY
    assert "mlx5_0/1" in told.message


def test_a_fault_of_a_device_that_is_not_listed_has_a_row_of_its_own() -> None:
    what = replace(found(logged(FindingKind.XID, "79")), gpus=GpusFound())

    (row,) = judged(what).rows

    assert (row.label, row.pci, row.verdict.health) == ("0000:10:00.0", "0000:10:00.0", Health.UNHEALTHY)


def test_what_each_look_did_not_see_is_told() -> None:
    blind = [Unseen(part, "what", "mend") for part in ("nvml", "kernel-log", "network")]
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
def test_a_gpu_without_an_answer_is_never_healthy(findings: list[Finding], started: dict[int, float]) -> None:
    assert verdict(found(*findings, answer=None, started=started)).health is not Health.HEALTHY


@given(st.lists(xids, max_size=6))
def test_an_app_class_fault_whose_process_is_gone_changes_no_verdict(findings: list[Finding]) -> None:
    of_apps = [each for each in findings if each.action is ActionClass.RESTART_APP]
    others = [each for each in findings if each not in of_apps]

    assert verdict(found(*findings)) == verdict(found(*others))


@given(st.lists(xids, max_size=6), st.randoms())
def test_the_order_in_which_things_were_found_does_not_matter(findings: list[Finding], random: Random) -> None:
    at_once = {each.observed_at for each in findings}
    shuffled = random.sample(findings, len(findings))

    if len(at_once) == len(findings):
        assert verdict(found(*findings)) == verdict(found(*shuffled))


def test_what_the_agent_holds_is_shown_as_it_says_it() -> None:
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


def test_an_agent_that_holds_no_device_proves_nothing() -> None:
    assert judging.of_agent([]).exit_code == 3


@pytest.mark.parametrize("listed", [[{}], [{"health": "Healthy", "action": "None"}], [{"health": "Fine"}], [1]])
def test_what_is_no_list_of_devices_is_refused(listed: list[dict[str, str]]) -> None:
    with pytest.raises(ValueError, match="not a"):
        judging.of_agent(listed)
