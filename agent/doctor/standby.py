"""Standby: can a successor be held until its frozen predecessor is dead (``agent.actuator.standby``)."""

from collections.abc import Sequence

from agent.actuator.exec_hold import ExecHolds, HoldError
from agent.actuator.standby import Standbys
from agent.cri import client, discovery
from agent.cri.errors import CriError
from agent.doctor import container_runtime
from agent.doctor.checks import Check, Result
from agent.settings import Settings

NAME = "standby"

_NEVER = 3600.0  # seconds; the look's own deadline comes first
_LIMIT = "pods in which nothing else runs and that an exit could end are not restarted"


async def available(settings: Settings) -> Sequence[Check]:
    """Say whether this node can do it, by the agent's own check at its start. No container is touched."""
    try:
        choice = discovery.discover(settings.cri_endpoint)
        async with client.CriClient(choice.path, deadlines=client.Deadlines(read=_NEVER)) as cri:
            await cri.version()
    except (discovery.NoRuntimeSocketError, ValueError, CriError):  # ValueError: the endpoint is not a socket's
        what = "the runtime could not be asked, and it is its mounts that are watched"
        return (Check(NAME, Result.UNKNOWN, what, f"see {container_runtime.RUNTIME}"),)
    holds = ExecHolds(socket_path=choice.path, proc=settings.proc)
    cgroup_root = settings.sysfs / "fs" / "cgroup"
    try:
        await Standbys(holds=holds, proc=settings.proc, cgroup_root=cgroup_root).check()
    except HoldError as error:
        what, _, mend = str(error).partition("; ")
        return (Check(NAME, Result.WARN, f"{what}: {_LIMIT}", mend),)
    return (Check(NAME, Result.OK, "a successor can be held until its predecessor is dead"),)
