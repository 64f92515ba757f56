"""Parse one line of kernel log as printed by dmesg, journalctl, syslog, pstore or a raw copy of kmsg.

Each of them adds its own prefix. Only prefixes of kernel messages are stripped: a line of another program that quotes a
kernel message keeps its prefix, and so matches no grammar.
"""

import re
from dataclasses import dataclass

from kubemend.agent.health.kmsg import kmsg_record

_PREFIX = re.compile(
    r"""
    \s*
    (?:<\d{1,4}>)?                                                      # pstore, dmesg --raw
    (?:kern\s*:[a-z]{2,8}\s*:\s*)?                                     # dmesg --decode; user space has `user  :`
    (?:
        \[\s*(?P<first>\d{1,12}\.\d{1,9})(?:\s+<[^>\]]{0,20}>)?\]\s*    # dmesg, journalctl -o short-monotonic
      | \[\s*\+\d{1,12}\.\d{1,9}\]\s*                                   # dmesg --reltime
      | \[[A-Z][a-z]{2}[A-Za-z\d\s]{2,12}\d\d:\d\d(?::\d\d\s\d{4})?\]\s*  # -T `[Sun Feb 23 16:24:18 2025]`, -e
      | \d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\s+   # ISO: dmesg, rsyslog, journalctl
      | \w{3}\s+\d{1,2}\s\d\d:\d\d:\d\d(?:\.\d{1,9})?\s+                # syslog, journalctl -o short, short-precise
      | (?:\w{3}\s+)?\d{4}-\d\d-\d\d\s\d\d:\d\d:\d\d(?:\.\d{1,9})?\s\S{1,6}\s+   # journalctl -o short-full
      | \d{9,11}\.\d{1,9}\s+                                            # journalctl -o short-unix
    )?
    (?:(?:\S{1,255}\s)?kernel:\s+)?                                     # syslog and journal: `host kernel: `
    (?:\[\s*(?P<second>\d{1,12}\.\d{1,9})\]\s*)?                        # syslog with printk.time
    (?:\[\s*[TC]\d{1,10}\]\s*)?                                         # CONFIG_PRINTK_CALLER
    """,
    re.VERBOSE | re.ASCII,
)


@dataclass(frozen=True, slots=True)
class LogLine:
    """The kernel's own text, and its clock (seconds since boot) where the line shows it."""

    text: str
    boot_seconds: float | None = None


def parse(line: str) -> LogLine:
    """Strip the prefix of a log tool. Never raises."""
    record = kmsg_record.parse(line.encode("utf-8", "replace")) if line[:1].isdigit() else None
    if isinstance(record, kmsg_record.KmsgRecord):
        return LogLine(text=record.text, boot_seconds=record.usec / 1e6)
    line = line.rstrip("\r\n")
    prefix = _PREFIX.match(line)
    assert prefix is not None, "every part of the prefix is optional"
    seconds = prefix["first"] or prefix["second"]
    return LogLine(text=line[prefix.end() :], boot_seconds=float(seconds) if seconds is not None else None)
