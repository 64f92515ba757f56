"""Build the pods of the matrix. Their containers keep a record on a volume and wait without using the processor."""

from typing import Any

from hack.devnode import images
from kubemend.agent.restart.intents import Strategy
from tests.scenarios.matrix.cells import INIT, MAIN, SECOND, SIDECAR, Cell, End, Policy, Shape

DATA = "/data"
HOOKED = "/tmp/post-start"  # in the container's own file system: it records whether this container's hook has run
LAST_WORDS = "the last words of run 1"
GRACE = {End.TERM_0: "10s", End.TERM_1: "10s", End.TERM_137: "2s"}
"""A container that handles SIGTERM ends at once; one that ignores it is waited for until the end of the grace period.
"""

SIGNALS = {End.SELF_0: "USR2", End.SELF_1: "USR1", End.SELF_137: "KILL"}
"""The means by which a test makes a main container end by itself."""

_ON_TERM = {End.TERM_1: "exit 1", End.TERM_137: ""}
_WAIT = "sleep 1000000 & wait"
_MAIN = f"""
n=$(($(wc -l < {DATA}/main-runs) + 1)); echo run >> {DATA}/main-runs
echo "run $n speaks"
[ $n -gt 1 ] || printf '{LAST_WORDS}' > /dev/termination-log
trap 'exit 1' USR1; trap 'exit 0' USR2; trap '%s' TERM
echo up >> {DATA}/main-up
{_WAIT}
"""
_OTHER = f"echo run >> {DATA}/%s-runs; echo speaks; trap 'exit 0' TERM; touch /tmp/up; {_WAIT}"
_RULES = {Policy.NEVER_BUT_137: "Restart", Policy.NEVER_BUT_ALL_ON_137: "RestartAllContainers"}


def manifest(cell: Cell, *, name: str, node: str) -> dict[str, Any]:
    """Return the cell's pod, bound to the node."""
    inits = {
        INIT: _container(INIT, f"echo run >> {DATA}/{INIT}-runs; touch {DATA}/main-runs"),
        SIDECAR: _container(
            SIDECAR,
            _OTHER % SIDECAR,
            restartPolicy="Always",
            startupProbe={"exec": {"command": ["test", "-e", "/tmp/up"]}, "periodSeconds": 1, "failureThreshold": 60},
        ),
    }
    mains = [_container(MAIN, f"touch {DATA}/main-runs" + _MAIN % _ON_TERM.get(cell.end, "exit 0"), **_extras(cell))]
    if cell.shape is Shape.TWO_MAINS:
        mains.append(_container(SECOND, _OTHER % SECOND))
    annotations = {"kubemend.io/restart": "InPlace", "kubemend.io/strategy": cell.strategy.value}
    if cell.end.with_grace:
        annotations["kubemend.io/grace-period"] = GRACE[cell.end]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", "annotations": annotations},
        "spec": {
            "nodeName": node,
            "restartPolicy": "Never" if cell.policy.is_never else cell.policy.value,
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "initContainers": [inits[each] for each in cell.shape.inits],
            "containers": mains,
            "volumes": [{"name": "data", "emptyDir": {}}],
        },
    }


def _extras(cell: Cell) -> dict[str, Any]:
    """Return the main container's specific fields: its rule, its hooks."""
    found: dict[str, Any] = {}
    if action := _RULES.get(cell.policy):
        rule = {"action": action, "exitCodes": {"operator": "In", "values": [137]}}
        found |= {"restartPolicy": "Never", "restartPolicyRules": [rule]}
    if cell.shape is Shape.POST_START:
        found["lifecycle"] = {"postStart": {"exec": {"command": ["sh", "-c", f"echo ran >> {HOOKED}"]}}}
    if cell.shape is Shape.PRE_STOP:
        found["lifecycle"] = {"preStop": {"exec": {"command": ["sh", "-c", f"echo ran >> {DATA}/pre-stop"]}}}
    return found


def whole(strategy: Strategy) -> bool:
    """Return whether the strategy restarts every container of the pod."""
    return strategy is not Strategy.SWAP


def _container(name: str, script: str, **fields: Any) -> dict[str, Any]:
    made = {
        "name": name,
        "image": images.BUSYBOX,
        "imagePullPolicy": "Never",
        "command": ["/bin/sh", "-c", script],
        "volumeMounts": [{"name": "data", "mountPath": DATA}],
    }
    return {**made, **fields}
