"""Freeze, thaw and kill all processes of a container at once, by its cgroup (kernel: cgroup-v2.rst).

Only the version 2 hierarchy can do it without races; on a hybrid node it is the one mounted at ``unified``.
"""

from dataclasses import dataclass
from pathlib import Path

from agent.health import cgroup_paths


@dataclass(frozen=True, slots=True)
class Cgroup:
    """One container's cgroup in the version 2 hierarchy.

    Each call raises OSError, unless it is because the cgroup is gone.
    """

    path: Path

    @classmethod
    def of_process(cls, pid: int, *, proc: Path, mounted_at: Path) -> "Cgroup | None":
        """Return the cgroup of the container that a process is in.

        None when there is no such process, when it is in no container, or where there is no version 2 hierarchy.
        """
        try:
            lines = (proc / str(pid) / "cgroup").read_text().splitlines()
        except (FileNotFoundError, ProcessLookupError):
            return None
        unified = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
        if (root := cgroup_paths.container_root(unified)) is None:
            return None
        relative = root.lstrip("/")
        places = (mounted_at / "unified" / relative, mounted_at / relative)
        return next((cls(place) for place in places if (place / "cgroup.freeze").exists()), None)

    def freeze(self) -> None:
        """Ask for all processes to stand still; they do so within milliseconds."""
        self._write("cgroup.freeze", "1")

    def thaw(self) -> None:
        """Let them go on. Harmless when they are not frozen."""
        self._write("cgroup.freeze", "0")

    def kill(self) -> None:
        """SIGKILL all of them, frozen or not."""
        self._write("cgroup.kill", "1")

    def _write(self, name: str, text: str) -> None:
        try:
            (self.path / name).write_text(text)
        except FileNotFoundError:
            if self.path.exists():
                raise
