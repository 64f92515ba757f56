"""For how long may a container stand still before kubelet kills it for its probes? Pure.

What is held answers no probe. Kubelet's rules (pkg/kubelet/prober/worker.go): a probe is asked every period from its
initial delay on, counted from the start of the container; after so many failures in a row the container is killed, with
its grace period, so SIGTERM waits for whoever lets it go. Until a startup probe has succeeded no other is asked.
"""

import math
from collections.abc import Iterable
from typing import Final

from agent.model.workloads import ContainerSpec, Probe

SHARE: Final = 0.8
"""Of that time is used at most: kubelet's clock starts before ours."""
SHORTEST: Final = 5.0
"""Seconds: what is to be begun anew more often than that is left to its probe."""


def patience(spec: ContainerSpec) -> float:
    """Return for how many seconds a container may be held from its start on; infinite where no probe kills it."""
    asked = spec.startup if spec.startup is not None else spec.liveness
    return _first_kill(asked) if asked is not None else math.inf


def longest_hold(specs: Iterable[ContainerSpec]) -> float:
    """Return after how many seconds what is held of these is to be begun anew; infinite: never."""
    return max(SHARE * min(map(patience, specs), default=math.inf), SHORTEST)


def _first_kill(probe: Probe) -> float:
    """Return the earliest moment of a kill: what nobody listens to fails at once, whatever its timeout is."""
    return probe.initial_delay + (probe.failure_threshold - 1) * probe.period
