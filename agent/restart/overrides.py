"""Apply the options of a manual request, or of a gang's round: which containers, and how to restart them. Pure."""

from dataclasses import dataclass, replace

from kubemend.agent.model.workloads import ContainerRole, PodView
from kubemend.agent.restart import intents, members, options, strategies


class AmbiguousTargetError(ValueError):
    """A request could mean several containers, or none. The text names the choices."""


@dataclass(frozen=True, slots=True)
class RestartOverrides:
    """The options of a request. They override the pod's annotations, which apply where a field is None or empty.

    ``by_round``: the request is a round's, not a person's. Then the pod must have opted in, and a running container is
    restarted even if it is newer than the cause: it may have joined the communication that the round must end.
    """

    strategy: intents.Strategy | None = None
    containers: frozenset[str] = frozenset()
    grace_seconds: float | None = None
    by_round: bool = False

    def over(self, annotated: options.Options) -> options.Options:
        """Return the pod's options with these overrides. A manual request for a pod needs no opt-in annotation."""
        return replace(
            annotated,
            opted_in=annotated.opted_in or not self.by_round,
            strategy=self.strategy if self.strategy is not None else annotated.strategy,
            containers=self.containers or annotated.containers,
            grace_seconds=self.grace_seconds if self.grace_seconds is not None else annotated.grace_seconds,
        )


def container(pod: PodView, asked: RestartOverrides) -> str:
    """Return the container that the restart is about: the first of those named, else the pod's only target.

    Raises AmbiguousTargetError, or options.BadAnnotationError.
    """
    pod_options = asked.over(options.parse(pod.annotations))
    if unknown := sorted(name for name in pod_options.containers if pod.container(name) is None):
        raise AmbiguousTargetError(f"pod {pod.ref} has no container {', '.join(unknown)}; it has {_names(pod)}")
    mains = [spec.name for spec in pod.containers if spec.role is ContainerRole.MAIN]
    named = sorted(pod_options.containers, key=lambda name: (name not in mains, name))
    if named:
        return named[0]
    meant = [name for name in mains if name in members.targets(pod, named=())]
    spec = strategies.SPECS.get(pod_options.strategy)  # None: auto
    if len(meant) > 1 and not (spec is not None and spec.whole_pod):
        raise AmbiguousTargetError(
            f"pod {pod.ref} has several containers; name one with --container: {', '.join(mains)}"
        )
    return meant[0]


def _names(pod: PodView) -> str:
    return ", ".join(spec.name for spec in pod.containers)
