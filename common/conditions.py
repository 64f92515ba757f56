"""Types of pod conditions that the agent and the controller both set."""

from typing import Final

DEVICE_FAILURE: Final = "kubemend.io/DeviceFailure"
"""True only when the pod must move: a Job's podFailurePolicy may tell it from the workload's own failures by that."""
DISRUPTION_TARGET: Final = "DisruptionTarget"
"""Kubernetes' own: the pod is about to be ended through no fault of its own (KEP-3329)."""
