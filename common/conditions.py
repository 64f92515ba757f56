"""Name the types of pod conditions that both the agent and the controller set."""

from typing import Final

DEVICE_FAILURE: Final = "kubemend.io/DeviceFailure"
"""True only when the pod must move: a Job's podFailurePolicy can use it to distinguish device failures from the
workload's own.
"""
DISRUPTION_TARGET: Final = "DisruptionTarget"
"""The condition type of Kubernetes: the pod is about to be terminated through no fault of its own (KEP-3329)."""
