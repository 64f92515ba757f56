"""The helper process that outlives the agent: ``python -m kubemend.agent.app.last_watch CGROUP_ROOT OWNER COMMAND...``.

Its stdin is a pipe that the agent never writes to; the pipe closes with the agent, for any reason. If a cgroup that
an agent of this node has marked is frozen then, this process executes the command. ``OWNER`` is the owner in the marks
of these agents (``last_resort.owner``). This process imports very little, because it lives as long as the agent.
"""

import os
import signal
import sys
from pathlib import Path

from kubemend.agent.actuator.hold import cgroups


def main() -> None:
    """Wait for the agent's end."""
    cgroup_root, owner, *command = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the agent
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    while os.read(0, 4096):
        pass
    marked = cgroups.marked(Path(cgroup_root))
    if any(_is_of_this_node(mark, owner=owner) and _is_frozen(group) for _, group, mark in marked):
        os.execv(command[0], command)  # noqa: S606 - the command comes from the agent


def _is_of_this_node(mark: str, *, owner: str) -> bool:
    """Return whether an agent of this node has written the mark, also with an earlier socket of its runtime.

    On a machine with several simulated nodes each node's process releases only its own containers.
    """
    return cgroups.Mark.parse(mark).owner.partition(" ")[0] == owner.partition(" ")[0]


def _is_frozen(group: cgroups.Cgroup) -> bool:
    try:
        return group.frozen
    except OSError:
        return True


if __name__ == "__main__":
    main()
