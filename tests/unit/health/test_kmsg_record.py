"""/dev/kmsg records: parsed correctly where valid, typed and harmless where not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hack import kmsg
from kubemend.agent.health.kmsg import kmsg_record


def test_record_with_dictionary_is_parsed() -> None:
    record = kmsg_record.parse(
        b"6,1234,98765432,-,caller=T12;pcieport 0000:40:01.0: AER: Corrected error\n"
        b" SUBSYSTEM=pci\n DEVICE=+pci:0000:40:01.0\n"
    )

    assert isinstance(record, kmsg_record.KmsgRecord)
    assert (record.priority, record.facility, record.seq, record.usec) == (6, 0, 1234, 98765432)
    assert record.flags == "-"
    assert record.text == "pcieport 0000:40:01.0: AER: Corrected error"
    assert record.dictionary == {"SUBSYSTEM": "pci", "DEVICE": "+pci:0000:40:01.0"}


def test_facility_distinguishes_user_space_from_kernel() -> None:
    record = kmsg_record.parse(b"12,1,2,-;hello")

    assert isinstance(record, kmsg_record.KmsgRecord)
    assert (record.facility, record.priority) == (1, 4)


def test_escapes_are_undone_and_bad_utf8_is_replaced() -> None:
    record = kmsg_record.parse(rb"4,1,2,c;two\x0alines \xc3\xa9 \xff back\x5cslash")

    assert isinstance(record, kmsg_record.KmsgRecord)
    assert record.text == "two\nlines é � back\\slash"


@pytest.mark.parametrize(
    "raw",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\n", id="only a line break"),
        pytest.param(b"hello", id="no header"),
        pytest.param(b"4,1,2,-", id="no text"),
        pytest.param(b"4,1;text", id="header too short"),
        pytest.param(b"-4,1,2,-;text", id="negative"),
        pytest.param(b"4,1," + b"9" * 5000 + b",-;text", id="endless number"),
        pytest.param(b" SUBSYSTEM=pci", id="only a continuation"),
    ],
)
def test_invalid_record_is_malformed(raw: bytes) -> None:
    assert kmsg_record.parse(raw) == kmsg_record.Malformed(reason="no PRIO,SEQ,USEC,FLAGS; header", raw=raw)
    assert kmsg_record.position(raw) is None


@given(st.binary(max_size=300))
def test_any_bytes_give_a_value(raw: bytes) -> None:
    record = kmsg_record.parse(raw)

    assert isinstance(record, kmsg_record.KmsgRecord) == (kmsg_record.position(raw) is not None)


@given(
    text=st.text(max_size=100),
    seq=st.integers(min_value=0, max_value=2**63),
    usec=st.integers(min_value=0, max_value=2**63),
    priority=st.integers(min_value=0, max_value=191),
    dictionary=st.dictionaries(
        st.text(st.characters(min_codepoint=65, max_codepoint=90), min_size=1), st.text(max_size=20)
    ),
)
def test_written_record_round_trips(text: str, seq: int, usec: int, priority: int, dictionary: dict[str, str]) -> None:
    raw = kmsg.record(text, seq=seq, usec=usec, priority=priority, dictionary=dictionary)

    record = kmsg_record.parse(raw)

    assert isinstance(record, kmsg_record.KmsgRecord)
    assert (record.text, record.seq, record.usec) == (text, seq, usec)
    assert record.facility << 3 | record.priority == priority
    assert record.dictionary == dictionary
