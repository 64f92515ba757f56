"""Build the training pod of demo, benchmarks and scenarios: an init container, a sidecar, and a trainer on GPUs.

The trainer counts steps into a checkpoint on a volume and logs the step from which it resumed, so that an outside
observer can see what a restart kept and what it ran again.
"""

from collections.abc import Mapping
from typing import Any

from hack.devnode import images

CHECKPOINTS = "/checkpoints"
OVERLAPS = "overlaps"
"""The file on the volume in which a container records that another one of its name still ran when it began."""

RESTARTS_ALL_ON_KILL: Mapping[str, Any] = {
    "restartPolicy": "Never",
    "restartPolicyRules": [{"action": "RestartAllContainers", "exitCodes": {"operator": "In", "values": [137]}}],
}
"""Fields of a container whose kill makes kubelet restart its whole pod (KEP-5532)."""

SIDECAR = "while true; do echo tick; sleep 1; done"
TRAIN = f"""
step=$(cat {CHECKPOINTS}/step 2>/dev/null || echo 0)
echo "resumed from step $step, restart ${{KUBEMEND_RESTART_COUNT:-0}} ${{KUBEMEND_RESTART_REASON:-}}"
while true; do
  step=$((step + 1))
  echo $step > {CHECKPOINTS}/step.new && mv {CHECKPOINTS}/step.new {CHECKPOINTS}/step
  sleep 0.05
done
"""
_INIT = f"echo run >> {CHECKPOINTS}/init-runs"


def manifest(
    name: str,
    *,
    node: str,
    gpus: int = 2,
    restart_policy: str = "OnFailure",
    annotations: Mapping[str, str] | None = None,
    sidecar: bool = True,
    script: str = TRAIN,
) -> dict[str, Any]:
    """Return the pod, bound to a node and opted in to restarts in place unless ``annotations`` override that."""
    volume = [{"name": "checkpoints", "mountPath": CHECKPOINTS}]
    init = [{"name": "prepare", **_shell(_INIT), "volumeMounts": volume}]
    if sidecar:
        init.append({"name": "shipper", **_shell(SIDECAR), "restartPolicy": "Always", "volumeMounts": volume})
    trainer: dict[str, Any] = {"name": "trainer", **_shell(script), "volumeMounts": volume}
    if gpus:
        trainer["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": "default",
            "annotations": {"kubemend.io/restart": "InPlace"} if annotations is None else dict(annotations),
        },
        "spec": {
            "nodeName": node,
            "restartPolicy": restart_policy,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "initContainers": init,
            "containers": [trainer],
            "volumes": [{"name": "checkpoints", "emptyDir": {}}],
        },
    }


def leased(script: str, *, name: str, port: int, volume: str = CHECKPOINTS) -> str:
    """Return the script with a check, at its start, that no other container of its name runs in the pod.

    The lease is a port in the pod's network namespace: the kernel frees it when the container's last process has ended,
    not sooner and not later. ``port`` must be the name's own. A container that finds it taken records that in the
    volume, and waits for it.
    """
    hold = f"nc -ll -p {port} -e true"
    report = f"echo {name} >> {volume}/{OVERLAPS}"
    return f"({hold} || {{ {report}; until {hold}; do sleep 0.1; done; }}) 2>/dev/null &\n{script}"


def _shell(script: str) -> dict[str, Any]:
    return {
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
    }
