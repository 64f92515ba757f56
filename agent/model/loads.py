"""How hard a device works."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Load:
    """One reading of one device; None is "could not be told".

    ``utilization`` is the share of the last sample period in which anything ran, ``clock`` the clock as a share of the
    highest, ``power`` what it draws as a share of its limit (which it may pass for moments).
    """

    utilization: float | None = None
    clock: float | None = None
    power: float | None = None
