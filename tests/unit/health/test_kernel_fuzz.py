"""Any content of a kernel log is read without an error, and gives no finding that the log does not contain."""

import random
import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from bench import kernel_log_fuzz
from bench.kernel_samples import SAMPLES
from kubemend.agent.health.kmsg import line_reader
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.devices import DeviceLocator, PciAddress
from kubemend.agent.model.findings import Finding, FindingKind, Source
from tests.unit.health.reading import read

RECORDS = 50_000
"""``python -m bench.kernel_log_fuzz`` reads a million."""


def test_mutated_records_break_nothing_and_invent_nothing_in_bounded_time() -> None:
    cpu_before = time.process_time()

    tally = kernel_log_fuzz.run(RECORDS, seed=79)

    assert tally.inventions == []
    assert tally.records == RECORDS
    assert len(tally.findings) > 10, "most mutations must leave the lines readable"
    assert time.process_time() - cpu_before < 60, "about 1 s: something in a grammar backtracks without bounds"


def test_truncated_line_gives_only_its_remaining_facts() -> None:
    for text in SAMPLES:
        cuts = [text[:end] for end in range(len(text))]
        gaps = [text[:at] + text[at + 1 :] for at in range(len(text))]
        for line in cuts + gaps:
            for finding in read(line):
                assert list(kernel_log_fuzz.inventions(finding, text=line)) == [], line


@given(st.sampled_from(SAMPLES), st.sampled_from(SAMPLES), st.data())
def test_two_joined_lines_give_only_their_own_facts(one: str, other: str, data: st.DataObject) -> None:
    line = one[: data.draw(st.integers(0, len(one)))] + other[data.draw(st.integers(0, len(other))) :]

    for finding in read(line):
        assert list(kernel_log_fuzz.inventions(finding, text=line)) == []


@given(st.sampled_from(SAMPLES), st.text(max_size=20), st.integers(0, 300), st.integers(0, 20))
def test_any_text_inserted_into_a_line_is_tolerated(sample: str, stuffing: str, at: int, cut: int) -> None:
    line = sample[:at] + stuffing + sample[at + cut :]

    for finding in read(line):
        assert list(kernel_log_fuzz.inventions(finding, text=line)) == []


NAMES = (
    "a, Nonfatal",
    "Fatal,\tx, Fatal",
    "a, (GPC1,TPC2)",
    "(GPC 7, TPC 7)",
    "x, pid=1",
    "79, x",
    "): 79, y",
    "a\n, b",
)
DRIVERS = (
    "31, pid=7, name={}, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC3 GPCCLIENT_T1_5 faulted @ 0x0",
    "13, pid=7, name={}, Graphics Exception: channel 0x0000000a, Class 0000cbc0, Offset 00000510, Data 0017e2ac",
    "13, pid=7, name={}, Graphics SM Warp Exception on (GPC 2, TPC 0, SM 1): Out Of Range Address",
    "43, pid=7, name={}, channel 0x0000000a",
    "45, pid=7, name={}, Ch 00000001 caused by previous Xid 149",
    "145, pid=7, name={}, RLW_REMAP Fatal XC0 i0 Link 03 (0x00000004 0x00000001 0x00000000 0x00000000)",
    "149, pid=7, name={}, an unknown form",
    "154, pid=7, name={}, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)",
)


@pytest.mark.parametrize("line", DRIVERS)
@given(name=st.sampled_from(NAMES) | st.text(max_size=15) | st.text("a, FatlNon()GPCTX:=0157\t", max_size=15))
def test_name_of_a_process_changes_nothing_but_what_people_read(line: str, name: str) -> None:
    """A line with a name such as ``IN=`` gives no finding at all (``kmsg.provenance``)."""
    assume("IN=" not in name)
    (named,) = read(f"NVRM: Xid (PCI:0000:41:00): {line.format(name)}")
    (plain,) = read(f"NVRM: Xid (PCI:0000:41:00): {line.format('python3')}")
    for found in (named, plain):
        assert found.pid == 7
    assert (named.code, named.action, named.device, named.evidence) == (
        plain.code,
        plain.action,
        plain.device,
        plain.evidence,
    )


@pytest.mark.parametrize("text", SAMPLES)
def test_prefilter_passes_every_line_with_a_finding(text: str) -> None:
    assert line_reader.may_matter(text.encode()) == line_reader.text_may_matter(text)
    assert line_reader.may_matter(text.encode()) or not read(text)


@pytest.mark.parametrize(
    "finding",
    [
        pytest.param(
            Finding(Source.KERNEL_LOG, FindingKind.XID, "79", DeviceLocator(), ActionClass.NONE, 0.0), id="code"
        ),
        pytest.param(
            Finding(
                Source.KERNEL_LOG,
                FindingKind.OFF_BUS,
                "",
                DeviceLocator(pci=PciAddress.parse("0000:41:00.0")),
                ActionClass.NONE,
                0.0,
            ),
            id="address",
        ),
        pytest.param(
            Finding(Source.KERNEL_LOG, FindingKind.OOM_KILL, "", DeviceLocator(), ActionClass.NONE, 0.0, pid=7),
            id="pid",
        ),
        pytest.param(
            Finding(
                Source.KERNEL_LOG,
                FindingKind.OOM_KILL,
                "",
                DeviceLocator(),
                ActionClass.NONE,
                0.0,
                evidence={"container_id": "4f1c"},
            ),
            id="evidence",
        ),
    ],
)
def test_checker_detects_invented_facts(finding: Finding) -> None:
    text = "NVRM: Xid (PCI:0000:14:00): 31, pid=8, name=python3, MMU Fault"

    assert list(kernel_log_fuzz.inventions(finding, text=text)) != []


def test_consecutive_fuzz_records_differ() -> None:
    stream = kernel_log_fuzz.records(random.Random(1))

    assert len({next(stream) for _ in range(1000)}) > 900
