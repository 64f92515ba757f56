"""Read how much memory the pod of a process may use, and uses, from its cgroup of either version.

Sources: cgroup-v2.rst (memory.max, memory.current, memory.stat), cgroup-v1/memory.rst.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from kubemend.agent.health import cgroup_paths
from kubemend.agent.restart.headroom import PodMemory
from kubemend.common import kernel_files


@dataclass(frozen=True, slots=True)
class _Files:
    """What one version of cgroups calls its files, and the page cache of a group and all below it."""

    limit: str
    used: str
    page_cache: tuple[str, str]


_VERSION_2: Final = _Files("memory.max", "memory.current", ("inactive_file", "active_file"))
_VERSION_1: Final = _Files(
    "memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file")
)


def of_process(pid: int, *, proc: Path, mounted_at: Path) -> PodMemory | None:
    """Return the memory of the pod that a container's process belongs to.

    None where the pod has no limit, where the process is gone or in no container, and where nothing can be read.
    """
    try:
        lines = kernel_files.lines(kernel_files.read(proc / str(pid) / "cgroup") or "")
        for hierarchy, controllers, path in (line.split(":", 2) for line in lines if line.count(":") >= 2):
            container = cgroup_paths.container_root(path)
            if container is None:
                continue
            if "memory" in controllers.split(","):
                return _read(mounted_at / "memory" / container.lstrip("/"), _VERSION_1)
            if hierarchy == "0" and (mounted_at / "cgroup.controllers").exists():
                return _read(mounted_at / container.lstrip("/"), _VERSION_2)
    except (OSError, ValueError):
        return None
    return None


def _read(container: Path, files: _Files) -> PodMemory | None:
    pod = container.parent
    limit, used = ((kernel_files.read(pod / name) or "").strip() for name in (files.limit, files.used))
    if not limit.isdecimal() or not used.isdecimal():  # "max"; or it is gone
        return None
    stat = _numbers(kernel_files.read(pod / "memory.stat") or "")
    return PodMemory(int(limit), int(used), sum(stat.get(name, 0) for name in files.page_cache))


def _numbers(stat: str) -> Mapping[str, int]:
    pairs = (line.split(" ") for line in kernel_files.lines(stat))
    return {pair[0]: int(pair[1]) for pair in pairs if len(pair) == 2 and pair[1].isdecimal()}
