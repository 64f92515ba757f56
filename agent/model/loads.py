"""The load of a device."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """One reading of one device; None means that the value is unavailable.

    ``utilization`` is the share of the last sample period in which anything ran, ``clock`` the clock as a share of the
    highest, ``power`` the power draw as a share of its limit (which it may exceed for moments).
    """

    utilization: float | None = None
    clock: float | None = None
    power: float | None = None
