"""Read a GPU's vitals, each with its own outcome: the cheap ones in every poll, the others in full polls.

Runs in the worker process only. A value that this GPU or driver does not have is omitted; a failed read is reported
with its nvmlReturn_t. A function missing in the driver's library is called only once (``reader.Reader.ask``).
"""

import ctypes
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from kubemend.agent.health.gpu.readings import Key, Vital, Vitals
from kubemend.agent.sources.nvml.calls import Lost, Outcome, ReadError, ResetRequired, Unsupported, Value

FieldId = int | tuple[int, int]
"""A field of nvmlDeviceGetFieldValues, with its scope (the NVLink) where it has one."""

Reading = tuple[Key, Outcome[int]]

_SM = 1  # NVML_CLOCK_SM
_GPU_SENSOR = 0  # NVML_TEMPERATURE_GPU
_SLOWDOWN, _MEMORY_MAX = 1, 2  # NVML_TEMPERATURE_THRESHOLD_*
_CORRECTED, _UNCORRECTED = 0, 1  # nvmlMemoryErrorType_t
_VOLATILE = 0  # nvmlEccCounterType_t
_DRAM, _SRAM = 2, 7  # nvmlMemoryLocation_t
_LINKS = 36  # NVML_NVLINK_MAX_LINKS
_INVALID_ARGUMENT = 2
_VERSION_MISMATCH = 25  # NVML_ERROR_ARGUMENT_VERSION_MISMATCH

_FIELDS: Mapping[Vital, int] = {Vital.RECOVERY_ACTION: 230, Vital.MEMORY_TEMPERATURE: 82, Vital.POWER: 186}
_MORE_FIELDS: Mapping[Vital, int] = {
    Vital.POWER_LIMIT: 190,
    Vital.SLOWDOWN_MARGIN: 194,
    Vital.PCIE_CORRECTABLE: 173,
    Vital.PCIE_NAKS_RECEIVED: 174,
    Vital.PCIE_RECEIVER: 175,
    Vital.PCIE_BAD_TLP: 176,
    Vital.PCIE_NAKS_SENT: 177,
    Vital.PCIE_BAD_DLLP: 178,
    Vital.PCIE_NON_FATAL: 179,
    Vital.PCIE_FATAL: 180,
    Vital.PCIE_UNSUPPORTED_REQUEST: 181,
    Vital.PCIE_LCRC: 182,
    Vital.PCIE_LANE: 183,
}
_LINK_FIELDS: Mapping[Vital, int] = {  # the first two up to NVLink 4, the others from NVLink 5 on
    Vital.NVLINK_REPLAYS: 161,
    Vital.NVLINK_RECOVERIES: 162,
    Vital.NVLINK_RECEIVE_ERRORS: 208,
    Vital.NVLINK_RECOVERY_EVENTS: 215,
}
_LINK_COUNTERS: Mapping[Vital, int] = {Vital.NVLINK_REPLAYS: 0, Vital.NVLINK_RECOVERIES: 1}  # NVML_NVLINK_ERROR_DL_*


@dataclass(frozen=True, slots=True)
class _Call:
    """A function that returns one number, and its equivalents on older drivers."""

    vital: Vital
    functions: tuple[str, ...]
    arguments: tuple[int, ...] = ()


_CALLS = (
    _Call(
        Vital.CLOCKS_EVENT_REASONS,
        ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
    ),
    _Call(Vital.SM_CLOCK, ("nvmlDeviceGetClockInfo",), (_SM,)),
)
_NEAR = 15
"""Degrees from the slowdown temperature within which every poll reads the margin. That is the dearest call by far:
1.2 ms of an H200's cheap poll of 1.8 ms, while the temperature takes 12 µs.
"""
_MARGIN = _Call(Vital.TEMPERATURE_MARGIN, ("nvmlDeviceGetMarginTemperature",))
_TEMPERATURE = _Call(Vital.TEMPERATURE, ("nvmlDeviceGetTemperature",), (_GPU_SENSOR,))
_MORE_CALLS = (
    _Call(Vital.PSTATE, ("nvmlDeviceGetPerformanceState",)),
    _Call(Vital.RETIREMENT_PENDING, ("nvmlDeviceGetRetiredPagesPendingStatus",)),
    _Call(Vital.ECC_CORRECTED, ("nvmlDeviceGetTotalEccErrors",), (_CORRECTED, _VOLATILE)),
    _Call(Vital.ECC_UNCORRECTED, ("nvmlDeviceGetTotalEccErrors",), (_UNCORRECTED, _VOLATILE)),
    _Call(Vital.ECC_UNCORRECTED_DRAM, ("nvmlDeviceGetMemoryErrorCounter",), (_UNCORRECTED, _VOLATILE, _DRAM)),
    _Call(Vital.ECC_UNCORRECTED_SRAM, ("nvmlDeviceGetMemoryErrorCounter",), (_UNCORRECTED, _VOLATILE, _SRAM)),
    _Call(Vital.PCIE_GENERATION, ("nvmlDeviceGetCurrPcieLinkGeneration",)),
    _Call(Vital.PCIE_GENERATION_MAX, ("nvmlDeviceGetMaxPcieLinkGeneration",)),
    _Call(Vital.PCIE_WIDTH, ("nvmlDeviceGetCurrPcieLinkWidth",)),
    _Call(Vital.PCIE_WIDTH_MAX, ("nvmlDeviceGetMaxPcieLinkWidth",)),
    _Call(Vital.PCIE_REPLAYS, ("nvmlDeviceGetPcieReplayCounter",)),
    _Call(Vital.SLOWDOWN_TEMPERATURE, ("nvmlDeviceGetTemperatureThreshold",), (_SLOWDOWN,)),
    _Call(Vital.MEMORY_MAX_TEMPERATURE, ("nvmlDeviceGetTemperatureThreshold",), (_MEMORY_MAX,)),
    _Call(Vital.SM_CLOCK_MAX, ("nvmlDeviceGetMaxClockInfo",), (_SM,)),
)
_CONSTANT = frozenset(
    {
        Vital.SLOWDOWN_MARGIN,
        Vital.SLOWDOWN_TEMPERATURE,
        Vital.MEMORY_MAX_TEMPERATURE,
        Vital.SM_CLOCK_MAX,
        Vital.POWER_LIMIT,
        Vital.PCIE_GENERATION_MAX,
        Vital.PCIE_WIDTH_MAX,
    }
)
"""Values that full polls read and every poll reports: the references for the other values.

Those that cost a call of their own are read once.
"""


class Gauges:
    """Reads vitals through ``ask`` (one NVML function) and ``fields`` (nvmlDeviceGetFieldValues)."""

    def __init__(
        self,
        *,
        pynvml: ModuleType,
        ask: Callable[..., Outcome[Any]],
        fields: Callable[[object, Sequence[FieldId]], list[Outcome[int]]],
    ) -> None:
        self._pynvml = pynvml
        self._ask = ask
        self._fields = fields
        self._constants: dict[int, dict[Key, int]] = {}  # by index
        self._margins: dict[int, int] = {}  # by index: the last ones read

    def first(self, handle: object) -> dict[Key, Outcome[int]]:
        """Read the fields that show whether the GPU answers at all: one call."""
        return dict(self._numbered(handle, _FIELDS))

    def others(self, index: int, handle: object, *, full: bool) -> dict[Key, Outcome[int]]:
        """Read the rest of what every poll of the GPU at this index reads, and in a full poll everything."""
        readings = dict(self._cheap(handle))
        if full or self._may_be_hot(index, readings[Vital.TEMPERATURE, 0]):
            readings |= self._called(handle, (_MARGIN,))
        if full:
            readings |= self._costly(handle, known=self._constants.get(index, {}))
        return readings

    def vitals(self, index: int, readings: Mapping[Key, Outcome[int]], *, full: bool) -> Vitals:
        """Return the readings of the GPU at this index as plain numbers, with constants from earlier polls."""
        values = {key: outcome.value for key, outcome in readings.items() if isinstance(outcome, Value)}
        constants = self._constants.setdefault(index, {})
        constants.update((key, value) for key, value in values.items() if key[0] in _CONSTANT)
        if (margin := values.get((Vital.TEMPERATURE_MARGIN, 0))) is not None:
            self._margins[index] = margin
        errors = {key: outcome.code for key, outcome in readings.items() if isinstance(outcome, ReadError)}
        return Vitals(values={**constants, **values}, errors=errors, full=full)

    def _may_be_hot(self, index: int, temperature: Outcome[int]) -> bool:
        """Return whether the GPU is, or was at its last margin, near a temperature at which it slows down.

        True where that is unknown.
        """
        constants = self._constants.get(index, {})
        slowdown = constants.get((Vital.SLOWDOWN_TEMPERATURE, 0))
        margin = self._margins.get(index)
        if not slowdown or margin is None or not isinstance(temperature, Value):
            return True
        left = margin - constants.get((Vital.SLOWDOWN_MARGIN, 0), 0)
        return min(slowdown - temperature.value, left) <= _NEAR

    def _cheap(self, handle: object) -> Iterator[Reading]:
        rows = self._ask("nvmlDeviceGetRemappedRows", handle)
        yield (Vital.REMAP_PENDING, 0), _picked(rows, lambda answer: int(answer[2]))
        yield (Vital.REMAP_FAILED, 0), _picked(rows, lambda answer: int(answer[3]))
        used = self._ask("nvmlDeviceGetUtilizationRates", handle)
        yield (Vital.UTILIZATION, 0), _picked(used, lambda answer: int(answer.gpu))
        yield from self._called(handle, (*_CALLS, _TEMPERATURE))

    def _costly(self, handle: object, *, known: Mapping[Key, int]) -> Iterator[Reading]:
        yield from self._called(handle, [call for call in _MORE_CALLS if (call.vital, 0) not in known])
        yield from self._numbered(handle, _MORE_FIELDS)
        yield (Vital.SRAM_THRESHOLD, 0), self._sram_threshold(handle)
        yield from self._fabric(handle)
        yield from self._links(handle)

    def _called(self, handle: object, calls: Sequence[_Call]) -> Iterator[Reading]:
        for call in calls:
            outcome: Outcome[int] = Unsupported()
            for function in call.functions:
                outcome = self._ask(function, handle, *call.arguments)
                if not isinstance(outcome, Unsupported):
                    break
            yield (call.vital, 0), outcome

    def _numbered(self, handle: object, fields: Mapping[Vital, int]) -> Iterator[Reading]:
        outcomes = self._fields(handle, tuple(fields.values()))
        return zip(((vital, 0) for vital in fields), outcomes, strict=True)

    def _sram_threshold(self, handle: object) -> Outcome[int]:
        status = self._pynvml.c_nvmlEccSramErrorStatus_v1_t()
        answered = self._ask("nvmlDeviceGetSramEccErrorStatus", handle, ctypes.byref(status))
        return _picked(answered, lambda _: int(status.bThresholdExceeded))

    def _fabric(self, handle: object) -> Iterator[Reading]:
        """Read the fabric by the newest form of the answer that the driver knows.

        The first two forms include its health.
        """
        answered: Outcome[Any] = Unsupported()
        forms = (self._pynvml.c_nvmlGpuFabricInfo_v3_t, self._pynvml.c_nvmlGpuFabricInfo_v2_t)
        for form in forms:
            info = form()
            answered = self._ask("nvmlDeviceGetGpuFabricInfoV", handle, ctypes.byref(info))
            if not (isinstance(answered, ReadError) and answered.code == _VERSION_MISMATCH):
                break
        if isinstance(answered, Unsupported):
            info = self._pynvml.c_nvmlGpuFabricInfo_t()
            answered = self._ask("nvmlDeviceGetGpuFabricInfo", handle, ctypes.byref(info))
        yield (Vital.FABRIC_STATE, 0), _picked(answered, lambda _: int(info.state))
        yield (Vital.FABRIC_STATUS, 0), _picked(answered, lambda _: int(info.status))
        if isinstance(info, forms):
            yield (Vital.FABRIC_HEALTH, 0), _picked(answered, lambda _: int(info.healthMask))

    def _links(self, handle: object) -> Iterator[Reading]:
        links = []
        for link in range(_LINKS):
            active = self._ask("nvmlDeviceGetNvLinkState", handle, link)
            if isinstance(active, ReadError) and active.code == _INVALID_ARGUMENT:
                break  # this library's maximum
            if not isinstance(active, Unsupported):
                links.append(link)
                yield (Vital.NVLINK_ACTIVE, link), active
        keys = [(vital, link) for link in links for vital in _LINK_FIELDS]
        if not keys:
            return
        outcomes = self._fields(handle, [(_LINK_FIELDS[vital], link) for vital, link in keys])
        for (vital, link), outcome in zip(keys, outcomes, strict=True):
            yield (vital, link), outcome
        if all(isinstance(outcome, Unsupported) for outcome in outcomes):
            for link in links:
                for vital, counter in _LINK_COUNTERS.items():
                    yield (vital, link), self._ask("nvmlDeviceGetNvLinkErrorCounter", handle, link, counter)


def refused(failure: ReadError) -> Vitals:
    """Return the vitals of a GPU that answers every call with this error."""
    return Vitals(errors={(Vital.RECOVERY_ACTION, 0): failure.code})


def read_in_every_poll(readings: Mapping[Key, Outcome[int]]) -> list[Outcome[int]]:
    """Return the readings that every poll has, and that the GPU itself must answer."""
    return [readings[call.vital, 0] for call in (*_CALLS, _TEMPERATURE)]


def failures(readings: Mapping[Key, Outcome[int]]) -> list[Outcome[int]]:
    """Return the readings that prove that the GPU does not work: it is lost, or must be reset."""
    return [outcome for outcome in readings.values() if isinstance(outcome, Lost | ResetRequired)]


def _picked(outcome: Outcome[Any], pick: Callable[[Any], int]) -> Outcome[int]:
    return Value(pick(outcome.value)) if isinstance(outcome, Value) else outcome
