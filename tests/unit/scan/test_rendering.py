"""The text of a report, and its exit code."""

import json

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.verdicts import Health, Verdict
from kubemend.agent.scan import rendering
from kubemend.agent.scan.report import Report, Row, Unseen

FINE = Row(
    label="GPU 0",
    name="NVIDIA H100 80GB HBM3",
    pci="0000:10:00.0",
    verdict=Verdict("GPU-0", Health.HEALTHY, ActionClass.NONE, "Healthy", "answers, no fault known"),
)
LOST = Row(
    label="GPU 1",
    name="NVIDIA H100 80GB HBM3",
    pci="0000:1d:00.0",
    verdict=Verdict("GPU-1", Health.UNHEALTHY, ActionClass.REBOOT_NODE, "Xid79", "Xid 79: reboot", 1_700_000_000.5),
)
BARE = Row("0000:3b:00.0", "", "", Verdict("0000:3b:00.0", Health.DEGRADED, ActionClass.OBSERVE, "NicHot", "hot"))
BLIND = Unseen("kernel-log", "/dev/kmsg cannot be read: Operation not permitted", "run it as root")
REPORT = Report(rows=(FINE, LOST, BARE), unseen=(BLIND,), notes=("the kernel log begins 2.0 h after the boot",))

TEXT = """\
DEVICE        NAME                   PCI           VERDICT    ACTION      REASON    SINCE                 MESSAGE
GPU 0         NVIDIA H100 80GB HBM3  0000:10:00.0  Healthy    None        Healthy   -                     answers, no \
fault known
GPU 1         NVIDIA H100 80GB HBM3  0000:1d:00.0  Unhealthy  RebootNode  Xid79     2023-11-14T22:13:20Z  Xid 79: reboot
0000:3b:00.0  -                      -             Degraded   Observe     NicHot    -                     hot

Unknown  kernel-log: /dev/kmsg cannot be read: Operation not permitted; run it as root
note: the kernel log begins 2.0 h after the boot
3 devices: 1 healthy, 1 degraded, 1 unhealthy"""


def row(health: Health) -> Row:
    return Row("GPU 0", "", "", Verdict("GPU-0", health, ActionClass.NONE, "Reason", "message"))


def test_devices_are_a_table_and_the_rest_lines_below() -> None:
    assert rendering.text(REPORT, colour=False) == TEXT


def test_colours_change_only_colours() -> None:
    coloured = rendering.text(REPORT, colour=True)

    assert coloured != TEXT
    assert click.unstyle(coloured) == TEXT


def test_json_object_has_all_fields_of_the_table() -> None:
    body = rendering.as_json(REPORT)

    assert json.loads(json.dumps(body)) == body
    assert (body["health"], body["notes"]) == ("Unhealthy", list(REPORT.notes))
    assert body["unseen"] == [{"part": BLIND.part, "what": BLIND.what, "hint": BLIND.hint}]
    assert body["devices"][1] == {
        "device": "GPU-1",
        "label": "GPU 1",
        "name": "NVIDIA H100 80GB HBM3",
        "pci": "0000:1d:00.0",
        "health": "Unhealthy",
        "action": "RebootNode",
        "reason": "Xid79",
        "message": "Xid 79: reboot",
        "since": 1_700_000_000.5,
    }


def test_machine_without_devices_differs_from_unchecked_machine() -> None:
    assert rendering.text(Report(), colour=False) == "this machine has no GPU and no NIC"
    assert rendering.text(Report(unseen=(BLIND,)), colour=False).splitlines()[-1] == "no device was seen"


@pytest.mark.parametrize(
    ("healths", "blind", "code"),
    [
        ([], False, 0),
        ([Health.HEALTHY], False, 0),
        ([Health.HEALTHY, Health.DEGRADED], False, 1),
        ([Health.UNHEALTHY, Health.DEGRADED], False, 2),
        ([Health.HEALTHY, Health.UNKNOWN], False, 3),
        ([], True, 3),
        ([Health.HEALTHY], True, 3),
        ([Health.DEGRADED, Health.UNKNOWN], True, 1),
        ([Health.UNHEALTHY], True, 2),
    ],
)
def test_worst_known_verdict_decides_the_exit_code(healths: list[Health], blind: bool, code: int) -> None:
    report = Report(rows=tuple(map(row, healths)), unseen=(BLIND,) if blind else ())

    assert report.exit_code == code


@given(st.lists(st.sampled_from(Health)), st.booleans())
def test_exit_code_0_requires_complete_healthy_check(healths: list[Health], blind: bool) -> None:
    report = Report(rows=tuple(map(row, healths)), unseen=(BLIND,) if blind else ())

    assert (report.exit_code == 0) == (not blind and set(healths) <= {Health.HEALTHY})


@given(words=st.text(), colour=st.booleans())
def test_any_text_can_be_rendered(words: str, colour: bool) -> None:
    verdict = Verdict(words, Health.UNKNOWN, ActionClass.NONE, words, words)
    report = Report(rows=(Row(words, words, words, verdict),), unseen=(Unseen(words, words, words),), notes=(words,))

    assert rendering.text(report, colour=colour)
