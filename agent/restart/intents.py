"""Define intents: the restarts that are under way, journalled before their first action so that no crash loses them."""

import enum
from dataclasses import dataclass

from kubemend.agent.model.workloads import ContainerId, ContainerRef, ContainerRole, RestartPolicy, SandboxId


class Strategy(enum.Enum):
    """How containers are restarted (docs/architecture.md, "Strategies")."""

    AUTO = "auto"
    PROCESS = "process"
    SWAP = "swap"
    RERUN = "rerun"
    RESET = "reset"
    RULES = "rules"


class SwapOrder(enum.Enum):
    """The order of a swap's calls, which determines the gap that it leaves open.

    - ``STOP_FIRST``: no container of the name runs for a moment; if the agent dies there, kubelet restarts it itself.
    - ``CREATE_FIRST``: the successor waits CREATED while the old one runs. An exit that kubelet sees would fail a
      ``Never`` pod for good, so there that gap must not exist; but a CREATED successor that is left alone makes kubelet
      start a third container next to the running one, so the intent is replayed first after a crash.
    - ``START_FIRST``: where nothing else runs in the pod, kubelet must find one of the two running at any time. The
      successor is started next to the frozen old one and held at its first instruction until that is dead. If the
      agent dies there, the kernel releases it and the old one stays frozen: two exist, but only one runs.
    - ``START_ELSE_STOP_FIRST`` and ``START_ELSE_CREATE_FIRST``: as ``START_FIRST``, which proves that the successor can
      be created before anything is stopped, and leaves no moment in which kubelet sees an exit and no newer container.
      If the successor cannot be held or started next to the old one, the order is the other one (``otherwise``).
    """

    STOP_FIRST = "stop-first"
    CREATE_FIRST = "create-first"
    START_FIRST = "start-first"
    START_ELSE_STOP_FIRST = "start-else-stop-first"
    START_ELSE_CREATE_FIRST = "start-else-create-first"

    @property
    def starts_first(self) -> bool:
        """Return whether the successor is started, and held, next to the frozen old one."""
        return self not in (SwapOrder.STOP_FIRST, SwapOrder.CREATE_FIRST)

    @property
    def may_wait(self) -> bool:
        """Return whether a successor may wait next to the old container, where kubelet would start a copy of it."""
        return self is not SwapOrder.STOP_FIRST

    @property
    def otherwise(self) -> "SwapOrder | None":
        """Return the order to use if the successor cannot be started next to the old one; None: undo."""
        return {
            SwapOrder.START_ELSE_STOP_FIRST: SwapOrder.STOP_FIRST,
            SwapOrder.START_ELSE_CREATE_FIRST: SwapOrder.CREATE_FIRST,
        }.get(self)

    @property
    def with_start_first(self) -> "SwapOrder":
        """Return the same order for a successor that can be held, which is started next to the old one."""
        return {
            SwapOrder.STOP_FIRST: SwapOrder.START_ELSE_STOP_FIRST,
            SwapOrder.CREATE_FIRST: SwapOrder.START_ELSE_CREATE_FIRST,
        }.get(self, self)

    @property
    def with_create_first(self) -> "SwapOrder":
        """Return the same order for a successor that must have been created before anything is stopped."""
        return {
            SwapOrder.STOP_FIRST: SwapOrder.CREATE_FIRST,
            SwapOrder.START_ELSE_STOP_FIRST: SwapOrder.START_ELSE_CREATE_FIRST,
        }.get(self, self)

    @property
    def exit_is_restarted(self) -> bool:
        """Return whether kubelet restarts the container after any exit, so that an exit that it sees does no harm."""
        return self in (SwapOrder.STOP_FIRST, SwapOrder.START_ELSE_STOP_FIRST)

    @classmethod
    def safest_for(cls, policy: RestartPolicy) -> "SwapOrder":
        """Return the order that no relist of kubelet can turn into a failed or completed pod.

        Only ``Always`` makes every exit restartable; ``OnFailure`` restarts a SIGKILLed container but would complete
        one that answers SIGTERM with exit code 0, so it is stop-first for grace 0 only: see ``of``.
        """
        return cls.STOP_FIRST if policy is RestartPolicy.ALWAYS else cls.CREATE_FIRST

    @classmethod
    def of(cls, *, policy: RestartPolicy, grace_seconds: float) -> "SwapOrder":
        """Return the order for a container under this policy when it is stopped with this grace period."""
        if policy is RestartPolicy.ON_FAILURE and grace_seconds <= 0:
            return cls.STOP_FIRST
        return cls.safest_for(policy)


@dataclass(frozen=True, slots=True)
class Intent:
    """One container's swap: the container, how it is replaced, and the cause.

    ``id`` marks the successor (annotation ``kubemend.io/restart-id``), so that it is recognised after a crash.
    ``created_at`` is Unix time in seconds. ``grace_seconds`` 0 is SIGKILL at once. ``empty_cache_after`` is the number
    of early failures for which the container's compile cache is emptied; 0: it is kept. ``completes``: exit code 0 is
    final by the container's restartPolicy (OnFailure, Never).
    """

    id: str
    target: ContainerRef
    sandbox_id: SandboxId
    old: ContainerId
    old_attempt: int
    order: SwapOrder
    reason: str
    created_at: float
    grace_seconds: float = 0.0
    strategy: Strategy = Strategy.SWAP
    empty_cache_after: int = 0
    completes: bool = False

    @property
    def old_ids(self) -> frozenset[ContainerId]:
        """Return the containers whose processes must leave the devices."""
        return frozenset({self.old})

    @property
    def target_old(self) -> ContainerId:
        """Return the container that the restart replaces."""
        return self.old

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the containers to restart."""
        return frozenset({self.target.name})


@dataclass(frozen=True, slots=True)
class Planned:
    """One container of a pod that is restarted as a whole. ``old`` are all that had its name, the newest last."""

    name: str
    role: ContainerRole
    old: tuple[ContainerId, ...] = ()
    old_attempt: int = -1
    has_startup_probe: bool = False


@dataclass(frozen=True, slots=True)
class PodIntent:
    """The restart of a whole pod (rerun, reset, rules). ``plan`` has its containers in the order of the spec.

    ``target`` is the container that the restart is for, ``trigger`` the one that ``rules`` kills. ``completes``: exit
    code 0 is final for the target. No config is kept here, because configs hold secrets: an agent that resumes after a
    crash removes the remaining old containers and leaves the starts to kubelet, which reruns the pod by itself within
    two seconds.
    """

    id: str
    target: ContainerRef
    sandbox_id: SandboxId
    strategy: Strategy
    plan: tuple[Planned, ...]
    reason: str
    created_at: float
    grace_seconds: float = 0.0
    trigger: ContainerId | None = None
    completes: bool = False

    @property
    def old_ids(self) -> frozenset[ContainerId]:
        """Return every container that must be removed."""
        return frozenset(container for planned in self.plan for container in planned.old)

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the plan; other containers of the pod (ephemeral ones) are left alone."""
        return frozenset(planned.name for planned in self.plan)

    @property
    def target_old(self) -> ContainerId | None:
        """Return the target's newest old container; None if it had none."""
        return next((each.old[-1] for each in self.plan if each.name == self.target.name and each.old), None)

    @property
    def may_complete(self) -> ContainerId | None:
        """Return the target's old container if it may end for good before it is removed; None if it cannot."""
        return self.target_old if self.completes else None

    def of_container(self, planned: Planned) -> Intent:
        """Return the restart as the intent of one container, for cloning its newest config."""
        return Intent(
            id=self.id,
            target=ContainerRef(pod=self.target.pod, name=planned.name),
            sandbox_id=self.sandbox_id,
            old=planned.old[-1],
            old_attempt=planned.old_attempt,
            order=SwapOrder.STOP_FIRST,
            reason=self.reason,
            created_at=self.created_at,
            grace_seconds=self.grace_seconds,
            strategy=self.strategy,
        )


@dataclass(frozen=True, slots=True)
class ProcessIntent:
    """The restart of a container's program by the launcher in it (``agent.restart.process``). The container stays.

    ``program`` is the launcher's number of the program that must end; ``container`` is the container.
    """

    id: str
    target: ContainerRef
    sandbox_id: SandboxId
    container: ContainerId
    program: int
    reason: str
    created_at: float
    grace_seconds: float = 0.0
    strategy: Strategy = Strategy.PROCESS

    @property
    def old_ids(self) -> frozenset[ContainerId]:
        """Return the containers whose processes must leave the devices."""
        return frozenset({self.container})

    @property
    def target_old(self) -> ContainerId:
        """Return the container whose program is restarted."""
        return self.container

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the containers to restart."""
        return frozenset({self.target.name})


AnyIntent = Intent | PodIntent | ProcessIntent
