"""How members' devices do, as their agents measure it every few seconds."""

from dataclasses import dataclass

from controller.model.members import PodUid


@dataclass(frozen=True, slots=True)
class Sample:
    """One device of one member (coordination/v1 ``DeviceSample``).

    ``utilization`` is 0 to 1, ``clock`` a part of the highest that the device can, ``power`` a part of its limit; each
    is negative where it cannot be told.
    """

    pod: PodUid
    device: str
    utilization: float
    clock: float
    power: float
