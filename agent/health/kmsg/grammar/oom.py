"""Processes that the kernel killed when out of memory (mm/oom_kill.c).

::

    oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=...,mems_allowed=0,oom_memcg=/kubepods...,
        task_memcg=/kubepods...,task=python3,pid=4242,uid=0                               (one line; since 5.0)
    Memory cgroup out of memory: Killed process 4242 (python3) total-vm:8kB, anon-rss:...  (since 4.20)
    Memory cgroup out of memory: Kill process 4242 (python3) score 1973 or sacrifice child (before)
    Out of memory: Killed process 4242 (python3) total-vm:8kB, ...                         (the node's own memory)
"""

import re
from dataclasses import dataclass

_SUMMARY = re.compile(
    r"oom-kill:constraint=CONSTRAINT_(?P<constraint>[A-Z_]{1,20}),(?>.*?\b(?:global_oom|oom_memcg=(?=/)))"
    r"(?P<limited>/.*?)?,task_memcg=(?P<cgroup>(?(limited)(?P=limited)|/).*?),"
    r"task=(?P<name>.{0,15}),pid=(?P<pid>[1-9]\d{0,9}),uid=\d{1,10}\s*$",
    re.ASCII | re.DOTALL,
)
"""The killed process is in the cgroup whose limit was reached, or below it.

A container names the cgroups below its own, such as ``,task_memcg=``, and could have another pod's in the line.
"""
_KILLED = re.compile(
    r"(?P<memcg>Memory cgroup o|O)ut of memory(?: \(oom_kill_allocating_task\))?: "
    r"Kill(?:ed)? process (?P<pid>[1-9]\d{0,9}) \((?P<name>.{0,15})\),? (?:total-vm:\d|score \d)",
    re.ASCII | re.DOTALL,
)


@dataclass(frozen=True, slots=True)
class OomLine:
    """One killed process. ``cgroup`` is its cgroup, None where the line does not name it.

    ``of_node``: the node's memory was exhausted, not that of a cgroup.
    """

    pid: int
    name: str
    of_node: bool
    cgroup: str | None = None


def parse(text: str) -> OomLine | None:
    """Parse a line; None unless it names a killed process."""
    if (match := _SUMMARY.match(text)) is not None:
        of_node = match["constraint"] != "MEMCG"
        return OomLine(pid=int(match["pid"]), name=match["name"], of_node=of_node, cgroup=match["cgroup"])
    if (match := _KILLED.match(text)) is not None:
        return OomLine(pid=int(match["pid"]), name=match["name"], of_node=match["memcg"] == "O")
    return None
