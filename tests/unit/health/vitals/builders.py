"""Short builders for polls of one GPU."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from kubemend.agent.health.gpu import fold
from kubemend.agent.health.gpu.limits import Limits
from kubemend.agent.health.gpu.readings import Key, Vital, Vitals
from kubemend.agent.model.findings import FindingKind

PERIOD = 30.0  # seconds between two polls
LIMITS = Limits()

LINKS = 4
AT_WORK: Mapping[Vital, int] = {
    Vital.RECOVERY_ACTION: 0,
    Vital.MIG_MODE: 0,
    Vital.REMAP_PENDING: 0,
    Vital.REMAP_FAILED: 0,
    Vital.CLOCKS_EVENT_REASONS: 0,
    Vital.TEMPERATURE: 60,
    Vital.TEMPERATURE_MARGIN: 25,
    Vital.MEMORY_TEMPERATURE: 70,
    Vital.UTILIZATION: 100,
    Vital.SM_CLOCK: 1980,
    Vital.PSTATE: 0,
    Vital.SLOWDOWN_TEMPERATURE: 87,
    Vital.SLOWDOWN_MARGIN: -2,
    Vital.MEMORY_MAX_TEMPERATURE: 95,
    Vital.SM_CLOCK_MAX: 1980,
    Vital.RETIREMENT_PENDING: 0,
    Vital.ECC_CORRECTED: 12_000,  # boards carry counts from their production
    Vital.ECC_UNCORRECTED: 0,
    Vital.ECC_UNCORRECTED_DRAM: 0,
    Vital.ECC_UNCORRECTED_SRAM: 0,
    Vital.SRAM_THRESHOLD: 0,
    Vital.FABRIC_STATE: 3,
    Vital.FABRIC_STATUS: 0,
    Vital.FABRIC_HEALTH: 0x1AA,  # each 2-bit field is "no", the configuration has no fault
    Vital.PCIE_GENERATION: 5,
    Vital.PCIE_GENERATION_MAX: 5,
    Vital.PCIE_WIDTH: 16,
    Vital.PCIE_WIDTH_MAX: 16,
    Vital.PCIE_REPLAYS: 9_000,
    Vital.PCIE_CORRECTABLE: 9_000,
    Vital.PCIE_FATAL: 3,
}
PER_LINK: Mapping[Vital, int] = {
    Vital.NVLINK_ACTIVE: 1,
    Vital.NVLINK_REPLAYS: 5_000,
    Vital.NVLINK_RECOVERIES: 70,
}
HEALTHY = Vitals(
    values={
        **{(vital, 0): value for vital, value in AT_WORK.items()},
        **{(vital, link): value for link in range(LINKS) for vital, value in PER_LINK.items()},
    },
    full=True,
)


def but(changes: Mapping[Vital, int], *, link: int = 0, of: Vitals = HEALTHY) -> Vitals:
    """Return the poll with these values instead."""
    return replace(of, values={**of.values, **{(vital, link): value for vital, value in changes.items()}})


def without(*vitals: Vital, of: Vitals = HEALTHY) -> Vitals:
    """Return the poll without these values: this GPU does not have them."""
    return replace(of, values={key: value for key, value in of.values.items() if key[0] not in vitals})


def failing(code: int, *keys: Key, of: Vitals = HEALTHY) -> Vitals:
    """Return the poll with these readings failed."""
    values = {key: value for key, value in of.values.items() if key not in keys}
    return replace(of, values=values, errors={**of.errors, **dict.fromkeys(keys, code)})


AT_REST = but(
    {
        Vital.UTILIZATION: 0,
        Vital.SM_CLOCK: 345,
        Vital.CLOCKS_EVENT_REASONS: 1,
        Vital.PCIE_GENERATION: 1,
        Vital.PCIE_WIDTH: 8,
        Vital.TEMPERATURE: 30,
        Vital.TEMPERATURE_MARGIN: 57,
    }
)


@dataclass(frozen=True)
class Emitted:
    """When a kind began or was over."""

    at: float
    kind: FindingKind
    begins: bool
    code: str = ""
    text: str = ""


class Watched:
    """A GPU under watch."""

    def __init__(self, *, limits: Limits = LIMITS) -> None:
        self.limits = limits
        self.now = 1000.0
        self.state = fold.GpuVitals()
        self.emitted: list[Emitted] = []

    def poll(self, vitals: Vitals, *, seconds: float = 0.0, period: float = PERIOD) -> list[Emitted]:
        """Poll for so long (once at least) and return the notices emitted in that time."""
        before, end = len(self.emitted), self.now + seconds
        while True:
            self.now += period
            self.state, notices = fold.fold(self.state, vitals, now=self.now, limits=self.limits)
            self.emitted += [self._emitted(notice) for notice in notices]
            if self.now >= end:
                return self.emitted[before:]

    def of(self, kind: FindingKind) -> list[bool]:
        """Return whether it began (True) or was over (False), in order of emission."""
        return [emitted.begins for emitted in self.emitted if emitted.kind is kind]

    def _emitted(self, notice: fold.Notice) -> Emitted:
        if notice.kind is FindingKind.FAULT_OVER:
            return Emitted(self.now, FindingKind(notice.code), begins=False)
        return Emitted(self.now, notice.kind, begins=True, code=notice.code, text=notice.text)


def begun(emitted: Iterable[Emitted]) -> list[FindingKind]:
    """Return the kinds that began."""
    return [each.kind for each in emitted if each.begins]
