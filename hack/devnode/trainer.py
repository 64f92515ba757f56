"""The pod that demo, benchmarks and scenarios train with: an init container, a sidecar, and a trainer on GPUs.

The trainer counts steps into a checkpoint on a volume and says in its log from which step it resumed, so that what a
restart kept and what it ran again can be told from outside.
"""

from collections.abc import Mapping
from typing import Any

from hack.devnode import images

CHECKPOINTS = "/checkpoints"

_INIT = f"echo run >> {CHECKPOINTS}/init-runs"
_SIDECAR = "while true; do echo tick; sleep 1; done"
_TRAIN = f"""
step=$(cat {CHECKPOINTS}/step 2>/dev/null || echo 0)
echo "resumed from step $step, restart ${{KUBEMEND_RESTART_COUNT:-0}} ${{KUBEMEND_RESTART_REASON:-}}"
while true; do
  step=$((step + 1))
  echo $step > {CHECKPOINTS}/step.new && mv {CHECKPOINTS}/step.new {CHECKPOINTS}/step
  sleep 0.05
done
"""


def manifest(
    name: str,
    *,
    node: str,
    gpus: int = 2,
    restart_policy: str = "OnFailure",
    annotations: Mapping[str, str] | None = None,
    sidecar: bool = True,
    script: str = _TRAIN,
) -> dict[str, Any]:
    """Return the pod, bound to a node and opted in to restarts in place unless ``annotations`` say otherwise."""
    volume = [{"name": "checkpoints", "mountPath": CHECKPOINTS}]
    init = [{"name": "prepare", **_shell(_INIT), "volumeMounts": volume}]
    if sidecar:
        init.append({"name": "shipper", **_shell(_SIDECAR), "restartPolicy": "Always", "volumeMounts": volume})
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


def _shell(script: str) -> dict[str, Any]:
    return {
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
    }
