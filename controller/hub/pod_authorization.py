"""Restrict each node to reports about the pods that are bound to it. Pure."""

import enum
from collections.abc import Callable
from dataclasses import dataclass

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb
from kubemend.controller.model.members import NodeName, PodUid

NodeOf = Callable[[PodUid], NodeName | None]
"""``ports.Pods.node_of``."""


class Claim(enum.Enum):
    """Whether a node may report about a pod."""

    OURS = enum.auto()
    FOREIGN = enum.auto()
    UNKNOWN = enum.auto()
    """No such pod is known, or it is not bound yet: the agent may see it before the controller's Informer."""


def judge(uid: str, *, node: NodeName, node_of: NodeOf) -> Claim:
    """Return whether a node may report about a pod."""
    bound = node_of(PodUid(uid))
    if bound is None:
        return Claim.UNKNOWN
    return Claim.OURS if bound == node else Claim.FOREIGN


def subject(message: pb.AgentMessage) -> str:
    """Return the UID of the one pod that a fault or result is about."""
    match message.WhichOneof("body"):
        case "fault":
            return message.fault.pod.uid
        case "result":
            return message.result.pod.uid
        case body:
            raise ValueError(f"{body} is not about one pod")


@dataclass(frozen=True, slots=True)
class Sorted:
    """A Hello reduced to the node's own pods.

    ``unknown`` are the results of unknown pods, each as a message that could come later; ``foreign`` counts those of
    other nodes' pods.
    """

    hello: pb.Hello
    unknown: tuple[pb.AgentMessage, ...] = ()
    foreign: int = 0


def sort_hello(hello: pb.Hello, *, node: NodeName, node_of: NodeOf) -> Sorted:
    """Remove the pods that are not known to be the node's from a Hello."""
    claims = [judge(result.pod.uid, node=node, node_of=node_of) for result in hello.results]
    if all(claim is Claim.OURS for claim in claims):
        return Sorted(hello)
    ours = pb.Hello()
    ours.CopyFrom(hello)
    del ours.results[:]
    unknown = []
    for result, claim in zip(hello.results, claims, strict=True):
        if claim is Claim.OURS:
            ours.results.append(result)
        elif claim is Claim.UNKNOWN:
            unknown.append(pb.AgentMessage(result=result))
    return Sorted(ours, tuple(unknown), claims.count(Claim.FOREIGN))


def sort_samples(samples: pb.Samples, *, node: NodeName, node_of: NodeOf) -> tuple[pb.Samples, int]:
    """Return the samples of the node's own pods, and how many were about other nodes' pods.

    Samples of unknown pods are dropped: newer ones arrive in a few seconds.
    """
    pods = {sample.pod_uid for sample in samples.devices}  # few: a pod has all devices of the node, or some
    claims = {pod: judge(pod, node=node, node_of=node_of) for pod in pods}
    if all(claim is Claim.OURS for claim in claims.values()):
        return samples, 0
    ours = (sample for sample in samples.devices if claims[sample.pod_uid] is Claim.OURS)
    foreign = sum(claims[sample.pod_uid] is Claim.FOREIGN for sample in samples.devices)
    return pb.Samples(devices=ours), foreign
