"""What an agent has frozen is let go where no agent is left to do it: ``python -m agent.app.last_resort``.

It needs the runtime and the kernel, and no memory on the disk: what is frozen bears a mark. Arguments: the state
directory, the runtime's socket, whose marks these are, and where cgroups and processes are to be seen.
"""

import asyncio
import sys
from pathlib import Path

import structlog

from agent.actuator.freezer import Freezer
from agent.app import charge
from agent.cri import client, discovery
from agent.cri.errors import CriError
from agent.model.workloads import ContainerId, ContainerView
from agent.restart import leftovers
from agent.restart.leftovers import Fate
from agent.settings import Settings
from agent.sources.processes import ProcFs
from common import contained

log = structlog.get_logger(__name__)

LOOK_AGAIN = 1.0
"""Seconds after which what waits is looked at again, and a runtime that does not answer is asked again."""
_BEFORE_AN_END = 10.0
"""Seconds that an agent takes for it that cannot start."""


class LastResort:
    """Lets go what stands still, as long as nobody else is in charge. Works on one runtime."""

    def __init__(self, *, state_dir: Path, socket: str, owner: str, cgroup_root: Path, proc: Path) -> None:
        self._state_dir = state_dir
        self._socket = socket
        self._owner = owner
        self._cgroup_root = cgroup_root
        self._proc = proc

    async def run(self) -> None:
        """Work until nothing stands still any more, or an agent is there again."""
        async with client.CriClient(self._socket) as cri:
            freezer = Freezer(
                runtime=cri,
                holds=None,
                processes=ProcFs(root=self._proc, cgroup_root=self._cgroup_root),
                proc=self._proc,
                cgroup_root=self._cgroup_root,
                owner=self._owner,
            )
            while await self._goes_on(cri, freezer):  # noqa: ASYNC110 - the kernel tells nobody
                await asyncio.sleep(LOOK_AGAIN)

    async def _goes_on(self, cri: client.CriClient, freezer: Freezer) -> bool:
        """Look once; return whether there is something left to do."""
        with charge.taken(self._state_dir) as in_charge:
            if not in_charge:
                log.info("last_resort.not_needed", state_dir=str(self._state_dir))
                return False
            try:
                return await _let_go(cri, freezer)
            except CriError as error:
                log.warning("last_resort.runtime_unavailable", error=str(error))
                return True


async def _let_go(cri: client.CriClient, freezer: Freezer) -> bool:
    """Do what can be done now; return whether anything stands still yet. Raises CriError."""
    still = freezer.left_frozen()
    if not still:
        return False
    views = await cri.list_containers()
    for successor in leftovers.in_the_way(views, still=still):
        await cri.remove_container(successor)
    names: dict[ContainerId, ContainerView] = {view.id: view for view in views}
    for container_id, fate in leftovers.fates(views, still=still).items():
        with contained.within(contained.Part.CONTAINER, container_id):
            container = str(names[container_id].ref) if container_id in names else ""
            log.warning("last_resort.fate", container_id=container_id, container=container, fate=fate.value)
            if fate is Fate.GOES_ON:
                freezer.thaw(container_id)
            elif fate is Fate.ENDS:
                freezer.kill(container_id)
    return bool(freezer.left_frozen())


async def before_the_end(settings: Settings) -> None:
    """Let go what stands still, in an agent that cannot start. Never fails, and takes some seconds at most."""
    try:
        socket = discovery.discover(settings.cri_endpoint).path
        async with asyncio.timeout(_BEFORE_AN_END):
            await LastResort(
                state_dir=settings.state_dir,
                socket=socket,
                owner=owner(settings.node_name, socket_path=socket),
                cgroup_root=settings.sysfs / "fs" / "cgroup",
                proc=settings.proc,
            ).run()
    except Exception as error:  # noqa: BLE001 - why the agent cannot start is what people must hear
        log.warning("last_resort.failed", error=repr(error))


def owner(node: str, *, socket_path: str) -> str:
    """Return what is written on containers that an agent holds; the same socket has more than one name."""
    return f"{node} {Path(socket_path).resolve()}"


def main() -> None:
    """Let go what stands still."""
    state_dir, socket, whose, cgroup_root, proc = sys.argv[1:]
    resort = LastResort(
        state_dir=Path(state_dir), socket=socket, owner=whose, cgroup_root=Path(cgroup_root), proc=Path(proc)
    )
    asyncio.run(resort.run())


if __name__ == "__main__":
    main()
