"""Provide a node's /proc and cgroups as files: containers whose processes a test creates, stops, freezes and ends."""

import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from kubemend.agent.model.workloads import ContainerId


def container_id(number: int) -> ContainerId:
    """Return an id as runtimes generate them."""
    return ContainerId(f"{number:064x}")


@dataclass
class ProcTree:
    """``proc`` and ``cgroups`` are the node's /proc and /sys/fs/cgroup (version 2)."""

    base: Path
    roots: dict[ContainerId, Path] = field(default_factory=dict)

    @property
    def proc(self) -> Path:
        return self.base / "proc"

    @property
    def cgroups(self) -> Path:
        return self.base / "cgroup"

    def group(self, container: ContainerId) -> Path:
        return self.cgroups / "kubepods" / "pod1" / container

    def run(self, container: ContainerId, *, pid: int) -> Path:
        """Begin a container with one process; return its root directory."""
        root = self.base / "roots" / container
        for directory in (root, self.proc / str(pid), self.group(container)):
            directory.mkdir(parents=True)
        (self.proc / str(pid) / "cgroup").write_text(f"0::/kubepods/pod1/{container}\n")
        (self.proc / str(pid) / "root").symlink_to(root)
        (self.group(container) / "cgroup.procs").write_text(f"{pid}\n")
        (self.proc / str(pid) / "fd").mkdir()
        (self.proc / str(pid) / "maps").touch()
        self.binds(pid)
        self.freeze(container, frozen=False)
        self.thread(pid)
        self.roots[container] = root
        return root

    def thread(
        self, pid: int, *, tid: int | None = None, state: str = "S", name: str = "python", waits_in: str = "do_wait"
    ) -> None:
        """Set the state of a thread of a process; without ``tid`` its main thread."""
        task = self.proc / str(pid) / "task" / str(tid or pid)
        task.mkdir(parents=True, exist_ok=True)
        stat = f"{tid or pid} ({name}) {state} 1 1 1 0\n"
        (task / "stat").write_text(stat)
        (task / "wchan").write_text(waits_in)
        (task / "stack").write_text(f"[<0>] {waits_in}+0x53/0x120\n[<0>] do_syscall_64+0x71/0x280\n")
        if tid is None:
            (self.proc / str(pid) / "stat").write_text(stat)

    def freeze(self, container: ContainerId, *, frozen: bool = True) -> None:
        (self.group(container) / "cgroup.events").write_text(f"populated 1\nfrozen {frozen:d}\n")

    def end(self, container: ContainerId, *, pid: int) -> None:
        shutil.rmtree(self.proc / str(pid))
        shutil.rmtree(self.group(container))

    def opens(self, pid: int, file: Path, *, number: int = 3) -> None:
        """Let a process have a file open."""
        (self.proc / str(pid) / "fd" / str(number)).symlink_to(file)

    def maps(self, pid: int, file: Path) -> None:
        """Let a process have a file mapped, and some other memory."""
        found = file.stat()
        device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
        (self.proc / str(pid) / "maps").write_text(
            "7f0000000000-7f0000001000 rw-p 00000000 00:00 0 \n"
            f"7f0000001000-7f0000002000 rw-s 00000000 {device} {found.st_ino} /dev/shm/{file.name}\n"
        )

    def binds(self, pid: int, *sockets: str) -> None:
        """Let a process have sockets bound, by the given paths."""
        lines = [f"0000000000000000: 00000002 00000000 00010000 0001 01 4711 {path}\n" for path in sockets]
        (self.proc / str(pid) / "net").mkdir(exist_ok=True)
        header = "Num       RefCount Protocol Flags    Type St Inode Path\n"
        (self.proc / str(pid) / "net" / "unix").write_text(header + "".join(lines))
