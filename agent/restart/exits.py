"""Decide whether the end of a container is a cause to restart it, and how long to doubt that first. Pure.

Kubelet restarts a container that exits with an error at once only the first time: from then on with a backoff
(``doBackOff`` in pkg/kubelet/kuberuntime/kuberuntime_manager.go), which the agent spares a container that opted in. An
end that is not an error of the program is left to kubelet: completion, a requested stop, the end of the pod.
"""

import enum
from dataclasses import dataclass
from typing import Final

from kubemend.agent.model.workloads import ContainerSpec, PodView, RestartPolicy
from kubemend.agent.restart import admission, options
from kubemend.agent.restart.reasons import Reason

SIGKILL_CODE: Final = 137
SIGTERM_CODE: Final = 143
OOM_KILLED: Final = "OOMKilled"
"""The reason by which CRI runtimes report an end by the kernel's OOM killer (``ContainerStatus.reason``)."""


class Left(enum.Enum):
    """Why the exit of a container that could be restarted is left to kubelet."""

    COMPLETED = "Completed"
    NEVER = "RestartPolicyNever"
    FATAL = "FatalExitCode"
    STOPPED = "Stopped"
    RULE = "RestartRule"
    OURS = "Ours"


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container has ended. ``reason`` is the runtime's; ``ours``: this agent requested the end.

    ``asked``: another component requested it, as far as observed; the program may answer with any exit code.
    """

    name: str
    exit_code: int
    reason: str = ""
    ours: bool = False
    asked: bool = False

    @property
    def looks_like_a_stop(self) -> bool:
        """Return whether it was stopped, or ended as if: by SIGTERM, or by SIGKILL but not for its memory."""
        killed = self.exit_code == SIGKILL_CODE and self.reason != OOM_KILLED
        return self.asked or killed or self.exit_code == SIGTERM_CODE


def left_reason(
    pod: PodView, ended: Exit, *, opted_in_namespaces: frozenset[str], own_pod_uid: str | None = None
) -> Left | Reason | None:
    """Return why the exit is left to kubelet; None if the container must be restarted in place."""
    refused = admission.no_fault_reason(
        pod, ended.name, opted_in_namespaces=opted_in_namespaces, own_pod_uid=own_pod_uid
    )
    if refused is not None:
        return refused.reason
    if pod.is_over:
        return Reason.POD_NOT_RUNNING
    if ended.ours:
        return Left.OURS
    if ended.exit_code == 0:
        return Left.COMPLETED
    if ended.looks_like_a_stop:
        return Left.STOPPED
    spec = pod.container(ended.name)
    assert spec is not None, "no_fault_reason refuses containers that the pod does not have"
    if _by_rule(spec, ended.exit_code):
        return Left.RULE
    if pod.policy_of(ended.name) is RestartPolicy.NEVER:
        return Left.NEVER
    if ended.exit_code in options.parse(pod.annotations).fatal_exit_codes:
        return Left.FATAL
    return None


def is_restarted_at_once(pod: PodView, name: str) -> bool:
    """Return whether kubelet restarts a container without delay when it has ended with an error."""
    spec = pod.container(name)
    return spec is not None and not spec.backs_off and pod.policy_of(name) is not RestartPolicy.NEVER


def _by_rule(spec: ContainerSpec, exit_code: int) -> bool:
    """Return whether the container's own rules decide about this exit (KEP-5307, KEP-5532)."""
    return spec.rule_for(exit_code) is not None


QUICK: Final = 0.15
"""Seconds within which a runtime shows that a sandbox stops, after the last container of a pod that kubelet ends
has stopped."""
PATIENT: Final = 3.0
"""Seconds that kubelet gets to show its intention: it lists its containers every second, and hard eviction ends each of
them within two (``minimumGracePeriodInSeconds`` in pkg/kubelet/kuberuntime/kuberuntime_container.go)."""
STOPPED: Final = 10.0
"""Seconds for the same if the runtime was asked to stop the container: kubelet then ends the pod, or creates another
container at once (unless it is in backoff)."""
_OF_LAG: Final = 3.0


@dataclass(frozen=True, slots=True)
class ExitContext:
    """The circumstances of a container's end.

    ``lag``: seconds from the end to its detection, a measure of how busy the node is. ``others_run``: other containers
    of the pod still run, so that its sandbox would not stop at once. ``others_ended``: another container ended together
    with it. ``node_ends_pods``: kubelet is under pressure, or its node shuts down. ``stop_unread``: a moment ago the
    runtime executed a request that could not be read, and that may have been this container's stop. ``has_hook``: it
    has a preStop hook, which may have ended it; the Event that shows it comes a moment later.
    """

    lag: float = 0.0
    others_run: bool = False
    others_ended: bool = False
    node_ends_pods: bool = False
    stop_unread: bool = False
    has_hook: bool = False


def doubt(ended: Exit, scene: ExitContext, *, quick: float = QUICK) -> float:
    """Return for how many seconds to doubt that an end is a fault of the container's own.

    ``quick`` is the time if nothing points to another reason; with 0 a restart proceeds at once, because in a
    terminating pod it costs nothing but the restart (a round would stop the whole gang).

    Kubelet marks a pod that it evicts, or ends for a shutdown, only when its containers have ended (``mergePodStatus``
    in pkg/kubelet/status/status_manager.go). Until then only its actions show it.
    """
    if ended.asked:
        return STOPPED
    may_be_a_stop = ended.looks_like_a_stop or scene.stop_unread
    if scene.others_ended or scene.node_ends_pods or (may_be_a_stop and scene.others_run):
        return PATIENT
    if scene.stop_unread or scene.has_hook:  # its sandbox would stop at once, or kubelet's Event arrive
        quick = max(quick, QUICK)
    return min(max(quick, _OF_LAG * scene.lag), PATIENT) if quick else 0.0
