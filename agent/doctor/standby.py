"""Check whether a successor can be held until its frozen predecessor is dead (``agent.actuator.hold.standby``)."""

from collections.abc import Sequence

from kubemend.agent.actuator.hold.exec_hold import ExecHolds, HoldError
from kubemend.agent.actuator.hold.standby import Standbys
from kubemend.agent.clients.cri import client, discovery
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.doctor import container_runtime
from kubemend.agent.doctor.checks import Check, Result
from kubemend.agent.settings import Settings

NAME = "standby"

_NEVER = 3600.0  # seconds; the check's own timeout comes first
_LIMIT = "pods in which nothing else runs and that an exit could end are not restarted"


async def available(settings: Settings) -> Sequence[Check]:
    """Run the agent's own startup check for standby on this node. No container is touched."""
    try:
        choice = discovery.discover(settings.cri_endpoint)
        async with client.CriClient(choice.path, deadlines=client.Deadlines(read=_NEVER)) as cri:
            await cri.version()
    except (discovery.NoRuntimeSocketError, ValueError, CriError):  # ValueError: the endpoint is not a socket's
        what = "the runtime, whose mounts must be watched, could not be queried"
        return (Check(NAME, Result.UNKNOWN, what, f"see {container_runtime.RUNTIME}"),)
    holds = ExecHolds(socket_path=choice.path, proc=settings.proc)
    cgroup_root = settings.sysfs / "fs" / "cgroup"
    try:
        await Standbys(holds=holds, proc=settings.proc, cgroup_root=cgroup_root).check()
    except HoldError as error:
        what, _, hint = str(error).partition("; ")
        return (Check(NAME, Result.WARN, f"{what}: {_LIMIT}", hint),)
    return (Check(NAME, Result.OK, "a successor can be held until its predecessor is dead"),)
