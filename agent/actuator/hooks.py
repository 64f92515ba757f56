"""Run a container's lifecycle hooks, as kubelet would (pkg/kubelet/lifecycle/handlers.go)."""

import asyncio
from typing import Protocol

import aiohttp
import structlog

from agent.cri.errors import CriError
from agent.model.workloads import ContainerId, ExecHook, Hook, HttpHook, SleepHook, UnsupportedHook

log = structlog.get_logger(__name__)

_EXEC_SECONDS = 120.0
_HTTP_SECONDS = 30.0
_MOST_OUTPUT = 200
_MINIMUM_GRACE = 2.0  # kubelet's minimumGracePeriodInSeconds


class HookFailedError(Exception):
    """The hook ran and said no, or could not be run."""


class ExecResult(Protocol):
    """What CRI's ExecSync answers."""

    @property
    def exit_code(self) -> int: ...
    @property
    def stderr(self) -> bytes: ...


class Execs(Protocol):
    """The one call of the runtime that hooks need."""

    async def exec_sync(self, container_id: ContainerId, command: tuple[str, ...], *, timeout: float) -> ExecResult:
        """Run a command in the container."""


async def run_post_start(hook: Hook, *, runtime: Execs, container_id: ContainerId, pod_ip: str | None) -> None:
    """Run the hook to its end. Raises HookFailedError."""
    await _run(hook, runtime=runtime, container_id=container_id, pod_ip=pod_ip, exec_seconds=_EXEC_SECONDS)


async def run_pre_stop(
    hook: Hook, *, runtime: Execs, container_id: ContainerId, pod_ip: str | None, grace: float
) -> float:
    """Run the hook within the grace period; return what is left of it for SIGTERM, but at least kubelet's minimum.

    A hook that fails, or takes too long, keeps nothing from being stopped (kuberuntime_container.go, killContainer).
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        async with asyncio.timeout(grace):
            await _run(hook, runtime=runtime, container_id=container_id, pod_ip=pod_ip, exec_seconds=grace)
    except (HookFailedError, TimeoutError) as error:
        log.warning("hook.pre_stop_failed", container_id=container_id, error=str(error) or "grace period over")
    return max(grace - (loop.time() - begun), min(grace, _MINIMUM_GRACE))


async def _run(
    hook: Hook, *, runtime: Execs, container_id: ContainerId, pod_ip: str | None, exec_seconds: float
) -> None:
    match hook:
        case ExecHook(command=command):
            await _run_exec(command, runtime=runtime, container_id=container_id, seconds=exec_seconds)
        case HttpHook():
            await _run_http(hook, pod_ip=pod_ip)
        case SleepHook(seconds=seconds):
            await asyncio.sleep(seconds)
        case UnsupportedHook(why=why):
            raise HookFailedError(why)


async def _run_exec(command: tuple[str, ...], *, runtime: Execs, container_id: ContainerId, seconds: float) -> None:
    try:
        result = await runtime.exec_sync(container_id, command, timeout=seconds)
    except CriError as error:
        raise HookFailedError(f"exec could not be run: {error}") from error
    if result.exit_code != 0:
        tail = result.stderr.decode(errors="replace")[-_MOST_OUTPUT:]
        raise HookFailedError(f"exec ended with exit code {result.exit_code}: {tail}")


async def _run_http(hook: HttpHook, *, pod_ip: str | None) -> None:
    host = hook.host or pod_ip
    if host is None:
        raise HookFailedError("httpGet needs the pod's IP, which is not known")
    url = f"{hook.scheme.lower()}://{f'[{host}]' if ':' in host else host}:{hook.port}/{hook.path.lstrip('/')}"
    timeout = aiohttp.ClientTimeout(total=_HTTP_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            # Kubelet does not verify certificates of hooks either: they are the pod's own.
            session.get(url, headers=dict(hook.headers), ssl=False) as response,
        ):
            if response.status >= 400:
                raise HookFailedError(f"httpGet {url} answered {response.status}")
    except (aiohttp.ClientError, TimeoutError) as error:
        raise HookFailedError(f"httpGet {url} failed: {error!r}") from error
