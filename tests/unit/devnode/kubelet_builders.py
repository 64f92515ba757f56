"""Pods and runtimes in a few words, for the tests of kubelet's rules."""

from collections.abc import Sequence
from typing import Any

from agent.model.workloads import ContainerState
from hack.devnode.kubelet import hashing
from hack.devnode.kubelet.observed import Observed, Runtime, Sandbox
from hack.devnode.kubelet.spec import Container, Json, Pod

CREATED, RUNNING, EXITED, UNKNOWN = (
    ContainerState.CREATED,
    ContainerState.RUNNING,
    ContainerState.EXITED,
    ContainerState.UNKNOWN,
)
IMAGE = "image"


def container(name: str, **fields: Any) -> Json:
    return {"name": name, "image": IMAGE, **fields}


def sidecar(name: str, **fields: Any) -> Json:
    return container(name, restartPolicy="Always", **fields)


def rule(action: str, *codes: int, operator: str = "In") -> Json:
    return {"action": action, "exitCodes": {"operator": operator, "values": list(codes)}}


def pod(*mains: Json, inits: Sequence[Json] = (), policy: str = "Always", deleting: bool = False, **spec: Any) -> Pod:
    metadata = {"namespace": "ns", "name": "p", "uid": "u", **({"deletionTimestamp": "now"} if deleting else {})}
    body = {"restartPolicy": policy, "initContainers": list(inits), "containers": list(mains), **spec}
    return Pod.parse({"metadata": metadata, "spec": body})


def seen(name: str, state: ContainerState, *, attempt: int = 0, exit_code: int = 0, **fields: Any) -> Observed:
    """A container of the runtime; its attempt is also its age and part of its id."""
    values: dict[str, Any] = {
        "id": f"{name}-{attempt}",
        "name": name,
        "state": state,
        "created_at": attempt + 1,
        "restart_count": attempt,
        "exit_code": exit_code,
        "hash": hashing.container_hash(Container.parse(container(name), init=False)),
        "sandbox_id": "s-0",
    }
    return Observed(**{**values, **fields})


def runtime(*containers: Observed, ready: bool = True, ip: str = "10.0.0.1") -> Runtime:
    """A runtime with one sandbox."""
    sandbox = Sandbox(id="s-0", ready=ready, attempt=0, created_at=1, ip=ip)
    return Runtime.of(containers=list(containers), sandboxes=[sandbox])
