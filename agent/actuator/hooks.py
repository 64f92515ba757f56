"""Run a container's postStart hook, as kubelet would after starting it (pkg/kubelet/lifecycle/handlers.go)."""

import asyncio
from typing import Protocol

import aiohttp

from agent.cri.errors import CriError
from agent.model.workloads import ContainerId, ExecHook, Hook, HttpHook, SleepHook, UnsupportedHook

_EXEC_SECONDS = 120.0
_HTTP_SECONDS = 30.0
_MOST_OUTPUT = 200


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
    match hook:
        case ExecHook(command=command):
            await _run_exec(command, runtime=runtime, container_id=container_id)
        case HttpHook():
            await _run_http(hook, pod_ip=pod_ip)
        case SleepHook(seconds=seconds):
            await asyncio.sleep(seconds)
        case UnsupportedHook(why=why):
            raise HookFailedError(why)


async def _run_exec(command: tuple[str, ...], *, runtime: Execs, container_id: ContainerId) -> None:
    try:
        result = await runtime.exec_sync(container_id, command, timeout=_EXEC_SECONDS)
    except CriError as error:
        raise HookFailedError(f"postStart exec could not be run: {error}") from error
    if result.exit_code != 0:
        tail = result.stderr.decode(errors="replace")[-_MOST_OUTPUT:]
        raise HookFailedError(f"postStart exec ended with exit code {result.exit_code}: {tail}")


async def _run_http(hook: HttpHook, *, pod_ip: str | None) -> None:
    host = hook.host or pod_ip
    if host is None:
        raise HookFailedError("postStart httpGet needs the pod's IP, which is not known")
    url = f"{hook.scheme.lower()}://{f'[{host}]' if ':' in host else host}:{hook.port}/{hook.path.lstrip('/')}"
    timeout = aiohttp.ClientTimeout(total=_HTTP_SECONDS)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout, trust_env=False) as session,
            # Kubelet does not verify certificates of hooks either: they are the pod's own.
            session.get(url, headers=dict(hook.headers), ssl=False) as response,
        ):
            if response.status >= 400:
                raise HookFailedError(f"postStart httpGet {url} answered {response.status}")
    except (aiohttp.ClientError, TimeoutError) as error:
        raise HookFailedError(f"postStart httpGet {url} failed: {error!r}") from error
