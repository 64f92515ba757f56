"""Decide whether a container may be restarted in place now. One pure function, one answer with a stable reason.

The hard part is what a restart can break without failing itself: a ``Never`` pod that kubelet then fails for good, a
Job whose backoffLimit the extra restartCount exhausts, a LeaderWorkerSet that recreates its whole group, a JobSet whose
sidecars restart the same gang. Each is refused beforehand. If the evidence is inconclusive, the restart is postponed
and decided again, or refused.
"""

import enum
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerRole,
    ContainerSpec,
    ContainerState,
    PodView,
    RestartPolicy,
)
from kubemend.agent.restart import (
    budget,
    counts,
    intents,
    members,
    options,
    overrides,
    owners,
    process,
    strategies,
)
from kubemend.agent.restart.reasons import Reason
from kubemend.common import budgets, gangs

MIRROR_ANNOTATION = "kubernetes.io/config.mirror"
CONFIG_SOURCE_ANNOTATION = "kubernetes.io/config.source"
UNLIMITED_BACKOFF = 2**31 - 1


_SIGKILL_CODE, _SIGTERM_CODE = 137, 143
_ONE_ANSWER = 120.0
"""Seconds after a restart in which further events of the container are consequences of that restart."""
_SAME_FAULT = 2.0
"""Seconds between the reported times of one fault."""


class Verb(enum.Enum):
    """ACT now, POSTPONE and decide again (at ``retry_at``, or when a missing fact arrives), or REFUSE for good."""

    ACT = "act"
    POSTPONE = "postpone"
    REFUSE = "refuse"


@dataclass(frozen=True, slots=True)
class OwnerFacts:
    """How the pod's owner reacts to restarts. None means "does not apply".

    ``job_restarts_left``: how many more restartCount increments the Job survives (``pkg/controller/job``: under
    OnFailure the counts of all containers of its running and pending pods are held against backoffLimit), or another
    owner that counts (``agent.restart.owners``). ``job_pods`` is the number of those pods. ``group_policy``: the
    LeaderWorkerSet's ``restartPolicy``.
    """

    job_restarts_left: int | None = None
    job_pods: int = 1
    group_policy: str | None = None

    @property
    def lasts(self) -> bool:
        """Return whether the facts stay valid after more restarts: no Job counts them, or its limit is unreachable."""
        return self.job_restarts_left is None or self.job_restarts_left >= UNLIMITED_BACKOFF


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """The runtime's facts about the target: the newest container of the name, and whether it can be cloned.

    ``started_at`` is Unix time in seconds, None if it never started. ``not_cloneable`` is why its config cannot be read
    or copied, None if no obstacle is known. ``not_holdable`` is why its successor cannot be held at its first
    instruction although this node can hold others, and ``unsupported`` why containers of its low-level runtime are not
    restarted at all. ``finished_at`` is when it ended, None while it runs. ``launcher`` is the answer of the launcher
    in it, None if it runs none; ``program_started_at`` is when that has started the program that runs now.
    ``stopping``: why a launcher that has been asked to stop may be about to end with its container; empty if it is not.
    ``container`` is its id; ``config_is_rebuilt``: the runtime does not return the config (``agent.restart.rebuild``).
    ``annotations`` are the pod's at its start.
    """

    state: ContainerState
    exit_code: int | None
    started_at: float | None
    sandbox_ready: bool
    finished_at: float | None = None
    not_cloneable: str | None = None
    not_holdable: str | None = None
    unsupported: str | None = None
    launcher: process.Launcher | process.LauncherUnavailable | None = None
    program_started_at: float | None = None
    stopping: str = ""
    config_is_rebuilt: bool = False
    container: ContainerId | None = None
    annotations: Mapping[str, str] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Cause:
    """The cause of a restart. ``happened_at`` is Unix time; ``action`` is the worst verdict of its devices.

    ``code`` is short and stable, such as ``Xid31``; it appears in KUBEMEND_RESTART_REASON and in metrics. ``device`` is
    the device at fault, by the name under which its health is kept; None if no device is. ``names_process``: the fault
    named a process of the target itself. ``container`` is the one that ended, or that has this process; None if neither
    is known.
    """

    code: str
    message: str
    happened_at: float
    action: ActionClass = ActionClass.RESTART_APP
    devices_known: bool = True
    device: str | None = None
    names_process: bool = False
    container: ContainerId | None = None


@dataclass(frozen=True, slots=True)
class Facts:
    """All facts that the decision depends on. None means "unknown", except for ``asked``, where it means a fault.

    ``can_hold``: whether this node can hold a container at its first instruction. ``storm`` is the node's budget.
    """

    target: ContainerRef
    cause: Cause
    pod: PodView | None
    runtime: RuntimeFacts | None
    owner: OwnerFacts | None
    history: counts.History = field(default_factory=counts.History)
    storm: budgets.Window = budget.STORM
    opted_in_namespaces: frozenset[str] = frozenset()
    own_pod_uid: str | None = None
    can_hold: bool = False
    asked: overrides.RestartOverrides | None = None


@dataclass(frozen=True, slots=True)
class Decision:
    """The decision.

    For ACT ``strategy`` and ``grace_seconds`` are set, ``detail`` lists the strategies that were passed over, and
    ``orders`` has the containers that a swap replaces, each with its safe order. ``retry_at`` (Unix time) is set for a
    timed POSTPONE.
    """

    verb: Verb
    reason: Reason
    detail: str = ""
    strategy: intents.Strategy | None = None
    orders: Mapping[str, intents.SwapOrder] = field(default_factory=lambda: MappingProxyType({}))
    grace_seconds: float = 0.0
    retry_at: float | None = None


def answered_by_us(facts: Facts, *, known_at: float) -> bool:
    """Return whether a restart already handled the event, so that the container's replacement is expected.

    It has, if the agent knew of the event (``known_at``, Unix time) before the restart began. An event that it learnt
    of later may concern the successor, and only seem older because the kernel log's clock is late: it counts as handled
    only if it is dated between the fault that the restart was for and the consequences of that restart.
    """
    return any(
        known_at < begun.at or begun.fault_at - _SAME_FAULT <= facts.cause.happened_at <= begun.at + _ONE_ANSWER
        for begun in facts.history.container
    )


def not_held(pod: PodView, *, opted_in_namespaces: frozenset[str], own_pod_uid: str | None) -> Decision | None:
    """Return why a pod's containers must not be held for a round; None if they may be."""
    try:
        pod_options = options.parse(pod.annotations)
    except options.BadAnnotationError as error:
        return _refuse(Reason.BAD_ANNOTATION, str(error))
    if not pod_options.opted_in and pod.ref.namespace not in opted_in_namespaces:
        return _not_opted_in()
    return _refuse_own(pod, own_pod_uid=own_pod_uid) or _refuse_static(pod)


def no_fault_reason(
    pod: PodView, name: str, *, opted_in_namespaces: frozenset[str], own_pod_uid: str | None = None
) -> Decision | None:
    """Return why no event of a container counts as a fault, of its gang or its own; None if it may.

    A fault must concern a container that may be restarted: no debugger, log shipper or init container causes a restart.
    """
    try:
        pod_options = options.parse(pod.annotations)
    except options.BadAnnotationError as error:
        return _refuse(Reason.BAD_ANNOTATION, str(error))
    return (
        _refuse_by_opt_in(
            pod, pod_options=pod_options, opted_in_namespaces=opted_in_namespaces, own_pod_uid=own_pod_uid
        )
        or _refuse_going(pod)
        or _refuse_owner(pod, pod_options=pod_options)
        or _refuse_by_container(
            pod, name, pod_options=pod_options, selected=members.targets(pod, named=pod_options.containers)
        )
    )


def decide(facts: Facts, *, now: float) -> Decision:
    """Decide whether to restart the target, with the reason. ``now`` is Unix time in seconds."""
    pod = facts.pod
    if pod is None:
        unknown = _hold(Reason.POD_UNKNOWN, "the API server has not sent this pod yet")
        return _refuse_static_without_mirror(facts) or unknown
    try:
        pod_options = options.parse(pod.annotations)
    except options.BadAnnotationError as error:
        return _refuse(Reason.BAD_ANNOTATION, str(error))
    if facts.asked is not None:
        pod_options = facts.asked.over(pod_options)
    refusal = (
        _refuse_for_good(facts, pod=pod, pod_options=pod_options)
        or _by_phase(pod, is_fault=facts.asked is None)
        or by_device(facts.cause)
        or _refuse_by_runtime(facts, pod=pod, pod_options=pod_options)
    )
    if refusal is not None:
        return refusal
    assert facts.runtime is not None
    targets = tuple(spec for spec in pod.containers if spec.name in (pod_options.containers or {facts.target.name}))
    situation = strategies.Situation(
        pod=pod,
        targets=targets,
        grace_seconds=pod_options.grace_seconds,
        not_cloneable=facts.runtime.not_cloneable,
        can_hold=facts.can_hold,
        not_holdable=facts.runtime.not_holdable,
        launcher=facts.runtime.launcher,
        is_fault=facts.asked is None or facts.asked.by_round,
        by_round=facts.asked is not None and facts.asked.by_round,
        fails_again=process.fails_again(facts.history.container, died_at=facts.cause.happened_at),
        cleans=bool(pod_options.clean),
        keeps=bool(pod_options.keep) and not facts.runtime.config_is_rebuilt,  # on CRI-O they are copied
        config_is_rebuilt=facts.runtime.config_is_rebuilt,
    )
    choice = strategies.choose(pod_options.strategy, situation)
    if choice.strategy is None:
        ended = next((item for item in choice.refused if item.obstacle is Reason.TRIGGER_ENDED), None)
        if ended is not None and facts.asked is None:  # a person can ask again, and a round does not wait for kubelet
            return _hold(ended.obstacle, choice.stepped_down)
        return _refuse(choice.refused[0].obstacle, choice.stepped_down)
    if (refusal := _refuse_by_owner(facts, pod=pod, restarts=_restarts(choice.strategy, pod, targets))) is not None:
        return refusal
    if (spent := _spent(facts, allowance=pod_options.budget(), now=now)) is not None:
        return spent
    swapped = targets if strategies.SPECS[choice.strategy].scope is strategies.Scope.CONTAINERS else ()
    orders = {spec.name: strategies.order_of(spec, situation) for spec in swapped}
    return Decision(
        Verb.ACT,
        Reason.ADMITTED,
        choice.stepped_down,
        strategy=choice.strategy,
        orders=MappingProxyType(orders),
        grace_seconds=pod_options.grace_seconds,
    )


_BUDGETS: Mapping[budget.Scope, tuple[Reason, str]] = MappingProxyType(
    {
        budget.Scope.CONTAINER: (Reason.BUDGET_SPENT, "the container's budget"),
        budget.Scope.POD: (Reason.POD_BUDGET_SPENT, "the pod's budget"),
        budget.Scope.DEVICE: (Reason.DEVICE_BUDGET_SPENT, "the device's budget"),
        budget.Scope.NODE: (Reason.NODE_STORM, "the node's storm guard"),
    }
)


def _spent(facts: Facts, *, allowance: budget.Budget, now: float) -> Decision | None:
    """Return the decision of an exhausted budget.

    Manual restarts are exempt but counted; a round uses its gang's budget.
    """
    if facts.asked is not None:
        return None
    spent = budget.spent(facts.history, container=allowance, node=facts.storm, now=now, died_at=facts.cause.happened_at)
    if spent is None:
        return None
    reason, whose = _BUDGETS[spent.scope]
    until, message = spent.closed.until, spent.closed.reason
    if math.isinf(until):
        return _refuse(reason, f"{whose} is used up for good: {message}")
    return Decision(
        Verb.POSTPONE,
        reason,
        f"{whose} is used up: {message}; it opens again at {budgets.clock(until)}",
        retry_at=until,
    )


def _restarts(strategy: intents.Strategy, pod: PodView, targets: Sequence[ContainerSpec]) -> int:
    """Return by how much the restart can raise the pod's restartCounts in total, finished init containers included."""
    spec = strategies.SPECS[strategy]
    return spec.counted * len(pod.containers if spec.whole_pod else targets)


def _refuse_for_good(facts: Facts, *, pod: PodView, pod_options: options.Options) -> Decision | None:
    """Refuse an event that is no fault; for a manual request, check the container that it names."""
    name, namespaces, own = facts.target.name, facts.opted_in_namespaces, facts.own_pod_uid
    if pod.ref.uid != facts.target.pod.uid:
        return _refuse(Reason.POD_DELETING, "the pod was replaced by another of the same name")
    if facts.asked is None:
        return no_fault_reason(pod, name, opted_in_namespaces=namespaces, own_pod_uid=own)
    return (
        _refuse_by_opt_in(pod, pod_options=pod_options, opted_in_namespaces=namespaces, own_pod_uid=own)
        or _refuse_going(pod)
        or _refuse_owner(pod, pod_options=pod_options)
        or _refuse_by_container(
            pod, name, pod_options=pod_options, selected=pod_options.containers or frozenset({name})
        )
    )


def _refuse_by_opt_in(
    pod: PodView, *, pod_options: options.Options, opted_in_namespaces: frozenset[str], own_pod_uid: str | None
) -> Decision | None:
    if (refusal := _refuse_own(pod, own_pod_uid=own_pod_uid)) is not None:
        return refusal
    if not pod_options.opted_in and pod.ref.namespace not in opted_in_namespaces:
        return _not_opted_in()
    return None


def _refuse_own(pod: PodView, *, own_pod_uid: str | None) -> Decision | None:
    if pod.ref.uid == own_pod_uid:
        return _refuse(Reason.OWN_POD, "the agent does not restart itself")
    return None


def _not_opted_in() -> Decision:
    return _refuse(Reason.NOT_OPTED_IN, f"no annotation {options.RESTART}: {options.IN_PLACE}")


def _refuse_static(pod: PodView) -> Decision | None:
    return _static() if MIRROR_ANNOTATION in pod.annotations or _is_static(pod.annotations) else None


def _refuse_static_without_mirror(facts: Facts) -> Decision | None:
    """Refuse a static pod that the API server does not have: it may never have it."""
    annotations = facts.runtime.annotations if facts.runtime is not None else {}
    if not _is_static(annotations):
        return None
    opted_in = annotations.get(options.RESTART) == options.IN_PLACE
    return _static() if opted_in or facts.target.pod.namespace in facts.opted_in_namespaces else _not_opted_in()


def _is_static(annotations: Mapping[str, str]) -> bool:
    return annotations.get(CONFIG_SOURCE_ANNOTATION, "api") != "api"


def _static() -> Decision:
    return _refuse(Reason.STATIC_POD, "only kubelet may restart static pods")


def _refuse_going(pod: PodView) -> Decision | None:
    """Refuse a pod that is terminating: its events are no faults, and nothing of it is started again."""
    if pod.deleting:
        return _refuse(Reason.POD_DELETING, "the pod is being deleted")
    if pod.leaving:
        return _refuse(Reason.POD_DELETING, f"Kubernetes is ending the pod: {pod.leaving}")
    return _refuse_static(pod)


def _refuse_owner(pod: PodView, *, pod_options: options.Options) -> Decision | None:
    """Refuse a JobSet that restarts the pod by itself, and an owner of an unknown kind, which may fail its job."""
    if gangs.JOBSET_ATTEMPT in pod.annotations:
        return _refuse(
            Reason.JOBSET,
            "a sidecar of upstream's JobSet controller restarts its gang in place; "
            f"remove it to have kubemend do that, or the annotation {options.RESTART}",
        )
    kind = owners.unknown(pod) if pod_options.owner_counts else ""
    if not kind:
        return None
    hint = f'if it does not, annotate the pod template with {options.OWNER_COUNTS}: "false"'
    return _refuse(Reason.OWNER_MAY_COUNT, f"a {kind} may count restarts against a limit of its own; {hint}")


def _by_phase(pod: PodView, *, is_fault: bool) -> Decision | None:
    if pod.phase == "Running":
        return None
    # A fault may come before kubelet has reported that its container runs, or before the API server has sent that.
    decide = _hold if pod.phase == "Pending" and is_fault else _refuse
    return decide(Reason.POD_NOT_RUNNING, f"the pod's phase is {pod.phase}")


def _refuse_by_container(
    pod: PodView, hit: str, *, pod_options: options.Options, selected: frozenset[str]
) -> Decision | None:
    if pod_options.containers and hit not in selected:
        return _refuse(Reason.NOT_SELECTED, f"annotation {options.CONTAINERS} does not list it")
    for name in sorted({hit, *pod_options.containers}):
        spec = pod.container(name)
        if spec is None:
            return _refuse(Reason.CONTAINER_UNKNOWN, f"the pod has no container {name!r}")
        if spec.role is ContainerRole.INIT:
            return _refuse(
                Reason.INIT_CONTAINER, f"{name} is an init container: these are rerun only with their whole pod"
            )
    if hit not in selected:
        meant = ", ".join(sorted(selected))
        return _refuse(Reason.NOT_SELECTED, f"only {meant} is restarted; add it with annotation {options.CONTAINERS}")
    return None


def _refuse_by_owner(facts: Facts, *, pod: PodView, restarts: int) -> Decision | None:
    counting = owners.counting(pod)
    in_group = gangs.LWS_NAME in pod.labels
    if counting is None and not in_group:
        return None
    by_round = facts.asked is not None and facts.asked.by_round
    if facts.owner is None:
        unknown = "the pod's owner could not be read from the API server"
        # A round does not wait for the API server while the other members are held.
        return _refuse(Reason.OWNER_UNKNOWN, unknown) if by_round else _hold(Reason.OWNER_UNKNOWN, unknown)
    if in_group and facts.owner.group_policy != "None":
        return _refuse(
            Reason.LEADER_WORKER_SET,
            f"LeaderWorkerSet restartPolicy {facts.owner.group_policy} recreates the group on any restart; set None",
        )
    left = facts.owner.job_restarts_left
    restarts *= facts.owner.job_pods if by_round else 1  # all pods restart now, and each agent decides for its own
    lasting = counting is not None and counting.default is None and facts.owner.lasts  # it has set no limit
    if counting is not None and restarts and not lasting and (left is None or left < restarts):
        when, other = (
            ("", "leave it out") if counting.default is None else (" under OnFailure", "restartPolicy to Never")
        )
        return _refuse(
            Reason.JOB_BACKOFF,
            f"the {counting.kind} would fail: {restarts} more restarts count against backoffLimit{when}; "
            f"set backoffLimit to {UNLIMITED_BACKOFF} or {other}",
        )
    return None


def by_device(cause: Cause) -> Decision | None:
    """Return why nothing may start on the devices now, or yet; None if their health allows it."""
    if not cause.devices_known:
        return _hold(Reason.DEVICE_NOT_PROVEN, "the device's health is unknown")
    if cause.action is ActionClass.ASK_DRIVER:
        return _hold(Reason.DEVICE_NOT_PROVEN, "only the driver knows whether the device is usable")
    if not cause.action.leaves_device_usable:
        return _refuse(
            Reason.DEVICE_NOT_USABLE, f"a new process would fail on the device: it needs {cause.action.value}"
        )
    return None


def _refuse_by_runtime(facts: Facts, *, pod: PodView, pod_options: options.Options) -> Decision | None:
    runtime = facts.runtime
    if runtime is None:
        return _hold(Reason.CONTAINER_UNKNOWN, "the runtime does not show a container of that name")
    if not runtime.sandbox_ready:
        return _refuse(Reason.SANDBOX_NOT_READY, "kubelet is recreating the pod's sandbox")
    if runtime.unsupported is not None:
        return _refuse(Reason.RUNTIME_UNSUPPORTED, runtime.unsupported)
    has_ended = not facts.cause.names_process or runtime.state is ContainerState.EXITED
    of_itself = has_ended and facts.cause.container is not None and facts.cause.container == runtime.container
    # It has not failed before it started: the clock has been set back in between.
    newer = runtime.started_at is not None and runtime.started_at > facts.cause.happened_at and not of_itself
    if newer and (facts.asked is None or not facts.asked.by_round):
        since = "the fault" if facts.asked is None else "the request"
        assert runtime.started_at is not None
        by = runtime.started_at - facts.cause.happened_at
        return _refuse(Reason.ALREADY_REPLACED, f"the container started {by:.1f} s after {since}")
    if facts.asked is None and (decision := _program_restarted(facts, runtime)) is not None:
        return decision
    if runtime.state is ContainerState.RUNNING and facts.cause.container not in (None, runtime.container):
        # Its successor was put on standby before: a process that is ending cannot be frozen, and on a GPU takes long.
        of = "that had the faulty process" if facts.cause.names_process else "that ended"
        return _refuse(Reason.ALREADY_REPLACED, f"another container has taken the place of the one {of}")
    if runtime.state is ContainerState.EXITED:
        policy = pod.policy_of(facts.target.name)
        if policy is not RestartPolicy.ALWAYS and runtime.exit_code == 0:
            return _refuse(Reason.COMPLETED, "the container has completed")
        if policy is RestartPolicy.NEVER and not _died_of_the_fault(facts, pod=pod, pod_options=pod_options):
            return _refuse(Reason.ALREADY_TERMINATED, "the container has exited and its restartPolicy is Never")
    elif runtime.state is not ContainerState.RUNNING:
        return _hold(Reason.CONTAINER_UNKNOWN, f"the runtime reports state {runtime.state.value}")
    return None


def _program_restarted(facts: Facts, runtime: RuntimeFacts) -> Decision | None:
    """Return the decision about a fault that a launcher handles, or has handled, by itself; None: it has not."""
    launcher = runtime.launcher
    if isinstance(launcher, process.Launcher) and launcher.state is process.State.RESTARTING:
        return _hold(Reason.LAUNCHER_RESTARTS, "the launcher in the container restarts the program by itself")
    if runtime.stopping:
        return _hold(Reason.CONTAINER_STOPS, f"{process.STOPS}: {runtime.stopping}")
    since = runtime.program_started_at
    if since is None or since <= facts.cause.happened_at:
        return None
    by = since - facts.cause.happened_at
    return _refuse(Reason.ALREADY_REPLACED, f"the launcher has started the program {by:.1f} s after the fault")


def _died_of_the_fault(facts: Facts, *, pod: PodView, pod_options: options.Options) -> bool:
    """Return whether the container has ended by itself, with an error, after the fault that named its process.

    CUDA reports a fault to the program some 16 to 350 ms after the kernel's line, so it may be faster than the agent.
    Kubelet has not ended the pod yet. An exit as of a stop, and one that the pod's own rules decide, is final.
    """
    runtime, spec = facts.runtime, pod.container(facts.target.name)
    if runtime is None or spec is None or runtime.finished_at is None or runtime.exit_code is None:
        return False
    if not facts.cause.names_process or runtime.finished_at < facts.cause.happened_at:
        return False
    by_itself = runtime.exit_code not in (0, _SIGKILL_CODE, _SIGTERM_CODE)
    ruled = runtime.exit_code in pod_options.fatal_exit_codes or spec.rule_for(runtime.exit_code) is not None
    return by_itself and not ruled


def _refuse(reason: Reason, detail: str) -> Decision:
    return Decision(Verb.REFUSE, reason, detail)


def _hold(reason: Reason, detail: str) -> Decision:
    return Decision(Verb.POSTPONE, reason, detail)
