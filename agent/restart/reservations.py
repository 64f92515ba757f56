"""Reserve container names by containers that are never started, so that kubelet cannot use them. Pure.

While a pod is rerun, kubelet acts on listings that may be a second old. A container's name contains its attempt
(containerd: ``makeContainerName``), and the runtime gives a name to one container only. Kubelet counts attempts by its
last listing (``startContainer`` in kuberuntime_container.go, 1.36), so there are two names that it can use:

- n+1 if it saw the old container, or none at all and no log of the successor. This is the successor's name, too: the
  first to create it wins. Until the container's turn has come it is reserved, which keeps the order. The first
  container in order needs no reservation.
- n+2 if it saw the successor, or none at all and a log of the successor. It is reserved from before the successor is
  created until kubelet shows the running containers, which keeps everything from running twice.

Kubelet identifies containers by their labels, and the runtime by their metadata. A reservation is labelled as another
container, of another pod, so that kubelet never takes it for the newest one of its name. The next agent releases those
of a dead one; until there is one, kubelet's garbage collector does: once a minute it removes containers that do not run
and belong to unknown pods. The collector also removes every file whose path begins with the container's log path
(``containerLogManager.Clean``): a reservation must have one that no other path begins with.
"""

from collections.abc import Collection, Iterable

from kubemend.agent.model.workloads import ContainerRole, ContainerSummary, PodUid
from kubemend.agent.restart import clone, intents
from kubemend.agent.restart.steps import Step, StepKind, StepReason
from kubemend.common.pb.runtime.v1 import api_pb2

NAME_LABEL = "io.kubernetes.container.name"  # staging/src/k8s.io/kubelet/pkg/types/labels.go
_MARK = ".reserved"  # neither a pod's UID nor a container's name in a pod's spec (a DNS label) has a dot
_NEVER_RUN = "/never-run"

Name = tuple[str, int]
"""A container's name and attempt."""


def config(successor: api_pb2.ContainerConfig, *, attempt: int) -> api_pb2.ContainerConfig:
    """Return the config of the reservation of this attempt of the successor's name."""
    name = successor.metadata.name
    made = api_pb2.ContainerConfig(
        metadata=api_pb2.ContainerMetadata(name=name, attempt=attempt),
        image=successor.image,
        command=[_NEVER_RUN],
        labels=successor.labels,
        annotations=successor.annotations,
        log_path=f"{name}/{attempt}{_MARK}",
        linux=api_pb2.LinuxContainerConfig(  # the runtime requires its namespaces to be the sandbox's
            security_context=successor.linux.security_context
        ),
    )
    made.labels[clone.POD_UID_LABEL] += _MARK
    made.labels[NAME_LABEL] = _label((name, attempt))
    return made


def reserves(view: ContainerSummary) -> bool:
    """Return whether a container is a reservation, of any restart."""
    return view.restart_id is not None and _MARK in view.ref.name


def name_of(view: ContainerSummary) -> Name:
    """Return the name that a reservation reserves."""
    name, _, attempt = view.ref.name.partition(f"{_MARK}-")
    return name, int(attempt) if attempt.isdecimal() else 0


def pod_uid(view: ContainerSummary) -> PodUid:
    """Return the UID of the pod for which a reservation was made."""
    return PodUid(view.ref.pod.uid.removesuffix(_MARK))


def holds(view: ContainerSummary, *, name: str, attempt: int) -> bool:
    """Return whether a container is a reservation of that name and attempt, of any restart."""
    return reserves(view) and view.ref.name == _label((name, attempt))


def outlasting(intent: intents.PodIntent, seen: Iterable[ContainerSummary], *, name: str) -> ContainerSummary | None:
    """Return the reservation of a name that lasts until the end of the rerun; None if there is none."""
    labels = {_label((planned.name, planned.old_attempt + 2)) for planned in intent.plan if planned.name == name}
    return next((view for view in _ours(intent, seen) if view.ref.name in labels), None)


def missing_turns(
    intent: intents.PodIntent, seen: Iterable[ContainerSummary], *, taken: frozenset[Name]
) -> tuple[Step, ...]:
    """Return which names n+1 to reserve before anything is removed; another container holds those in ``taken``."""
    return _missing(intent, seen, _turns(intent), taken=taken)


def missing_copies(
    intent: intents.PodIntent,
    seen: Iterable[ContainerSummary],
    *,
    of: Iterable[intents.Planned],
    taken: frozenset[Name],
) -> tuple[Step, ...]:
    """Return which names n+2 to reserve before the successors ``of`` are created: until then kubelet uses n+1."""
    return _missing(intent, seen, ((planned.name, planned.old_attempt + 2) for planned in of), taken=taken)


def _missing(
    intent: intents.PodIntent, seen: Iterable[ContainerSummary], wanted: Iterable[Name], *, taken: frozenset[Name]
) -> tuple[Step, ...]:
    held = {view.ref.name for view in _ours(intent, seen)}
    return tuple(
        Step(StepKind.RESERVE, StepReason.NAME_FREE, name=name[0], attempt=name[1])
        for name in wanted
        if name not in taken and _label(name) not in held
    )


def turn(intent: intents.PodIntent, seen: Iterable[ContainerSummary], planned: intents.Planned) -> Step:
    """Return the step for a container whose turn has come: create it, once its name is released."""
    label = _label((planned.name, planned.old_attempt + 1))
    held = next((view for view in _ours(intent, seen) if view.ref.name == label), None)
    return _removal(held) if held is not None else Step(StepKind.CREATE, StepReason.NO_SUCCESSOR, name=planned.name)


def releases(
    intent: intents.PodIntent, seen: Iterable[ContainerSummary], *, names: Collection[str]
) -> tuple[Step, ...]:
    """Return the steps that release the reservations of these containers."""
    return tuple(_removal(view) for view in _ours(intent, seen) if view.ref.name.partition(_MARK)[0] in names)


def left_over(intent: intents.PodIntent, seen: Iterable[ContainerSummary]) -> tuple[Step, ...]:
    """Return the steps that remove another restart's reservations: its agent died, and its journal was lost."""
    return tuple(_removal(view) for view in seen if reserves(view) and view.restart_id != intent.id)


def _turns(intent: intents.PodIntent) -> Iterable[Name]:
    its_turn = True
    for planned in intent.plan:
        if not its_turn:
            yield planned.name, planned.old_attempt + 1
        its_turn = its_turn and planned.role is ContainerRole.MAIN


def _label(name: Name) -> str:
    return f"{name[0]}{_MARK}-{name[1]}"


def _ours(intent: intents.PodIntent, seen: Iterable[ContainerSummary]) -> Iterable[ContainerSummary]:
    return (view for view in seen if reserves(view) and view.restart_id == intent.id)


def _removal(view: ContainerSummary) -> Step:
    return Step(StepKind.REMOVE, StepReason.GIVEN_BACK, view.id, view.ref.name)
