"""Measurements of members' devices, taken by their agents every few seconds."""

from dataclasses import dataclass

from kubemend.controller.model.members import PodUid


@dataclass(frozen=True, slots=True)
class Sample:
    """One device of one member (coordination/v1 ``DeviceSample``).

    ``utilization`` is 0 to 1, ``clock`` a ratio to the device's maximum, ``power`` a ratio to its limit. Each is
    negative if it is not known.
    """

    pod: PodUid
    device: str
    utilization: float
    clock: float
    power: float
