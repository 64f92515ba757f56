"""Look at everything at once. A look that hangs becomes "could not be told" and holds up none of the others."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from agent.doctor import (
    api_rights,
    cgroups,
    container_runtime,
    directories,
    hub,
    journal,
    kernel_log,
    kubernetes_api,
    nvml,
    pod_resources,
    running_agent,
    standby,
)
from agent.doctor.checks import Check, Report, Result
from agent.settings import Settings
from common.kube import client as kube

PATIENCE = 10.0
"""Seconds that a look may take. NVML gets more: nvmlInit takes seconds per GPU without persistence mode."""

_NVML_PATIENCE = 3
_NEVER = 3600.0  # seconds; the look's own deadline comes first


@dataclass(frozen=True, slots=True)
class _Look:
    """What to do for the checks of these names, and what mends a silence."""

    names: tuple[str, ...]
    work: Callable[[], Awaitable[Sequence[Check]]]
    if_silent: str
    patience: float


async def examine(settings: Settings, *, patience: float = PATIENCE) -> Report:
    """Look at all that an agent with these settings needs. ``patience`` is in seconds.

    Only reads, except for a file that is written into the state directory and removed again, and access reviews.
    """
    async with kube.connect(kubeconfig=settings.kubeconfig, deadlines=kube.Deadlines(call=_NEVER)) as api:
        async with asyncio.TaskGroup() as tasks:
            looks = [tasks.create_task(_take(look)) for look in _looks(settings, api=api, patience=patience)]
        return Report(node=settings.node_name, checks=tuple(check for look in looks for check in look.result()))


def _looks(settings: Settings, *, api: kube.KubeClient, patience: float) -> tuple[_Look, ...]:
    server = "is the API server up, and reachable from here?"
    runtime = "see the runtime's log (journalctl -u containerd or crio): it hangs or is overloaded"
    disk = "see whether the file system answers; use a local one"

    def look(*names: str, work: Callable[[], Awaitable[Sequence[Check]]], if_silent: str, times: int = 1) -> _Look:
        return _Look(names=names, work=work, if_silent=if_silent, patience=times * patience)

    return (
        look(container_runtime.RUNTIME, work=lambda: container_runtime.runtime(settings), if_silent=runtime),
        look(*container_runtime.ABILITIES, work=lambda: container_runtime.abilities(settings), if_silent=runtime),
        look(container_runtime.PROCESSES, work=lambda: container_runtime.processes(settings), if_silent=runtime),
        look(kubernetes_api.API, work=lambda: kubernetes_api.server(api), if_silent=server),
        look(*kubernetes_api.NODE, work=lambda: kubernetes_api.node(api, name=settings.node_name), if_silent=server),
        look(api_rights.RIGHTS, work=lambda: api_rights.needed(api), if_silent=server),
        look(api_rights.NODE, work=lambda: api_rights.for_node(api), if_silent=server),
        look(api_rights.GROUPS, work=lambda: api_rights.for_groups(api), if_silent=server),
        look(api_rights.TRAINING, work=lambda: api_rights.for_training(api), if_silent=server),
        look(
            pod_resources.NAME,
            work=lambda: pod_resources.answers(settings.pod_resources_socket),
            if_silent="see kubelet's log: it hangs or is overloaded",
        ),
        look(
            kernel_log.NAME,
            work=lambda: kernel_log.readable(settings.kernel_log, proc=settings.proc),
            if_silent="name /dev/kmsg, or a regular file of records in its format",
        ),
        look(
            *nvml.NAMES,
            work=lambda: nvml.gpus(sysfs=settings.sysfs, hang_deadline=patience),
            if_silent="run nvidia-smi on the node and look for NVRM in its kernel log",
            times=_NVML_PATIENCE,
        ),
        look(cgroups.NAME, work=lambda: cgroups.freezer(settings.sysfs), if_silent=disk),
        look(standby.NAME, work=lambda: standby.available(settings), if_silent=runtime),
        look(directories.STATE, work=lambda: directories.state(settings.state_dir), if_silent=disk),
        look(journal.NAME, work=lambda: journal.quarantined(settings.state_dir), if_silent=disk),
        look(directories.LINKS, work=lambda: directories.log_links(settings.pod_log_symlinks), if_silent=disk),
        look(
            hub.NAME,
            work=lambda: hub.reachable(settings),
            if_silent="see whether a network policy or firewall drops what goes there",
        ),
        look(
            running_agent.NAME,
            work=lambda: running_agent.ready(settings.listen()),
            if_silent="see the agent's log; what listens there may not be the agent",
        ),
    )


async def _take(look: _Look) -> Sequence[Check]:
    try:
        async with asyncio.timeout(look.patience):
            return await look.work()
    except TimeoutError:
        what, mend = f"no answer within {look.patience:g} s", look.if_silent
    except OSError as error:
        what, mend = f"could not be looked at: {error}", "run as root on the node, or in the agent's pod"
    return tuple(Check(name=name, result=Result.UNKNOWN, what=what, mend=mend) for name in look.names)
