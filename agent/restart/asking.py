"""What a person, or a gang's round, asks for: which containers, and how they are to be restarted. Pure."""

from dataclasses import dataclass, replace

from agent.model.workloads import ContainerRole, PodView
from agent.restart import intents, members, options

_WHOLE_POD = (intents.Strategy.RERUN, intents.Strategy.RESET, intents.Strategy.RULES)


class UnclearError(ValueError):
    """What was asked for could mean several containers, or none. The text names the choices."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What was asked for by name. It goes before the pod's annotations, which hold for what is None or empty.

    ``by_round``: it is not a person's wish. A pod must have opted in then, and what runs is restarted even where it is
    newer than the cause: it may have joined what the round is to end.
    """

    strategy: intents.Strategy | None = None
    containers: frozenset[str] = frozenset()
    grace_seconds: float | None = None
    by_round: bool = False

    def over(self, annotated: options.Options) -> options.Options:
        """Return the pod's wishes with these in their place. A person who names a pod need not annotate it first."""
        return replace(
            annotated,
            opted_in=annotated.opted_in or not self.by_round,
            strategy=self.strategy if self.strategy is not None else annotated.strategy,
            containers=self.containers or annotated.containers,
            grace_seconds=self.grace_seconds if self.grace_seconds is not None else annotated.grace_seconds,
        )


def container(pod: PodView, asked: Asked) -> str:
    """Return the container that the restart is about: the first of those named, else the pod's only target.

    Raises UnclearError, or options.BadAnnotationError.
    """
    wishes = asked.over(options.parse(pod.annotations))
    if unknown := sorted(name for name in wishes.containers if pod.container(name) is None):
        raise UnclearError(f"pod {pod.ref} has no container {', '.join(unknown)}; it has {_names(pod)}")
    mains = [spec.name for spec in pod.containers if spec.role is ContainerRole.MAIN]
    named = sorted(wishes.containers, key=lambda name: (name not in mains, name))
    if named:
        return named[0]
    meant = [name for name in mains if name in members.targets(pod, named=())]
    if len(meant) > 1 and wishes.strategy not in _WHOLE_POD:
        raise UnclearError(f"pod {pod.ref} has several containers; name one with --container: {', '.join(mains)}")
    return meant[0]


def _names(pod: PodView) -> str:
    return ", ".join(spec.name for spec in pod.containers)
