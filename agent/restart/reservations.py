"""Reservations: containers that are never started and only take a name, so that kubelet cannot. Pure.

While a pod is rerun, kubelet works on it by looks that may be a second old. A container's name holds its attempt
(containerd: ``makeContainerName``), and the runtime gives a name to one container only. Kubelet counts attempts by what
it saw (``startContainer`` in kuberuntime_container.go, 1.36), so there are two names that it can come up with:

- n+1 where it saw the old container, or none at all and no log of ours. This is the name of ours, too, and whoever is
  first has it. Until the container's turn has come it is reserved: that keeps the order. The first in order needs none.
- n+2 where it saw ours, or none at all and a log of ours. It is reserved until kubelet shows what runs: that keeps
  everything from running twice.

Kubelet knows containers by their labels, and the runtime by their metadata. A reservation is labelled as another
container, of another pod, so that kubelet never takes it for the newest one of its name. Kubelet's garbage collector,
once a minute, takes what does not run of pods that it does not know, so no reservation outlives its agent for longer.
The collector also removes every file whose path begins with the container's log path (``containerLogManager.Clean``): a
reservation must have one, and one that nothing else begins with.
"""

from collections.abc import Collection, Iterable

from agent.model.workloads import ContainerRole, ContainerView
from agent.restart import intents
from agent.restart.steps import Step, StepKind, Why
from common.pb.runtime.v1 import api_pb2

NAME_LABEL = "io.kubernetes.container.name"  # staging/src/k8s.io/kubelet/pkg/types/labels.go
_POD_UID_LABEL = "io.kubernetes.pod.uid"
_MARK = ".reserved"  # neither a pod's UID nor a container's name in a pod's spec (a DNS label) has a dot
_NEVER_RUN = "/never-run"

Name = tuple[str, int]
"""A container's name and attempt."""


def config(successor: api_pb2.ContainerConfig, *, attempt: int) -> api_pb2.ContainerConfig:
    """Return the config of what holds this attempt of the successor's name."""
    name = successor.metadata.name
    made = api_pb2.ContainerConfig(
        metadata=api_pb2.ContainerMetadata(name=name, attempt=attempt),
        image=successor.image,
        command=[_NEVER_RUN],
        labels=successor.labels,
        annotations=successor.annotations,
        log_path=f"{name}/{attempt}{_MARK}",
        linux=api_pb2.LinuxContainerConfig(  # the runtime wants its namespaces to be the sandbox's
            security_context=successor.linux.security_context
        ),
    )
    made.labels[_POD_UID_LABEL] += _MARK
    made.labels[NAME_LABEL] = _label((name, attempt))
    return made


def reserves(view: ContainerView) -> bool:
    """Whether a container is a reservation, of whatever restart."""
    return view.restart_id is not None and _MARK in view.ref.name


def missing(intent: intents.PodIntent, seen: Iterable[ContainerView], *, taken: frozenset[Name]) -> tuple[Step, ...]:
    """Return what must be reserved before anything is taken away. ``taken`` are names that somebody else holds."""
    held = {view.ref.name for view in _ours(intent, seen)}
    return tuple(
        Step(StepKind.RESERVE, Why.NAME_FREE, name=name[0], attempt=name[1])
        for name in _wanted(intent)
        if name not in taken and _label(name) not in held
    )


def turn(intent: intents.PodIntent, seen: Iterable[ContainerView], planned: intents.Planned) -> Step:
    """Return the step that a container needs whose turn has come: to be created, once its name is given back."""
    label = _label((planned.name, planned.old_attempt + 1))
    held = next((view for view in _ours(intent, seen) if view.ref.name == label), None)
    return _removal(held) if held is not None else Step(StepKind.CREATE, Why.NO_SUCCESSOR, name=planned.name)


def releases(intent: intents.PodIntent, seen: Iterable[ContainerView], *, names: Collection[str]) -> tuple[Step, ...]:
    """Return how to give back what is reserved of these containers."""
    return tuple(_removal(view) for view in _ours(intent, seen) if view.ref.name.partition(_MARK)[0] in names)


def left_over(intent: intents.PodIntent, seen: Iterable[ContainerView]) -> tuple[Step, ...]:
    """Return how to remove what an earlier restart has left: its agent died, and its journal was lost."""
    return tuple(_removal(view) for view in seen if reserves(view) and view.restart_id != intent.id)


def _wanted(intent: intents.PodIntent) -> Iterable[Name]:
    its_turn = True
    for planned in intent.plan:
        if not its_turn:
            yield planned.name, planned.old_attempt + 1
        yield planned.name, planned.old_attempt + 2
        its_turn = its_turn and planned.role is ContainerRole.MAIN


def _label(name: Name) -> str:
    return f"{name[0]}{_MARK}-{name[1]}"


def _ours(intent: intents.PodIntent, seen: Iterable[ContainerView]) -> Iterable[ContainerView]:
    return (view for view in seen if reserves(view) and view.restart_id == intent.id)


def _removal(view: ContainerView) -> Step:
    return Step(StepKind.REMOVE, Why.GIVEN_BACK, view.id, view.ref.name)
