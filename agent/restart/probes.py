"""Compute when kubelet kills a container for its probes: one that is held, or one that has replaced another. Pure.

A held container answers no probe. Kubelet's rules (pkg/kubelet/prober/worker.go): a probe runs every period from its
initial delay on, counted from the start of the container; after a number of failures in a row the container is killed,
with its grace period, so SIGTERM waits until the container is released. Until a startup probe has succeeded no other
probe runs, except as in ``liveness_may_act_first``.
"""

import math
from collections.abc import Iterable
from typing import Final

from kubemend.agent.model.workloads import ContainerSpec, Probe

SHARE: Final = 0.8
"""Maximum share of that time to use: kubelet's clock starts before the agent's."""
SHORTEST: Final = 5.0
"""Seconds: a hold that would have to be renewed more often than that is left to its probe."""
LATE: Final = 2.0
"""Seconds that kubelet may take, on a busy node, from a turn of a probe to the status that it leads to."""


def max_hold_seconds(spec: ContainerSpec) -> float:
    """Return how many seconds after its start a probe kills a held container; infinite if none does."""
    asked = [spec.startup if spec.startup is not None else spec.liveness]
    if liveness_may_act_first(spec):
        asked.append(spec.liveness)
    return min((_first_kill(probe) for probe in asked if probe is not None), default=math.inf)


def longest_hold(specs: Iterable[ContainerSpec]) -> float:
    """Return after how many seconds held containers of these must be restarted; infinite: never."""
    return max(SHARE * min(map(max_hold_seconds, specs), default=math.inf), SHORTEST)


def liveness_may_act_first(spec: ContainerSpec) -> bool:
    """Return whether kubelet may kill a successor by its liveness probe before the startup probe has begun.

    A successor that runs before kubelet has seen its predecessor dead inherits ``started`` from it (Kubernetes 1.36,
    ``convertToAPIContainerStatuses`` in pkg/kubelet/kubelet_pods.go). It loses it at the next turn of the startup probe
    (``doProbe`` in pkg/kubelet/prober/worker.go), which is up to one period away. Until then liveness is probed.
    """
    if spec.startup is None or spec.liveness is None:
        return False
    return _first_kill(spec.liveness) < spec.startup.period + LATE


def _first_kill(probe: Probe) -> float:
    """Return the earliest moment of a kill, which assumes that each probe fails at once, before its timeout."""
    return probe.initial_delay + (probe.failure_threshold - 1) * probe.period
