"""Find and remove the remains of a dev node on the machine, at its end or after a crash.

Everything of a node has its mark: programs have its root among their arguments, containers run in its cgroup or in one
named after a container of its bundles, mounts lie under its root, the bridge's name is derived from it.
"""

import asyncio
import contextlib
import errno
import json
import os
import pathlib
import shutil
import subprocess
import time
from collections.abc import Iterator

import structlog

from hack.devnode import cgroups, claims, layout, network, processes

log = structlog.get_logger(__name__)

_CNI_RESULTS = pathlib.Path("/var/lib/cni/results")  # libcni's cache; containerd has no setting for it
_PROGRAMS = frozenset({"containerd", "containerd-shim-runc-v2", "ctr", "runc", "crun", "crio", "conmon"})
_TASKS = "io.containerd.runtime.v2.task"
_SECONDS = 30.0
_POLL_SECONDS = 0.01


async def reap(node: layout.NodeLayout) -> None:
    """Remove everything of a node: processes, mounts, network, cgroups, files. A missing node is no error.

    The agent's and kubelet's processes are ended by their starters; those of containerd and of the containers are ended
    here. Raises processes.ProcessError or network.NetworkError when something cannot be removed.
    """
    containers = _container_ids(node)
    shim_sockets = list(_shim_sockets(node))
    # containerd and the shims first: they would only try to clean up after the containers.
    await processes.terminate(list(_programs(node)), grace=0)
    _thaw(node)
    while members := list(_container_processes(node, containers)):  # again for processes forked in the meantime
        await processes.terminate(members, grace=0)
    await asyncio.to_thread(_remove, node, containers, shim_sockets)


async def reap_abandoned() -> None:
    """Remove everything of the machine's nodes whose owner has ended without doing so, such as by SIGKILL.

    A node that another program runs is left alone (``claims``). One that resists is logged and left.
    """
    for root in sorted(layout.BASE.glob("*/")):
        with contextlib.suppress(layout.LayoutError, claims.NodeInUseError):
            node = layout.NodeLayout.named(root.name)
            with claims.Claim(node).held():
                try:
                    await reap(node)
                except (processes.ProcessError, network.NetworkError, OSError) as error:
                    log.warning("devnode.not_reaped", root=str(root), error=str(error))


def find(node: layout.NodeLayout) -> list[str]:
    """Describe the remains of a node, one line each; empty when there are none."""
    containers = _container_ids(node)
    found = [f"process {it.pid} {' '.join(processes.command_line(it.pid))}" for it in _programs(node)]
    found += [f"container process {it.pid}" for it in _container_processes(node, containers)]
    found += [f"mount {path}" for path in _mounts(node)]
    found += [f"cgroup {path}" for path in cgroups.directories(node.cgroup_parent)]
    found += [f"bridge {node.bridge}"] if network.bridge_exists(node) else []
    found += [f"CNI result {path}" for path in _cni_results(node, containers)]
    found += [f"directory {node.root}"] if node.root.exists() else []
    return found


def _remove(node: layout.NodeLayout, containers: frozenset[str], shim_sockets: list[pathlib.Path]) -> None:
    for point in reversed(list(_mounts(node))):
        # Lazily: a mount that is briefly busy (an exiting process) is removed once it is not.
        subprocess.run(("umount", "--lazy", point), capture_output=True, timeout=_SECONDS, check=False)
    network.delete_bridge(node)
    cgroups.stop(node.cgroup_parent)
    for cgroup in cgroups.directories(node.cgroup_parent):
        for folder, _, _ in os.walk(cgroup, topdown=False):
            _remove_cgroup(pathlib.Path(folder))
    for path in (*shim_sockets, *_cni_results(node, containers)):
        path.unlink(missing_ok=True)
    if node.root.exists():
        shutil.rmtree(node.root)
        log.debug("devnode.removed", root=str(node.root))


def _remove_cgroup(path: pathlib.Path) -> None:
    """Remove an empty cgroup. The kernel may count a process for a moment after its end, and has no event for that."""
    deadline = time.monotonic() + _SECONDS
    while True:
        try:
            path.rmdir()
        except OSError as error:
            if error.errno != errno.EBUSY or time.monotonic() > deadline:
                raise
            time.sleep(_POLL_SECONDS)
        else:
            return


def _programs(node: layout.NodeLayout) -> Iterator[processes.ProcessId]:
    for process in processes.running():
        arguments = processes.command_line(process.pid)
        named = bool(arguments) and pathlib.Path(arguments[0]).name in _PROGRAMS
        if named and any(argument.startswith(f"{node.root}/") for argument in arguments[1:]):
            yield process


def _container_processes(node: layout.NodeLayout, containers: frozenset[str]) -> Iterator[processes.ProcessId]:
    for process in processes.running():
        for path in processes.cgroups(process.pid):
            if path.startswith(f"{cgroups.path(node.cgroup_parent)}/") or containers.intersection(path.split("/")):
                yield process
                break


def _container_ids(node: layout.NodeLayout) -> frozenset[str]:
    return frozenset(bundle.name for bundle in _bundles(node))


def _bundles(node: layout.NodeLayout) -> Iterator[pathlib.Path]:
    """Yield the directories that the runtime keeps for running containers and sandboxes."""
    yield from (node.containerd_state / _TASKS).glob("*/*")
    yield from (node.containerd_state / "overlay-containers").glob("*")


def _shim_sockets(node: layout.NodeLayout) -> Iterator[pathlib.Path]:
    """Yield the sockets of the shims; they lie in containerd's default state directory, not in the node's."""
    for bundle in _bundles(node):
        address = ""
        with contextlib.suppress(FileNotFoundError, ValueError):
            address = json.loads((bundle / "bootstrap.json").read_text(encoding="utf-8"))["address"]  # 2.x
        with contextlib.suppress(FileNotFoundError):
            address = address or (bundle / "address").read_text(encoding="utf-8")  # 1.x
        if address.startswith("unix://"):
            yield pathlib.Path(address.removeprefix("unix://").strip())


def _mounts(node: layout.NodeLayout) -> Iterator[str]:
    """Yield the root's mount and those under it, outer ones first (proc(5), mountinfo: field 5)."""
    for line in pathlib.Path("/proc/self/mountinfo").read_text(encoding="utf-8").splitlines():
        point = line.split()[4]
        if point == str(node.root) or point.startswith(f"{node.root}/"):
            yield point


def _thaw(node: layout.NodeLayout) -> None:
    """Unfreeze cgroup v1 freezers: unlike v2's, they block even SIGKILL."""
    for path in cgroups.directories(node.cgroup_parent):
        for directory, _, files in os.walk(path):
            if "freezer.state" in files:
                with contextlib.suppress(OSError):  # it has been removed in the meantime
                    (pathlib.Path(directory) / "freezer.state").write_text("THAWED", encoding="ascii")


def _cni_results(node: layout.NodeLayout, containers: frozenset[str]) -> list[pathlib.Path]:
    marks = (f"{node.network_name}-", *containers)
    return [path for path in _CNI_RESULTS.glob("*") if any(mark in path.name for mark in marks)]
