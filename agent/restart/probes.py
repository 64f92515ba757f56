"""Compute for how long a container may be frozen before kubelet kills it for its probes. Pure.

A held container answers no probe. Kubelet's rules (pkg/kubelet/prober/worker.go): a probe runs every period from its
initial delay on, counted from the start of the container; after a number of failures in a row the container is killed,
with its grace period, so SIGTERM waits until the container is released. Until a startup probe has succeeded no other
probe runs.
"""

import math
from collections.abc import Iterable
from typing import Final

from kubemend.agent.model.workloads import ContainerSpec, Probe

SHARE: Final = 0.8
"""Maximum share of that time to use: kubelet's clock starts before the agent's."""
SHORTEST: Final = 5.0
"""Seconds: a hold that would have to be renewed more often than that is left to its probe."""


def patience(spec: ContainerSpec) -> float:
    """Return for how many seconds a container may be held from its start on; infinite if no probe kills it."""
    asked = spec.startup if spec.startup is not None else spec.liveness
    return _first_kill(asked) if asked is not None else math.inf


def longest_hold(specs: Iterable[ContainerSpec]) -> float:
    """Return after how many seconds held containers of these must be restarted; infinite: never."""
    return max(SHARE * min(map(patience, specs), default=math.inf), SHORTEST)


def _first_kill(probe: Probe) -> float:
    """Return the earliest moment of a kill: an unanswered probe fails at once, whatever its timeout."""
    return probe.initial_delay + (probe.failure_threshold - 1) * probe.period
