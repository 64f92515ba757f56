"""Lines of log tools: their prefix is stripped, the kernel's text stays."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubemend.agent.health.kmsg import kmsg_record

KERNEL = "NVRM: Xid (PCI:0000:41:00): 79, GPU has fallen off the bus."


@pytest.mark.parametrize(
    ("prefix", "seconds"),
    [
        ("", None),
        ("[  123.456789] ", 123.456789),
        ("[123456.789012] ", 123456.789012),
        ("[  123.456789][ T1234] ", 123.456789),
        ("[  123.456789 <    0.000012>] ", 123.456789),
        ("[  +0.000012] ", None),
        ("[Sun Feb 23 16:24:18 2025] ", None),
        ("[Feb23 16:24] ", None),
        ("kern  :warn  : 2025-01-21T04:41:44,283302+00:00 ", None),
        ("kern  :err   : [  123.456789] ", 123.456789),
        ("2025-01-21T04:41:44,283302+00:00 ", None),
        ("<6>[    2.600000] ", 2.6),
        ("<4>", None),
        ("Jun 12 16:31:50 fedora-box kernel: ", None),
        ("Jun 12 16:31:50.123456 fedora-box kernel: ", None),
        ("Sep  9 16:18:04 bubz kernel: [68185.875052] ", 68185.875052),
        ("2025-01-21T04:41:44+0000 node-7 kernel: ", None),
        ("2025-01-21T04:41:44.283302+00:00 node-7 kernel: [  123.456789] ", 123.456789),
        ("[  123.456789] node-7 kernel: ", 123.456789),
        ("Tue 2025-01-21 04:41:44 UTC node-7 kernel: ", None),
        ("1737434504.283302 node-7 kernel: ", None),
        ("kernel: [123.456789] ", 123.456789),
        ("kernel: ", None),
        ("4,1234,123456789,-;", 123.456789),
    ],
)
def test_prefix_of_log_tool_is_stripped(prefix: str, seconds: float | None) -> None:
    assert kmsg_record.parse_printed(prefix + KERNEL + "\n") == kmsg_record.LogLine(text=KERNEL, boot_seconds=seconds)


@pytest.mark.parametrize(
    "prefix",
    [
        "Jun 12 16:31:50 fedora-box trainer[4242]: ",
        "Jun 12 16:31:50 fedora-box node-agent: saw kernel: ",
        "level=error msg=",
        '  File "train.py", line 3: ',
        "[rank0] ",
        "user  :warn  : [  123.456789] ",
    ],
)
def test_program_that_quotes_the_kernel_keeps_its_prefix(prefix: str) -> None:
    assert not kmsg_record.parse_printed(prefix + KERNEL).text.startswith("NVRM")


@given(st.text(max_size=200))
def test_any_text_gives_a_line(text: str) -> None:
    assert kmsg_record.parse_printed(text).text in text.rstrip("\r\n") or text[:1].isdigit()
