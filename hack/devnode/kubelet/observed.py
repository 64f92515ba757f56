"""What the runtime shows of one pod, as PLEG caches it (kubelet's ``kubecontainer.PodStatus``)."""

from dataclasses import dataclass

from agent.model.workloads import ContainerState


@dataclass(frozen=True, slots=True)
class Observed:
    """One container of the runtime. Times are Unix nanoseconds as CRI gives them, 0 when they do not apply."""

    id: str
    name: str
    state: ContainerState
    created_at: int
    restart_count: int = 0
    hash: str = ""
    exit_code: int = 0
    started_at: int = 0
    finished_at: int = 0
    reason: str = ""
    message: str = ""
    image: str = ""
    image_ref: str = ""
    sandbox_id: str = ""


@dataclass(frozen=True, slots=True)
class Sandbox:
    """One sandbox of the pod. ``ip`` is None when the runtime gives no network (host network)."""

    id: str
    ready: bool
    attempt: int
    created_at: int
    ip: str | None = None
    host_network: bool = False


@dataclass(frozen=True, slots=True)
class Runtime:
    """All containers and sandboxes of one pod, newest first; the order is what kubelet decides by."""

    containers: tuple[Observed, ...] = ()
    sandboxes: tuple[Sandbox, ...] = ()

    @classmethod
    def of(cls, *, containers: list[Observed], sandboxes: list[Sandbox]) -> "Runtime":
        """Build it in kubelet's order."""
        return cls(
            containers=tuple(sorted(containers, key=lambda item: item.created_at, reverse=True)),
            sandboxes=tuple(sorted(sandboxes, key=lambda item: (item.created_at, item.id), reverse=True)),
        )

    def newest(self, name: str) -> Observed | None:
        """Return the newest container of that name: the one that decides, whatever the older ones do."""
        return next((item for item in self.containers if item.name == name), None)

    def latest_exited(self, name: str) -> Observed | None:
        """Return the newest exited container of that name: the one that backoff looks at."""
        return next(
            (item for item in self.containers if item.name == name and item.state is ContainerState.EXITED), None
        )

    def running(self) -> tuple[Observed, ...]:
        """Every running container, duplicates of older attempts among them."""
        return tuple(item for item in self.containers if item.state is ContainerState.RUNNING)

    def in_newest_sandbox(self, name: str) -> bool:
        """Whether a container of that name exists in the sandbox that is in use."""
        return bool(self.sandboxes) and any(
            item.name == name and item.sandbox_id == self.sandboxes[0].id for item in self.containers
        )

    @property
    def ip(self) -> str | None:
        """The pod's IP: that of the newest sandbox."""
        return self.sandboxes[0].ip if self.sandboxes else None
