"""Build values for tests of the hub client."""

from typing import Any

from kubemend.agent.clients.cri.convert import ContainerStatus
from kubemend.agent.model.devices import DeviceId
from kubemend.agent.model.rounds import StepResult
from kubemend.agent.model.workloads import (
    ContainerId,
    ContainerRef,
    ContainerRole,
    ContainerSpec,
    ContainerState,
    PodRef,
    PodUid,
    PodView,
    RestartPolicy,
    RestartRule,
    RuleAction,
)
from kubemend.agent.restart import admission
from kubemend.common.coordination import StepPhase
from kubemend.common.gangs import GangKey
from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb

GANG = GangKey("team", "JobSet", "train")
GPU = DeviceId("GPU-0")


def ref(number: int) -> PodRef:
    """Return the pod reference of the member with that number."""
    return PodRef("team", f"train-{number}", PodUid(f"uid-{number}"))


def trainer(number: int) -> ContainerRef:
    """Return its main container."""
    return ContainerRef(ref(number), "trainer")


def member(number: int = 0, **changes: Any) -> PodView:
    """Return an opted-in member of the gang, with one main container."""
    defaults: dict[str, Any] = {
        "ref": ref(number),
        "phase": "Running",
        "restart_policy": RestartPolicy.ON_FAILURE,
        "containers": (ContainerSpec("trainer", ContainerRole.MAIN, running=True),),
        "annotations": {"kubemend.io/restart": "InPlace"},
        "labels": {"jobset.sigs.k8s.io/jobset-name": "train"},
    }
    return PodView(**defaults | changes)


def restarts_all(name: str, *, on: int) -> ContainerSpec:
    """Return a main container whose exit with that code makes kubelet restart the whole pod."""
    rule = RestartRule(RuleAction.RESTART_ALL, frozenset({on}))
    return ContainerSpec(name, ContainerRole.MAIN, restart_rules=(rule,))


def info(
    container_id: ContainerId, *, of: ContainerRef, exit_code: int, reason: str = "Error", finished_at: int = 2
) -> ContainerStatus:
    """Return the runtime's status of a container that has ended. ``finished_at`` is Unix time in nanoseconds."""
    return ContainerStatus(
        id=container_id,
        ref=of,
        attempt=0,
        state=ContainerState.EXITED,
        created_at=1,
        started_at=1,
        finished_at=finished_at,
        exit_code=exit_code,
        reason=reason,
        message="",
        log_path="",
        annotations={},
    )


def cause(**changes: Any) -> admission.Cause:
    """Return the cause of an Xid on the member's GPU."""
    defaults: dict[str, Any] = {"code": "Xid31", "message": "Xid 31 on GPU-0", "happened_at": 0.0, "device": GPU}
    return admission.Cause(**defaults | changes)


def step_result(number: int = 0, *, phase: StepPhase = StepPhase.STOPPED, round_name: str = "team/r1") -> StepResult:
    """Return a member's state in a round."""
    return StepResult(round=round_name, pod=ref(number), phase=phase, seconds={"stop": 0.02}, unheld_seconds=0.001)


def pod_of(number: int) -> pb.Pod:
    """Return the member with that number as the wire's pod."""
    of = ref(number)
    return pb.Pod(namespace=of.namespace, name=of.name, uid=of.uid)


def stop(*numbers: int, round_name: str = "team/r1", **changes: Any) -> pb.Stop:
    """Return an order to stop these members."""
    defaults: dict[str, Any] = {"attempt": 1, "cause_code": "Exit1", "cause_message": "died", "hold_seconds": 30.0}
    orders = [pb.Order(pod=pod_of(number)) for number in numbers]
    return pb.Stop(round=round_name, orders=orders, **defaults | changes)
