"""Define what each strategy does, choose the one that restarts a pod, and explain why no better one is used. Pure.

A strategy that is requested by name is used or refused; only ``auto`` falls back, each time with the reason.
"""

import enum
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from kubemend.agent.model.workloads import ContainerRole, ContainerSpec, PodView, RestartPolicy, UnsupportedHook
from kubemend.agent.restart import probes, process, rules
from kubemend.agent.restart.intents import Strategy, SwapOrder
from kubemend.agent.restart.reasons import Reason


@dataclass(frozen=True, slots=True)
class Situation:
    """The facts that the choice depends on.

    ``targets`` are the containers that a swap would replace. ``not_cloneable`` is why a container's config cannot be
    read or copied, None if it can. ``can_hold``: whether a started container can be held at its first instruction;
    ``not_holdable`` is why this one's successor cannot, although the node can hold others. ``config_is_rebuilt``: the
    runtime does not return the config, so a successor must be compared before anything is stopped.

    ``launcher`` is the answer of the launcher in the container that the fault hit, None if it runs none. ``is_fault``:
    the restart is for a fault of the program, or of its gang. ``fails_again``: that follows another restart
    (``process.fails_again``). ``by_round``: its container is frozen until its gang's round continues.
    ``cleans``: something of the pod must be emptied between the old program and the new one. ``keeps``: successors keep
    paths of the writable layer, which are renamed while neither container runs (``agent.restart.keep``).
    """

    pod: PodView
    targets: tuple[ContainerSpec, ...]
    grace_seconds: float = 0.0
    not_cloneable: str | None = None
    can_hold: bool = False
    not_holdable: str | None = None
    launcher: process.Launcher | process.LauncherUnavailable | None = None
    is_fault: bool = False
    fails_again: bool = False
    by_round: bool = False
    cleans: bool = False
    config_is_rebuilt: bool = False
    keeps: bool = False

    @property
    def allows_standby(self) -> bool:
        """Return whether a successor is held next to the old container until that is dead.

        Not during a grace period: kubelet would probe it all the time, and the agent may die in it.
        """
        return self.can_hold and self.not_holdable is None and self.grace_seconds <= 0


@dataclass(frozen=True, slots=True)
class Refused:
    """One strategy that cannot be used here."""

    strategy: Strategy
    obstacle: Reason
    detail: str


@dataclass(frozen=True, slots=True)
class Choice:
    """The strategy, or None if none can be used; ``refused`` are those that were passed over, in order."""

    strategy: Strategy | None
    refused: tuple[Refused, ...] = ()

    @property
    def stepped_down(self) -> str:
        """Return why the first strategy was not chosen, for people; empty if it was."""
        return "; ".join(f"not {item.strategy.value}: {item.detail}" for item in self.refused)


Check = Callable[[Situation], tuple[Reason, str] | None]


class Scope(enum.Enum):
    """What a strategy restarts: a container's program, the containers that are meant, or every container of the pod."""

    PROGRAM = "program"
    CONTAINERS = "containers"
    POD = "pod"


@dataclass(frozen=True, slots=True)
class Spec:
    """What one strategy does.

    ``check`` returns the obstacle to it. ``counted`` is by how much it can raise the restartCount of each container
    that it restarts. ``starts_containers``: kubemend starts the new containers, and can wait for a proof before that;
    otherwise kubelet starts them, or the launcher a new program. ``kills``: one container must die of SIGKILL, so that
    kubelet restarts the others; then there is no grace period.
    """

    scope: Scope
    check: Check
    counted: int
    starts_containers: bool = False
    kills: bool = False

    @property
    def whole_pod(self) -> bool:
        """Return whether every container of the pod is restarted."""
        return self.scope is Scope.POD


def choose(wanted: Strategy, situation: Situation) -> Choice:
    """Return the first strategy without an obstacle: the wanted one, or for ``auto`` each in turn."""
    refused: list[Refused] = []
    for strategy in _auto(situation) if wanted is Strategy.AUTO else (wanted,):
        obstacle = SPECS[strategy].check(situation)
        if obstacle is None and wanted is Strategy.AUTO and strategy is Strategy.PROCESS:
            obstacle = _same_fault(situation)
        if obstacle is None:
            return Choice(strategy, tuple(refused))
        refused.append(Refused(strategy, *obstacle))
    return Choice(None, tuple(refused))


def _auto(situation: Situation) -> tuple[Strategy, ...]:
    """Return the strategies of ``auto`` in order: a new process is enough for a fault of a program with a launcher."""
    by_launcher = situation.is_fault and situation.launcher is not None
    return (Strategy.PROCESS, *_AUTO) if by_launcher else _AUTO


def _process(situation: Situation) -> tuple[Reason, str] | None:
    launcher = situation.launcher
    if launcher is None:
        return Reason.NO_LAUNCHER, "no launcher (kubemend_run.py) runs in the container"
    if isinstance(launcher, process.LauncherUnavailable):
        return Reason.NO_LAUNCHER, launcher.reason
    if launcher.state is process.State.RESTARTING:
        return Reason.NO_LAUNCHER, "the launcher has no program that runs: restarting"
    if launcher.state is process.State.ENDING:
        return Reason.NO_LAUNCHER, process.STOPS
    if len(situation.targets) != 1:
        names = ", ".join(spec.name for spec in situation.targets)
        return Reason.NOT_ONLY_THE_PROGRAM, f"several containers are restarted together: {names}"
    if situation.cleans:
        return Reason.NOT_ONLY_THE_PROGRAM, "the pod's shared memory must be emptied"
    if situation.by_round and not math.isinf(probes.longest_hold(situation.targets)):
        return Reason.NOT_ONLY_THE_PROGRAM, "kubelet's probes would fail while the container is held for its gang"
    return None


def _same_fault(situation: Situation) -> tuple[Reason, str] | None:
    if not situation.fails_again:
        return None
    return Reason.FAULT_AGAIN, f"the program failed within {process.AGAIN:g} s of a restart"


def _swap(situation: Situation) -> tuple[Reason, str] | None:
    return (
        _hidden_config(situation)
        or _foreign_hook(situation.targets)
        or _early_liveness(situation.targets)
        or _last_one_running(situation)
        or _waiting_through_grace(situation)
    )


def order_of(target: ContainerSpec, situation: Situation) -> SwapOrder:
    """Return the order of a swap's calls that leaves kubelet no gap in which to end the pod.

    If the successor can be held, and there is no grace period, it is started before the old one is stopped: then a
    failure to create or start it costs the old one nothing. If paths of the old one are renamed, that is dead before.
    """
    if leaves_nothing_running(situation):
        return SwapOrder.START_FIRST
    order = SwapOrder.of(policy=situation.pod.policy_of(target.name), grace_seconds=situation.grace_seconds)
    if target.restart_rules:
        # An exit that kubelet sees could match a rule such as RestartAllContainers on 137 (KEP-5532).
        order = SwapOrder.CREATE_FIRST
    if situation.config_is_rebuilt:
        order = order.with_create_first
    return order.with_start_first if situation.allows_standby and not situation.keeps else order


def leaves_nothing_running(situation: Situation) -> bool:
    """Return whether a swap's stop may end the pod: an exit may be final, and nothing else keeps the pod alive.

    Kubelet's ``getPhase`` (pkg/kubelet/kubelet_pods.go) counts a CREATED successor as stopped; a running main container
    or sidecar keeps the pod Running, and so does a successor that runs already (``intents.SwapOrder.START_FIRST``).
    """
    pod = situation.pod
    targets = {spec.name for spec in situation.targets}
    others = (spec for spec in pod.containers if spec.name not in targets and spec.role is not ContainerRole.INIT)
    return not any(spec.running for spec in others) and any(
        spec.role is ContainerRole.MAIN and _may_end(pod.policy_of(spec.name), grace=situation.grace_seconds)
        for spec in situation.targets
    )


def _last_one_running(situation: Situation) -> tuple[Reason, str] | None:
    if not leaves_nothing_running(situation) or situation.allows_standby:
        return None
    can_hold = situation.can_hold and situation.not_holdable is None
    names = ", ".join(spec.name for spec in situation.targets)
    because = f" ({situation.not_holdable})" if situation.not_holdable is not None else ""
    hint = "use no grace period, or restartPolicy Always" if can_hold else "use restartPolicy Always"
    return (
        Reason.NOTHING_ELSE_RUNS,
        f"kubelet could see {names} stopped with nothing else running, and end the pod{because}; "
        f"{hint}, or add a sidecar",
    )


def _waiting_through_grace(situation: Situation) -> tuple[Reason, str] | None:
    """Refuse a CREATED successor during a grace period: within a second kubelet starts another one next to it."""
    for target in situation.targets:
        if situation.grace_seconds <= 0 or order_of(target, situation) is not SwapOrder.CREATE_FIRST:
            continue
        if order_of(target, replace(situation, config_is_rebuilt=False)) is not SwapOrder.CREATE_FIRST:
            return (
                Reason.GRACE_COULD_COMPLETE,
                f"the runtime returns no configs, so the successor of {target.name} would wait through the grace "
                "period, and kubelet copy it; use no grace period, or strategy reset",
            )
        return (
            Reason.GRACE_COULD_COMPLETE,
            f"{target.name} could end for good, or meet a restart rule, by its exit on SIGTERM; "
            "use no grace period, or restartPolicy Always without rules",
        )
    return None


def _may_end(policy: RestartPolicy, *, grace: float) -> bool:
    """Return whether kubelet takes the exit for the last: any under Never, 0 (on SIGTERM) under OnFailure."""
    return policy is RestartPolicy.NEVER or (policy is RestartPolicy.ON_FAILURE and grace > 0)


def _rerun(situation: Situation) -> tuple[Reason, str] | None:
    containers = situation.pod.containers
    if situation.config_is_rebuilt and situation.not_cloneable is None:
        return (
            Reason.RUNTIME_HIDES_CONFIG,
            "the runtime returns no configs, and a rerun first removes containers; use strategy swap or reset",
        )
    return _hidden_config(situation) or _foreign_hook(containers) or _early_liveness(containers) or _reset(situation)


def _reset(situation: Situation) -> tuple[Reason, str] | None:
    """Refuse a reset unless kubelet restarts every removed container, and no exit on the way can end the pod."""
    pod = situation.pod
    for container in pod.containers:
        policy = pod.policy_of(container.name)
        if policy is RestartPolicy.NEVER:
            return Reason.RESTART_POLICY_NEVER, f"restartPolicy Never: a removed {container.name} would fail the pod"
        if rules.declares_restart_all(container):
            return (
                Reason.RESTARTS_ALL_ON_KILL,
                f"{container.name} declares RestartAllContainers for exit code {rules.KILLED}: use strategy rules",
            )
        if situation.grace_seconds > 0 and container.role is ContainerRole.MAIN and policy is RestartPolicy.ON_FAILURE:
            return (
                Reason.GRACE_COULD_COMPLETE,
                f"{container.name} could complete the pod by exiting 0 on SIGTERM; use no grace or policy Always",
            )
    return None


def _rules(situation: Situation) -> tuple[Reason, str] | None:
    if rules.trigger(situation.pod, preferred="") is not None:
        return None
    if rules.has_ended_trigger(situation.pod):
        return Reason.TRIGGER_ENDED, "no container whose kill restarts the pod runs now; kubelet restarts it by itself"
    return (
        Reason.NO_RESTART_RULE,
        f"no running container declares RestartAllContainers for exit code {rules.KILLED}",
    )


def _hidden_config(situation: Situation) -> tuple[Reason, str] | None:
    if situation.not_cloneable is None:
        return None
    return Reason.RUNTIME_HIDES_CONFIG, situation.not_cloneable


def _foreign_hook(containers: Iterable[ContainerSpec]) -> tuple[Reason, str] | None:
    for container in containers:
        if isinstance(container.post_start, UnsupportedHook):
            return Reason.POST_START_UNSUPPORTED, f"{container.name}: {container.post_start.reason}"
    return None


def _early_liveness(containers: Iterable[ContainerSpec]) -> tuple[Reason, str] | None:
    for container in filter(probes.liveness_may_act_first, containers):
        return (
            Reason.LIVENESS_BEFORE_STARTUP,
            f"{container.name}: kubelet could kill the new container by its livenessProbe before its startupProbe "
            "begins; raise the livenessProbe's failureThreshold or initialDelaySeconds",
        )
    return None


_COUNTED_TWICE: Final = 2
"""Kubelet counts the exit and the removal separately when its rules restart a pod, and if kubelet creates a container
first, the successor is one attempt further on (measured, docs/architecture.md)."""

SPECS: Final[Mapping[Strategy, Spec]] = MappingProxyType(
    {
        Strategy.PROCESS: Spec(Scope.PROGRAM, _process, counted=0),
        Strategy.SWAP: Spec(Scope.CONTAINERS, _swap, counted=_COUNTED_TWICE, starts_containers=True),
        Strategy.RERUN: Spec(Scope.POD, _rerun, counted=_COUNTED_TWICE, starts_containers=True),
        Strategy.RESET: Spec(Scope.POD, _reset, counted=_COUNTED_TWICE),
        Strategy.RULES: Spec(Scope.POD, _rules, counted=_COUNTED_TWICE, kills=True),
    }
)
"""What each strategy does (``auto`` is the choice between them)."""

# Auto never chooses a rerun: it costs more than a swap, and has the same obstacles.
_AUTO: Final = (Strategy.SWAP, Strategy.RESET, Strategy.RULES)
