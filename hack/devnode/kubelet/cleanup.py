"""Garbage: dead containers beyond one per name, and everything of pods that are gone (``kuberuntime_gc.go``)."""

import asyncio
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

from agent.model.workloads import ContainerState
from hack.devnode.kubelet import config
from hack.devnode.kubelet.observed import Observed, Runtime
from hack.devnode.kubelet.runtime import CriRuntime
from hack.devnode.kubelet.spec import Pod

if TYPE_CHECKING:
    from hack.devnode.kubelet.worker import Parts

_CGROUPS = Path("/sys/fs/cgroup")


def surplus(shown: Runtime, *, names: Iterable[str]) -> list[Observed]:
    """Return the exited containers of those names but for the newest one of each: what goes right after an exit."""
    made: list[Observed] = []
    for name in set(names):
        dead = [item for item in shown.containers if item.name == name and item.state is ContainerState.EXITED]
        made += dead[1:]
    return made


def evictable(shown: Runtime) -> list[Observed]:
    """Return what the minute timer removes: of each name all that does not run, but for the newest of these.

    A CREATED container counts as one that does not run.
    """
    made: list[Observed] = []
    for name in {item.name for item in shown.containers}:
        idle = [item for item in shown.containers if item.name == name and item.state is not ContainerState.RUNNING]
        made += idle[1:]
    return made


def lives(shown: Runtime) -> bool:
    """Whether anything of the pod runs: kubelet ends pods that it does not know as soon as it sees that, not sooner."""
    return bool(shown.running()) or any(sandbox.ready for sandbox in shown.sandboxes)


async def remove_all(items: Iterable[Observed], *, runtime: CriRuntime) -> None:
    """Remove containers, one after another."""
    for item in items:
        await runtime.remove(item.id)


async def remove_containers(uid: str, *, runtime: CriRuntime) -> None:
    """Remove all containers and sandboxes of a pod that has ended."""
    shown = await runtime.inspect(uid)
    await remove_all(shown.containers, runtime=runtime)
    for sandbox in shown.sandboxes:
        await runtime.stop_sandbox(sandbox.id)
        await runtime.remove_sandbox(sandbox.id)


async def remove_pod(pod: Pod, *, parts: "Parts") -> None:
    """Remove all that is left of a pod whose API object is gone: containers, directories, logs, links, cgroups."""
    await parts.prober.forget(pod.uid)
    await remove_containers(pod.uid, runtime=parts.runtime)
    await parts.directories.remove(pod)
    logs = config.pod_log_directory(parts.settings.pod_logs_dir, pod)
    await asyncio.to_thread(shutil.rmtree, logs, ignore_errors=True)
    await asyncio.to_thread(remove_dangling_links, parts.settings.log_symlinks)
    await asyncio.to_thread(remove_cgroup, config.pod_cgroup(parts.settings.cgroup_root, pod))
    parts.devices.free(pod.uid)
    parts.backoff.forget(f"{pod.uid}/")
    parts.reporter.forget(pod.uid)


def remove_dangling_links(directory: Path | None) -> None:
    """Remove log links whose log is gone."""
    if directory is None or not directory.is_dir():
        return
    for link in directory.iterdir():
        if link.is_symlink() and not link.exists():
            link.unlink(missing_ok=True)


def remove_cgroup(cgroup: str) -> None:
    """Remove an empty pod cgroup in every hierarchy (v1) or in the one (v2); one that is in use stays."""
    roots = [_CGROUPS, *(path for path in _CGROUPS.iterdir() if path.is_dir() and not path.is_symlink())]
    for root in roots:
        directory = root / cgroup.lstrip("/")
        if directory.is_dir():
            _remove_tree(directory)


def _remove_tree(directory: Path) -> None:
    """cgroup directories hold files that cannot be unlinked: only rmdir works, deepest first."""
    for child in directory.iterdir():
        if child.is_dir():
            _remove_tree(child)
    try:
        directory.rmdir()
    except OSError:
        return
