"""The process that outlives the agent: ``python -m agent.app.last_watch SECONDS CGROUP_ROOT COMMAND...``.

Its stdin is a pipe that the agent never writes to; it ends with the agent, whatever ends that. Where anything of ours
stands still then, the command is run so many seconds later, in this process's place. It loads next to nothing before,
for it is there as long as the agent.
"""

import os
import signal
import sys
import time
from pathlib import Path

from agent.actuator import cgroups


def main() -> None:
    """Wait for the agent's end, and then for the next agent."""
    seconds, cgroup_root, *command = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):  # meant for the agent
        signal.signal(number, signal.SIG_IGN)
    os.chdir("/")
    while os.read(0, 4096):
        pass
    if any(_stands_still(group) for _, group, _ in cgroups.marked(Path(cgroup_root))):
        time.sleep(float(seconds))
        os.execv(command[0], command)  # noqa: S606 - the agent's own words


def _stands_still(group: cgroups.Cgroup) -> bool:
    try:
        return group.frozen
    except OSError:
        return True


if __name__ == "__main__":
    main()
