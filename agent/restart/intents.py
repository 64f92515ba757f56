"""What a restart sets out to do. Written to the journal before the first act, so that a crash never forgets it."""

import enum
from dataclasses import dataclass

from agent.model.workloads import ContainerId, ContainerRef, ContainerRole, RestartPolicy, SandboxId


class Strategy(enum.Enum):
    """How containers are restarted (docs/architecture.md, "Strategies")."""

    AUTO = "auto"
    SWAP = "swap"
    RERUN = "rerun"
    RESET = "reset"
    RULES = "rules"


class Order(enum.Enum):
    """Which of the dangerous gaps a swap leaves open.

    ``STOP_FIRST``: no container of the name runs for a moment; if we die there, kubelet restarts it itself.
    ``CREATE_FIRST``: the successor waits CREATED while the old one runs. An exit that kubelet sees would fail a
    ``Never`` pod for good, so there the gap must not exist; but a CREATED successor that is left alone makes
    kubelet start a third container beside the running one, so it is the first thing replayed after a crash.
    ``START_FIRST``: where nothing else runs in the pod, kubelet must find one of the two running at any time. The
    successor is started beside the frozen old one and held at its first instruction until that is dead. If we die
    there, the kernel lets it go and the old one stays frozen: two exist, but only one runs.
    """

    STOP_FIRST = "stop-first"
    CREATE_FIRST = "create-first"
    START_FIRST = "start-first"

    @classmethod
    def safest_for(cls, policy: RestartPolicy) -> "Order":
        """Return the order that no relist of kubelet can turn into a failed or completed pod.

        Only ``Always`` makes every exit restartable; ``OnFailure`` restarts a SIGKILLed container but would
        complete one that answers SIGTERM with exit code 0, so it is stop-first for grace 0 only: see ``of``.
        """
        return cls.STOP_FIRST if policy is RestartPolicy.ALWAYS else cls.CREATE_FIRST

    @classmethod
    def of(cls, *, policy: RestartPolicy, grace_seconds: float) -> "Order":
        """Return the order for a container under this policy when it is stopped with this grace period."""
        if policy is RestartPolicy.ON_FAILURE and grace_seconds <= 0:
            return cls.STOP_FIRST
        return cls.safest_for(policy)


@dataclass(frozen=True, slots=True)
class Intent:
    """One container's swap: which container, replaced how, and why.

    ``id`` marks the successor (annotation ``kubemend.io/restart-id``), so that it is recognised after a crash.
    ``created_at`` is Unix time in seconds. ``grace_seconds`` 0 is SIGKILL at once.
    """

    id: str
    target: ContainerRef
    sandbox_id: SandboxId
    old: ContainerId
    old_attempt: int
    order: Order
    reason: str
    created_at: float
    grace_seconds: float = 0.0
    strategy: Strategy = Strategy.SWAP


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

    ``target`` is the container for whose sake it is done, ``trigger`` the one that ``rules`` kills. No config is kept
    here, for configs hold secrets: an agent that comes back after it died half-way takes away what is left of the old
    and leaves the starting to kubelet, which reruns the pod by itself within two seconds.
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

    @property
    def old(self) -> frozenset[ContainerId]:
        """Every container that must go."""
        return frozenset(container for planned in self.plan for container in planned.old)

    @property
    def names(self) -> frozenset[str]:
        """The names of the plan; other containers of the pod (ephemeral ones) are none of our business."""
        return frozenset(planned.name for planned in self.plan)

    def of_container(self, planned: Planned) -> Intent:
        """Return what the restart means for one container, for cloning its newest config."""
        return Intent(
            id=self.id,
            target=ContainerRef(pod=self.target.pod, name=planned.name),
            sandbox_id=self.sandbox_id,
            old=planned.old[-1],
            old_attempt=planned.old_attempt,
            order=Order.STOP_FIRST,
            reason=self.reason,
            created_at=self.created_at,
            grace_seconds=self.grace_seconds,
            strategy=self.strategy,
        )


AnyIntent = Intent | PodIntent
