"""Compute the load of each GPU from the readings of a poll. Pure."""

from collections.abc import Mapping

from kubemend.agent.health.gpu.readings import Vital, Vitals
from kubemend.agent.model.devices import DeviceId, Load
from kubemend.agent.sources.nvml.protocol import Snapshot

_PERCENT = 0.01


def of(snapshot: Snapshot) -> Mapping[DeviceId, Load]:
    """Return the load of each GPU that answers; unavailable values are None."""
    return {
        slot.gpu.uuid: _load(slot.vitals) for slot in snapshot.slots if slot.gpu is not None and slot.vitals is not None
    }


def _load(vitals: Vitals) -> Load:
    used = vitals.get(Vital.UTILIZATION)
    return Load(
        utilization=used * _PERCENT if used is not None else None,
        clock=_ratio(vitals.get(Vital.SM_CLOCK), vitals.get(Vital.SM_CLOCK_MAX)),
        power=_ratio(vitals.get(Vital.POWER), vitals.get(Vital.POWER_LIMIT)),
    )


def _ratio(value: int | None, highest: int | None) -> float | None:
    return value / highest if value is not None and highest else None
