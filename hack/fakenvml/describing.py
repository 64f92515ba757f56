"""Describe the fake NVML's state: the output of ``ctl status``."""

from typing import Any

from hack.fakenvml import healthy, layout
from hack.fakenvml.layout import Driver, Fault, Group


def state(state: Any) -> dict[str, object]:
    """Return the whole state, ready for JSON."""
    return {
        "driver": Driver(state.driver).name.lower(),
        "hang": _group_names(state.hang_groups),
        "slow_ms": state.slow_ms,
        "call_cost_us": state.call_cost_us,
        "events": state.event_head,
        "gpus": [_describe(number, gpu) for number, gpu in enumerate(state.gpus) if gpu.uuid],
    }


def _describe(number: int, gpu: Any) -> dict[str, object]:
    return {
        "gpu": number,
        "uuid": gpu.uuid.decode(),
        "present": bool(gpu.present),
        "fault": Fault(gpu.fault).name.lower(),
        "hang": _group_names(gpu.hang_groups),
        "recovery": next(field.value for field in gpu.fields if field.id == healthy.RECOVERY_ACTION_FIELD),
        "readings": {name: getattr(gpu, name) for name in layout.NUMBERS},
        "memory_used": gpu.memory_used,
        "ecc_uncorrected": gpu.ecc_dram[1][0] + gpu.ecc_sram[1][0],
        "remap": {"pending": bool(gpu.remapped[2]), "failure": bool(gpu.remapped[3])},
        "fields": {str(field.id): [field.value, field.result] for field in gpu.fields if field.id},
        "links_down": [number for number, link in enumerate(gpu.links) if link.present and not link.active],
        "errors": {entry.function.decode(): entry.result for entry in gpu.errors if entry.function},
        "processes": [process.pid for process in gpu.processes[: gpu.process_count]],
        "mig": [mig.uuid.decode() for mig in gpu.migs if mig.present],
    }


def _group_names(groups: int) -> list[str]:
    return [str(group.name).lower() for group in Group if group & groups]
