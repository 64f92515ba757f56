"""Run a container's lifecycle hooks, as kubelet does (pkg/kubelet/lifecycle/handlers.go).

Hooks are written by the pod's author: a hook that cannot be run, for any reason, has failed.
"""

import asyncio
from collections.abc import Collection, Coroutine
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final

import aiohttp
import structlog
import yarl

from kubemend.agent import ports
from kubemend.agent.actuator import turns
from kubemend.agent.clients.cri.errors import AnswerTooLong, CriError
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ExecHook,
    Hook,
    HttpHook,
    PodRef,
    SleepHook,
    UnsupportedHook,
)
from kubemend.agent.restart import options

log = structlog.get_logger(__name__)

_LONGEST: Final = options.LONGEST_GRACE
"""Seconds that a postStart hook may take; kubelet waits without a limit."""
_MOST_OUTPUT = 200
_MOST_REASON: Final = 300
"""Characters. The reason goes into logs and conditions, and contains text from the pod."""
_MOST_REQUESTS: Final = 10
"""As kubelet: "stopped after 10 redirects"."""
_REDIRECTS: Final = frozenset(
    {
        HTTPStatus.MOVED_PERMANENTLY,
        HTTPStatus.FOUND,
        HTTPStatus.SEE_OTHER,
        HTTPStatus.TEMPORARY_REDIRECT,
        HTTPStatus.PERMANENT_REDIRECT,
    }
)
_MINIMUM_GRACE = 2.0  # kubelet's minimumGracePeriodInSeconds


class HookFailedError(Exception):
    """The hook ran and failed, or could not be run."""


@dataclass(frozen=True, slots=True)
class PreStop:
    """The result of a preStop hook: the seconds left for SIGTERM (at least kubelet's minimum), and why it failed."""

    grace: float
    failure: str | None


class RunningHooks:
    """The postStart hooks that run.

    A restart does not wait for its hooks while a round needs the pod. They go on then: the round may be refused. If it
    is not, it ends them with their containers.
    """

    def __init__(self) -> None:
        self._tasks: dict[ContainerRef, asyncio.Task[None]] = {}

    async def run(self, container: ContainerRef, hook: Coroutine[Any, Any, None]) -> None:
        """Run a hook, and wait for its end unless a round needs the pod. Raises the hook's errors during the wait."""
        task = asyncio.create_task(hook, name=f"postStart of {container}")
        self._tasks[container] = task
        task.add_done_callback(lambda _: self._ended(container, task))
        try:
            await turns.unless_hurried(_until_done(task))
        except asyncio.CancelledError:
            task.cancel()
            raise
        if task.done():
            task.result()

    def _ended(self, container: ContainerRef, task: "asyncio.Task[None]") -> None:
        if self._tasks.get(container) is task:
            del self._tasks[container]
        if not task.cancelled():
            task.exception()  # it has been logged; nothing may wait for it any more

    def end(self, pod: PodRef, names: Collection[str]) -> None:
        """End the hooks of a pod's containers, which a restart is about to end."""
        for name in names:
            if (task := self._tasks.get(ContainerRef(pod, name))) is not None:
                task.cancel()


async def _until_done(task: "asyncio.Task[None]") -> None:
    await asyncio.wait({task})


async def run_post_start(hook: Hook, *, runtime: ports.Execs, container_id: ContainerId, pod_ip: str | None) -> None:
    """Run the hook to its end. Raises HookFailedError."""
    await _run(hook, runtime=runtime, container_id=container_id, pod_ip=pod_ip, exec_seconds=_LONGEST)


async def run_pre_stop(
    hook: Hook, *, runtime: ports.Execs, container_id: ContainerId, pod_ip: str | None, grace: float
) -> PreStop:
    """Run the hook within the grace period of ``grace`` seconds.

    A hook that fails, or takes too long, does not prevent the stop (kuberuntime_container.go, killContainer).
    """
    loop = asyncio.get_running_loop()
    begun = loop.time()
    failure = None
    try:
        async with asyncio.timeout(grace):
            await _run(hook, runtime=runtime, container_id=container_id, pod_ip=pod_ip, exec_seconds=grace)
    except (HookFailedError, TimeoutError) as error:
        failure = str(error) or "the grace period is over"
        log.warning("hook.pre_stop_failed", container_id=container_id, error=failure)
    return PreStop(grace=max(grace - (loop.time() - begun), min(grace, _MINIMUM_GRACE)), failure=failure)


async def _run(
    hook: Hook, *, runtime: ports.Execs, container_id: ContainerId, pod_ip: str | None, exec_seconds: float
) -> None:
    """Run the hook to its end. Raises HookFailedError, also when anything prevents it from being run."""
    try:
        await _handle(hook, runtime=runtime, container_id=container_id, pod_ip=pod_ip, exec_seconds=exec_seconds)
    except HookFailedError as error:
        raise HookFailedError(str(error)[:_MOST_REASON]) from error
    except Exception as error:  # an error that a library raises about the pod's input is a failure of that pod's hook
        raise HookFailedError(f"the hook could not be run: {error!r}"[:_MOST_REASON]) from error


async def _handle(
    hook: Hook, *, runtime: ports.Execs, container_id: ContainerId, pod_ip: str | None, exec_seconds: float
) -> None:
    match hook:
        case ExecHook(command=command):
            await _run_exec(command, runtime=runtime, container_id=container_id, seconds=exec_seconds)
        case HttpHook():
            await _run_http(hook, pod_ip=pod_ip)
        case SleepHook(seconds=seconds):
            await asyncio.sleep(seconds)
        case UnsupportedHook(reason=reason):
            raise HookFailedError(reason)


async def _run_exec(
    command: tuple[str, ...], *, runtime: ports.Execs, container_id: ContainerId, seconds: float
) -> None:
    try:
        result = await runtime.exec_sync(container_id, command, timeout=seconds)
    except AnswerTooLong as error:  # it has ended; its exit code is in the part that is not read
        log.info("hook.output_too_long", container_id=container_id, error=str(error))
        return
    except CriError as error:
        raise HookFailedError(f"exec could not be run: {error}") from error
    if result.exit_code != 0:
        tail = result.stderr.decode(errors="replace")[-_MOST_OUTPUT:]
        raise HookFailedError(f"exec ended with exit code {result.exit_code}: {tail}")


async def _run_http(hook: HttpHook, *, pod_ip: str | None) -> None:
    """Send the request. Any answer means that the hook was run: kubelet ignores its status (runHTTPHandler)."""
    host = hook.host or pod_ip
    if host is None:
        raise HookFailedError("httpGet could not be sent: the pod's IP is not known")
    address = f"{hook.scheme.lower()}://{f'[{host}]' if ':' in host else host}:{hook.port}/{hook.path.lstrip('/')}"
    try:
        url: yarl.URL | None = yarl.URL(address)
        async with aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=_LONGEST), cookie_jar=aiohttp.DummyCookieJar(), trust_env=False
        ) as session:
            for _ in range(_MOST_REQUESTS):
                assert url is not None
                url = await _get(url, headers=hook.headers, session=session)
                if url is None:
                    return
    except (aiohttp.ClientError, OSError, ValueError) as error:
        raise HookFailedError(f"httpGet {address[:_MOST_OUTPUT]} failed: {error!r}") from error
    raise HookFailedError(f"httpGet {address[:_MOST_OUTPUT]} failed: stopped after {_MOST_REQUESTS} redirects")


async def _get(
    url: yarl.URL, *, headers: tuple[tuple[str, str], ...], session: aiohttp.ClientSession
) -> yarl.URL | None:
    """Send one request; return the redirect's target, or None if the answer is final.

    Follow redirects to the same host name only, at any port, as kubelet does (pkg/probe/http, RedirectChecker): the
    agent reaches more than the pod does. A redirect to another host is an answer like any other.
    """
    # Kubelet does not verify certificates of hooks either: they are the pod's own.
    async with session.get(url, headers=headers, ssl=False, allow_redirects=False) as response:
        location = response.headers.get("Location")
        if response.status not in _REDIRECTS or not location:
            return None
    following = url.join(yarl.URL(location))
    return following if following.host == url.host else None
