"""Lifecycle hooks and the end of containers: postStart, preStop, grace periods (``killContainer``)."""

import asyncio
from collections.abc import Sequence

import structlog

from agent.cri import errors
from agent.model.workloads import ContainerRole
from hack.devnode.kubelet.observed import Observed, Runtime
from hack.devnode.kubelet.runtime import CriRuntime
from hack.devnode.kubelet.spec import Json, Pod

log = structlog.get_logger(__name__)

MIN_GRACE = 2
"""Seconds that kubelet always gives a container between SIGTERM and SIGKILL, whatever was asked."""


class HookFailedError(Exception):
    """A postStart or preStop hook did not succeed."""


async def run(hook: Json, *, runtime: CriRuntime, container_id: str, timeout: int) -> None:
    """Run an ``exec`` or ``sleep`` hook. Raises HookFailedError, also for kinds that the stand-in lacks."""
    if "sleep" in hook:
        await asyncio.sleep(hook["sleep"]["seconds"])
        return
    if "exec" not in hook:
        raise HookFailedError(f"hook {', '.join(hook)} is not supported by this kubelet stand-in")
    command = hook["exec"]["command"]
    try:
        code = await runtime.run_in(container_id, command, timeout=timeout)
    except errors.CriError as error:
        raise HookFailedError(f"exec {command}: {error}") from error
    if code != 0:
        raise HookFailedError(f"exec {command} exited with {code}")


async def kill_container(item: Observed, *, pod: Pod, runtime: CriRuntime, grace: int | None = None) -> None:
    """Stop one container: preStop within the grace period, then SIGTERM, then SIGKILL. Raises CriError."""
    left = pod.grace_seconds if grace is None else grace
    container = pod.container(item.name)
    hook = container.hook("preStop") if container is not None else None
    if hook is not None and left > 0:
        left -= await _pre_stop(hook, item=item, runtime=runtime, limit=left)
    await runtime.stop(item.id, grace=max(MIN_GRACE, left))


async def kill_pod(shown: Runtime, *, pod: Pod, runtime: CriRuntime, grace: int | None = None) -> None:
    """Stop every running container of a pod, duplicates too (sidecars after the others), and its sandboxes."""
    names = [item.name for item in pod.inits if item.role is ContainerRole.SIDECAR]
    others = [item for item in shown.running() if item.name not in names]
    await _kill_all(others, pod=pod, runtime=runtime, grace=grace)
    for name in reversed(names):
        same = [item for item in shown.running() if item.name == name]
        await _kill_all(same, pod=pod, runtime=runtime, grace=grace)
    for sandbox in shown.sandboxes:
        await runtime.stop_sandbox(sandbox.id)


async def _kill_all(items: Sequence[Observed], *, pod: Pod, runtime: CriRuntime, grace: int | None) -> None:
    async with asyncio.TaskGroup() as group:
        for item in items:
            group.create_task(kill_container(item, pod=pod, runtime=runtime, grace=grace))


async def _pre_stop(hook: Json, *, item: Observed, runtime: CriRuntime, limit: int) -> int:
    """Run the hook for at most ``limit`` seconds; return the whole seconds that it took. Its failure is only logged."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    try:
        async with asyncio.timeout(limit):
            await run(hook, runtime=runtime, container_id=item.id, timeout=limit)
    except (HookFailedError, TimeoutError) as error:
        log.warning("hook.pre_stop_failed", container=item.name, error=str(error) or "timed out")
    return int(loop.time() - begun)
