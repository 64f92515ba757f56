"""Release the containers that an agent has frozen, when no agent is left to do it: ``python -m agent.app.last_resort``.

It needs the runtime and the kernel, but no journal: frozen containers carry a mark. A container that a swap was to
replace is handled immediately, because the kernel has let its successor run when the agent died, and both hold the same
devices.

Arguments: seconds for which holds for rounds wait for another agent, the state directory, the runtime's socket, the
owner in the marks, and the paths of cgroups and procfs.
"""

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from pathlib import Path
from typing import Final

import structlog

from kubemend.agent.actuator.hold import cgroups
from kubemend.agent.actuator.hold.freezer import Freezer
from kubemend.agent.app import node_lock
from kubemend.agent.clients.cri import client, discovery
from kubemend.agent.clients.cri.errors import CriError
from kubemend.agent.model.workloads import ContainerId, ContainerSummary, PodUid
from kubemend.agent.restart import leftovers
from kubemend.agent.restart.leftovers import Disposition
from kubemend.agent.settings import Settings
from kubemend.agent.sources.processes import ProcFs
from kubemend.common import contained

log = structlog.get_logger(__name__)

RETRY_SECONDS = 1.0
"""Seconds between checks of waiting containers, and between calls to a runtime that does not answer."""
_SWAPPED: Final = (cgroups.REPLACED,)
_ALL: Final = (cgroups.HELD, cgroups.REPLACED)
_PASSES: Final = 5
"""How often a running agent handles them: a container may wait for the removal, or the end, of another one."""
_BEFORE_AN_END = 10.0
"""Seconds that an agent that cannot start spends on it."""


class LastResort:
    """Releases frozen containers while no agent holds the node lock. Works on one runtime.

    ``swaps_only_seconds``: seconds in which only interrupted swaps are completed.
    """

    def __init__(
        self,
        *,
        state_dir: Path,
        socket: str,
        owner: str,
        cgroup_root: Path,
        proc: Path,
        swaps_only_seconds: float = 0.0,
    ) -> None:
        self._swaps_only_seconds = swaps_only_seconds
        self._state_dir = state_dir
        self._socket = socket
        self._owner = owner
        self._cgroup_root = cgroup_root
        self._proc = proc

    async def run(self) -> None:
        """Work until nothing is frozen any more, or another agent holds the node lock."""
        async with client.CriClient(self._socket, proc=self._proc) as cri:
            freezer = Freezer(
                runtime=cri,
                holds=None,
                processes=ProcFs(root=self._proc, cgroup_root=self._cgroup_root),
                proc=self._proc,
                cgroup_root=self._cgroup_root,
                owner=self._owner,
            )
            begun = time.monotonic()
            while await self._run_once(  # noqa: ASYNC110 - the kernel sends no event
                cri, freezer, states=_ALL if time.monotonic() - begun >= self._swaps_only_seconds else _SWAPPED
            ):
                await asyncio.sleep(RETRY_SECONDS)

    async def _run_once(self, cri: client.CriClient, freezer: Freezer, *, states: Collection[str]) -> bool:
        """Run one pass; return whether there is work left."""
        with node_lock.acquire(self._state_dir) as in_charge:
            if not in_charge:
                log.info("last_resort.not_needed", state_dir=str(self._state_dir))
                return False
            try:
                return await _release(cri, freezer, states=states)
            except CriError as error:
                log.warning("last_resort.runtime_unavailable", error=str(error))
                return True


async def _release(cri: client.CriClient, freezer: Freezer, *, states: Collection[str]) -> bool:
    """Handle the containers with marks of these states; return whether any container is still frozen.

    Raises CriError.
    """
    still = freezer.left_frozen(states)
    if not still:
        return bool(freezer.left_frozen())
    await _handle(cri, freezer, await cri.list_containers(), still=still)
    return bool(freezer.left_frozen())


async def end_unowned_swaps(
    cri: client.CriClient, freezer: Freezer, *, opened: Callable[[], Awaitable[Collection[PodUid]]]
) -> None:
    """Handle the old containers of swaps that nothing in the journal ends: a quarantined one's, or a lost file's.

    ``opened`` returns the pods with open intents. They are read after the marks: what is frozen by then, an open intent
    ends, or none. Raises CriError and what ``opened`` raises.
    """
    for _ in range(_PASSES):
        still = await asyncio.to_thread(freezer.left_frozen, _SWAPPED)
        busy = await opened() if still else ()
        views = await cri.list_containers() if still else ()
        still -= {view.id for view in views if view.ref.pod.uid in busy}
        if not still:
            return
        await _handle(cri, freezer, views, still=still)
        await asyncio.sleep(RETRY_SECONDS)


async def _handle(
    cri: client.CriClient, freezer: Freezer, views: Sequence[ContainerSummary], *, still: Collection[ContainerId]
) -> None:
    """Release or end these frozen containers, given everything that the runtime lists."""
    names: dict[ContainerId, ContainerSummary] = {view.id: view for view in views}
    for container_id, fate in leftovers.dispositions(views, still=still).items():
        with contained.within(contained.Part.CONTAINER, container_id):
            container = str(names[container_id].ref) if container_id in names else ""
            log.warning("last_resort.handled", container_id=container_id, container=container, fate=fate.value)
            if fate is Disposition.GOES_ON:
                freezer.thaw(container_id)
            elif fate is Disposition.ENDS:
                freezer.kill(container_id)
    for successor in leftovers.in_the_way(views, still=still):  # the containers before them wait until the next pass
        try:
            await cri.remove_container(successor)
        except CriError as error:
            log.warning("last_resort.not_removed", container_id=successor, error=str(error))


async def before_the_end(settings: Settings) -> None:
    """Release frozen containers, in an agent that cannot start. Never fails, and takes some seconds at most."""
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
    except Exception as error:  # noqa: BLE001 - the reason why the agent cannot start must be reported
        log.warning("last_resort.failed", error=repr(error))


def owner(node: str, *, socket_path: str) -> str:
    """Return the owner in the marks of held containers.

    The socket path is resolved, because it can have several names.
    """
    return f"{node} {Path(socket_path).resolve()}"


def main() -> None:
    """Run the last resort with the arguments of the command line."""
    swaps_only_seconds, state_dir, socket, mark_owner, cgroup_root, proc = sys.argv[1:]
    resort = LastResort(
        state_dir=Path(state_dir),
        socket=socket,
        owner=mark_owner,
        cgroup_root=Path(cgroup_root),
        proc=Path(proc),
        swaps_only_seconds=float(swaps_only_seconds),
    )
    asyncio.run(resort.run())


if __name__ == "__main__":
    main()
