"""Define a healthy GPU of the fake NVML: an idle H100 with all of its NVLinks up."""

from typing import Any

from hack.fakenvml import layout

GIB = 1 << 30

RECOVERY_ACTION_FIELD = 230
MEMORY_TEMPERATURE_FIELD = 82
PCIE_FIELDS = range(173, 184)
PCIE_SINCE_BOOT = {175: 2, 176: 2, 177: 2}
"""Errors of receiver, TLPs and NAKs sent that an H100 counted before its first use."""

POWER_FIELD, POWER_LIMIT_FIELD, SLOWDOWN_MARGIN_FIELD = 186, 190, 194
ALL_EVENTS = 0xFF9F

_UNSIGNED_INT, _SIGNED_INT = 1, 5  # NVML_VALUE_TYPE_*
_NOT_SUPPORTED = 3
_SLOWDOWN_MARGIN = -2 & layout.NOT_AVAILABLE  # as SLOWDOWN_MARGIN in fakenvml.c
_FABRIC_COMPLETED = 3  # NVML_GPU_FABRIC_STATE_COMPLETED
_FABRIC_ALL_FALSE = 0xAA  # each 2-bit field of the health mask: 2 is "no", 0 would be "not supported"
_FABRIC_HEALTHY = 1  # NVML_GPU_FABRIC_HEALTH_SUMMARY_HEALTHY


def gpu(number: int, *, uuid: str, bus: int, present: bool) -> Any:
    """Return a healthy GPU of that number."""
    made = layout.Gpu(
        name=b"NVIDIA H100 80GB HBM3",
        uuid=uuid.encode(),
        serial=f"16539230{number:05d}".encode(),
        memory_total=80 * GIB,
        memory_used=0,
        supported_events=ALL_EVENTS,
        clocks_event_reasons=1,  # GpuIdle
        present=int(present),
        bus=bus,
        minor=number,
        persistence=1,
        temperature=32 + number,
        slowdown_temperature=89,
        memory_max_temperature=95,
        power_mw=70_000,
        sm_clock=345,
        sm_clock_max=1980,
        pcie_generation=5,
        pcie_generation_max=5,
        pcie_width=16,
        pcie_width_max=16,
        fabric_state=_FABRIC_COMPLETED,
        fabric_mask=_FABRIC_ALL_FALSE,
        fabric_summary=_FABRIC_HEALTHY,
        link_results=(0, 0, _NOT_SUPPORTED, _NOT_SUPPORTED),  # the last two are NVLink 5's
    )
    for link in made.links:
        link.present = link.active = 1
    made.fields[0] = layout.Field(id=RECOVERY_ACTION_FIELD, type=_UNSIGNED_INT)
    made.fields[1] = layout.Field(id=MEMORY_TEMPERATURE_FIELD, type=_UNSIGNED_INT, value=40 + number)
    for slot, field_id in enumerate(PCIE_FIELDS, start=2):
        made.fields[slot] = layout.Field(id=field_id, type=_UNSIGNED_INT, value=PCIE_SINCE_BOOT.get(field_id, 0))
    made.fields[13] = layout.Field(id=POWER_FIELD, type=_UNSIGNED_INT, value=made.power_mw)
    made.fields[14] = layout.Field(id=POWER_LIMIT_FIELD, type=_UNSIGNED_INT, value=700_000)
    made.fields[15] = layout.Field(id=SLOWDOWN_MARGIN_FIELD, type=_SIGNED_INT, value=_SLOWDOWN_MARGIN)
    return made
