"""Check the container runtime: whether it answers, what it supports, and whether its processes are visible."""

import functools
from collections.abc import Sequence

from kubemend.agent.actuator.hold import oci_runtimes
from kubemend.agent.clients.cri import client, discovery
from kubemend.agent.clients.cri.errors import CriError, NotCri, NotFound, PermissionDenied, RuntimeUnavailable
from kubemend.agent.doctor.checks import Check, Result
from kubemend.agent.model.workloads import ContainerId, ContainerState
from kubemend.agent.restart.oci_programs import Named
from kubemend.agent.settings import Settings
from kubemend.agent.sources.processes import ProcFs
from kubemend.common import blocking, unix_sockets

RUNTIME = "container-runtime"
CONFIG, EVENTS = ABILITIES = ("container-config", "container-events")
PROCESSES = "host-processes"
OCI = "oci-runtime"

_ERRORS = (discovery.NoRuntimeSocketError, ValueError, CriError)  # ValueError: the endpoint is not a socket's
_REPORTED_ELSEWHERE = (discovery.NoRuntimeSocketError, ValueError, RuntimeUnavailable, PermissionDenied, NotCri)

_SAMPLE = 5  # containers that are compared with /proc; one match is proof


async def runtime(settings: Settings) -> Sequence[Check]:
    """Check which runtime answers, and where."""
    try:
        choice = _choose(settings)
        async with _connect(choice) as cri:
            version = await cri.version()
    except _ERRORS as error:
        return (Check(RUNTIME, Result.FAIL, *_problem(error)),)
    return (Check(RUNTIME, Result.OK, f"{version.name} {version.version} at {choice.path} ({choice.reason})"),)


async def abilities(settings: Settings) -> Sequence[Check]:
    """Check which features of the runtime restarts can use.

    One query covers both: on containerd 1.7 each reader of the event stream takes events away from other readers (the
    agent's listings compensate for that), so it is read only as long as necessary.
    """
    try:
        async with _connect(_choose(settings)) as cri:
            able = await cri.probe()
    except _ERRORS as error:
        return tuple(_not_asked(name, error) for name in ABILITIES)
    return config_check(gives_config=able.gives_config), events_check(has_events=able.has_events)


def config_check(*, gives_config: bool | None) -> Check:
    """Return the check for whether the runtime returns a container's config or hides it."""
    match gives_config:
        case True:
            return Check(
                CONFIG, Result.OK, "the runtime returns a container's config, or it can be rebuilt: restarts by swap"
            )
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
                "this node has no container of kubelet, which is needed to check whether the runtime returns a "
                "container's config",
                "start a pod on this node and run doctor again",
            )


def events_check(*, has_events: bool) -> Check:
    """Return the check for whether the runtime has an event stream."""
    if has_events:
        return Check(EVENTS, Result.OK, "the runtime streams container events")
    return Check(
        EVENTS,
        Result.WARN,
        "the runtime has no event stream: containers are listed every second instead",
        "use containerd 1.7 or newer",
    )


async def oci(settings: Settings) -> Sequence[Check]:
    """Check whether the programs that run containers are found: holds and stop requests are seen by them."""
    try:
        choice = _choose(settings)
        async with _connect(choice) as cri:
            named = await cri.named_programs()
    except _ERRORS as error:
        return (_not_asked(OCI, error),)
    pid = await blocking.once(functools.partial(unix_sockets.listener, choice.path), name="doctor")
    process = settings.proc / str(pid)
    find = functools.partial(oci_runtimes.find, process, named=named.programs)
    return (
        oci_check(
            named, [f"/{file.relative_to(process / 'root')}" for file in await blocking.once(find, name="doctor")]
        ),
    )


def oci_check(named: Named, files: Sequence[str]) -> Check:
    """Return the check for the OCI runtimes: what the runtime names, and the files that were found."""
    if not files:
        where = f"what the runtime names ({', '.join(named.programs)})" if named.programs else "its search path"
        what = f"no OCI runtime found by {where}: stop requests are not seen"
        return Check(OCI, Result.WARN, what, "set BinaryName (containerd) or runtime_path (CRI-O) to its absolute path")
    found = ", ".join(files)
    if named.problem is not None:
        what = f"{named.problem.what} ({named.problem.reason.value}); found by search path and name: {found}"
        return Check(OCI, Result.WARN, what, "set BinaryName (containerd) or runtime_path (CRI-O) to an absolute path")
    return Check(OCI, Result.OK, found)


async def processes(settings: Settings) -> Sequence[Check]:
    """Compare the runtime's pids with /proc: from another PID namespace they would mean other processes."""
    proc = ProcFs(root=settings.proc, cgroup_root=settings.sysfs / "fs" / "cgroup")
    compared: list[tuple[ContainerId, int]] = []
    try:
        async with _connect(_choose(settings)) as cri:
            for container, pid in await _pids(cri):
                facts = await blocking.once(functools.partial(proc.facts, pid), name="doctor")
                if facts is not None and facts.container == container:
                    return (Check(PROCESSES, Result.OK, f"{settings.proc} is the host's"),)
                compared.append((container, pid))
    except _ERRORS as error:
        return (_not_asked(PROCESSES, error),)
    if not compared:
        what = f"no running container to compare {settings.proc} with"
        return (Check(PROCESSES, Result.UNKNOWN, what, "start a pod on this node and run doctor again"),)
    container, pid = compared[0]
    return (
        Check(
            PROCESSES,
            Result.FAIL,
            f"{settings.proc} does not show container {container[:12]} as process {pid}, as the runtime does: "
            "a fault's process cannot be found",
            "run the agent with hostPID: true, or mount the host's procfs and pass its path with --proc",
        ),
    )


async def _pids(cri: client.CriClient) -> list[tuple[ContainerId, int]]:
    """Return running containers with the pids from the runtime, newest first. Raises CriError."""
    running = await cri.list_containers(state=ContainerState.RUNNING)
    found = []
    for view in reversed(running):
        try:
            info = await cri.container_status(view.id)
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
    """Connect with a very long deadline: each check has its own timeout."""
    return client.CriClient(choice.path, deadlines=client.Deadlines(read=3600.0))


def _problem(error: Exception) -> tuple[str, str]:
    """Return the problem and the hint."""
    if isinstance(error, CriError):
        return f"{error.what} at {error.where}", error.hint
    what, _, hint = str(error).partition("; ")
    return what, hint


def _not_asked(name: str, error: Exception) -> Check:
    """Return an inconclusive check; a cause that the runtime's own check reports is not repeated."""
    cause = "" if isinstance(error, _REPORTED_ELSEWHERE) else f": {_problem(error)[0]}"
    return Check(name, Result.UNKNOWN, f"the runtime could not be queried{cause}", f"see {RUNTIME}")
