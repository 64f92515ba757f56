"""Valid messages of agents."""

from kubemend.common.pb.coordination.v1 import coordination_pb2 as pb


def pod(uid: str = "uid-1") -> pb.Pod:
    return pb.Pod(namespace="train", name=f"pod-{uid}", uid=uid)


def hello(*uids: str, node: str = "node-1") -> pb.AgentMessage:
    """Return a Hello with a result of each of these pods."""
    results = [step(uid) for uid in uids]
    return pb.AgentMessage(hello=pb.Hello(protocol=1, node=node, epoch=1, results=results))


def fault(uid: str = "uid-1", *, id: str = "fault-1") -> pb.AgentMessage:  # noqa: A002 - the field's name
    return pb.AgentMessage(
        fault=pb.Fault(
            id=id,
            pod=pod(uid),
            gang="train/JobSet/llm",
            container="trainer",
            kind=pb.Fault.DEVICE,
            code="Xid31",
            message="GPU 3 faulted\n",
            action_class="RestartApp",
            device="GPU-1",
            age_seconds=0.5,
        )
    )


def step(uid: str = "uid-1", *, round: str = "train/llm-1") -> pb.StepResult:  # noqa: A002 - the field's name
    return pb.StepResult(
        round=round,
        pod=pod(uid),
        phase=pb.StepResult.STOPPED,
        reason="Killed",
        seconds={"stop": 0.01, "create": 0.02},
        unheld_seconds=0.003,
    )


def result(uid: str = "uid-1", *, round: str = "train/llm-1") -> pb.AgentMessage:  # noqa: A002 - the field's name
    return pb.AgentMessage(result=step(uid, round=round))


def samples(*uids: str) -> pb.AgentMessage:
    devices = [pb.DeviceSample(pod_uid=uid, device="GPU-1", utilization=0.9, clock=1, power=-1) for uid in uids]
    return pb.AgentMessage(samples=pb.Samples(devices=devices))


ALL = {
    "hello": hello("uid-1", "uid-2"),
    "fault": fault(),
    "result": result(),
    "samples": samples("uid-1", "uid-2"),
}
