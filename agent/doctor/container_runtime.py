"""The container runtime: does it answer, what can it do for a restart, and are its processes ours to see."""

import functools
from collections.abc import Sequence

from agent.cri import client, discovery
from agent.cri.errors import CriError, NotCri, NotFound, PermissionDenied, RuntimeUnavailable
from agent.doctor.checks import Check, Result
from agent.model.workloads import ContainerId, ContainerState
from agent.settings import Settings
from agent.sources.processes import ProcFs
from common import own_thread

RUNTIME = "container-runtime"
CONFIG, EVENTS = ABILITIES = ("container-config", "container-events")
PROCESSES = "host-processes"

_ERRORS = (discovery.NoRuntimeSocketError, ValueError, CriError)  # ValueError: the endpoint is not a socket's
_TOLD_ELSEWHERE = (discovery.NoRuntimeSocketError, ValueError, RuntimeUnavailable, PermissionDenied, NotCri)

_SAMPLE = 5  # containers that are compared with /proc; one that matches proves it


async def runtime(settings: Settings) -> Sequence[Check]:
    """Say which runtime answers, and where."""
    try:
        choice = _choose(settings)
        async with _connect(choice) as cri:
            version = await cri.version()
    except _ERRORS as error:
        return (Check(RUNTIME, Result.FAIL, *_told(error)),)
    return (Check(RUNTIME, Result.OK, f"{version.name} {version.version} at {choice.path} ({choice.why})"),)


async def abilities(settings: Settings) -> Sequence[Check]:
    """Say what the runtime can do for us.

    Asked once for both: on containerd 1.7 whoever reads the event stream takes the events away from other readers
    (the agent's listings make up for that), so it is not read longer than it must be.
    """
    try:
        async with _connect(_choose(settings)) as cri:
            able = await cri.probe()
    except _ERRORS as error:
        return tuple(_not_asked(name, error) for name in ABILITIES)
    return config_check(gives_config=able.gives_config), events_check(has_events=able.has_events)


def config_check(*, gives_config: bool | None) -> Check:
    """Say what it means that the runtime gives a container's config back, or hides it."""
    match gives_config:
        case True:
            return Check(CONFIG, Result.OK, "the runtime gives a container's config back: restarts by swap")
        case False:
            return Check(
                CONFIG,
                Result.WARN,
                "the runtime hides a container's config: no restarts by swap, and none at all of pods with "
                "restartPolicy Never",
                "nothing to do where pods use Always or OnFailure; else use containerd 1.6 or newer",
            )
        case None:
            return Check(
                CONFIG,
                Result.UNKNOWN,
                "no container of kubelet's on this node: whether the runtime gives a container's config back "
                "shows only on one",
                "start a pod on this node and ask again",
            )


def events_check(*, has_events: bool) -> Check:
    """Say what it means that the runtime has an event stream, or not."""
    if has_events:
        return Check(EVENTS, Result.OK, "the runtime tells container events as they happen")
    return Check(
        EVENTS,
        Result.WARN,
        "the runtime has no event stream: containers are listed every second instead",
        "containerd has it from 1.7 on",
    )


async def processes(settings: Settings) -> Sequence[Check]:
    """Compare the pids that the runtime tells with /proc: from another PID namespace they mean other processes."""
    proc = ProcFs(root=settings.proc, cgroup_root=settings.sysfs / "fs" / "cgroup")
    compared: list[tuple[ContainerId, int]] = []
    try:
        async with _connect(_choose(settings)) as cri:
            for container, pid in await _pids(cri):
                facts = await own_thread.once(functools.partial(proc.look, pid), name="doctor")
                if facts is not None and facts.container == container:
                    return (Check(PROCESSES, Result.OK, f"{settings.proc} is the host's"),)
                compared.append((container, pid))
    except _ERRORS as error:
        return (_not_asked(PROCESSES, error),)
    if not compared:
        what = f"no running container to compare {settings.proc} with"
        return (Check(PROCESSES, Result.UNKNOWN, what, "start a pod on this node and ask again"),)
    container, pid = compared[0]
    return (
        Check(
            PROCESSES,
            Result.FAIL,
            f"{settings.proc} does not show container {container[:12]} as process {pid}, as the runtime does: "
            "a fault's process cannot be found",
            "run the agent with hostPID: true, or mount the host's procfs and name it by --proc",
        ),
    )


async def _pids(cri: client.CriClient) -> list[tuple[ContainerId, int]]:
    """Return containers that run with the pids that the runtime tells, the newest first. Raises CriError."""
    running = await cri.list_containers(state=ContainerState.RUNNING)
    found = []
    for view in reversed(running):
        try:
            info = await cri.container_info(view.id)
        except NotFound:
            continue  # removed since the listing
        if info.pid is not None and info.state is ContainerState.RUNNING:
            found.append((view.id, info.pid))
        if len(found) == _SAMPLE:
            break
    return found


def _choose(settings: Settings) -> discovery.Choice:
    """Find the socket. Raises NoRuntimeSocketError or ValueError."""
    return discovery.discover(settings.cri_endpoint)


def _connect(choice: discovery.Choice) -> client.CriClient:
    """Connect without deadlines that matter: each look has its own."""
    return client.CriClient(choice.path, deadlines=client.Deadlines(read=3600.0))


def _told(error: Exception) -> tuple[str, str]:
    """Return what is wrong, and the mend."""
    if isinstance(error, CriError):
        return f"{error.what} at {error.where}", error.mend
    what, _, mend = str(error).partition("; ")
    return what, mend


def _not_asked(name: str, error: Exception) -> Check:
    """Return "could not tell"; a cause that the check of the runtime itself tells is not told again."""
    cause = "" if isinstance(error, _TOLD_ELSEWHERE) else f": {_told(error)[0]}"
    return Check(name, Result.UNKNOWN, f"the runtime could not be asked{cause}", f"see {RUNTIME}")
