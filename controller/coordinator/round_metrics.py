"""Count a round's end, and the GPUs that were idle until then."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kubemend.controller.metrics import Metrics
from kubemend.controller.model.members import PodUid, Sample
from kubemend.controller.rounds.states import MemberState, Round


class Gpus:
    """How many GPUs each member holds, as its agent measures them. MIG instances are not measured."""

    def __init__(self) -> None:
        self._held: dict[PodUid, int] = {}

    def record(self, samples: Iterable[Sample]) -> None:
        """Record one agent's measurements; they contain all devices of a member."""
        devices: dict[PodUid, set[str]] = {}
        for sample in samples:
            devices.setdefault(sample.pod, set()).add(sample.device)
        self._held |= {pod: len(held) for pod, held in devices.items()}

    def forget(self, *, unless: Callable[[PodUid], bool]) -> None:
        """Forget deleted pods."""
        self._held = {pod: count for pod, count in self._held.items() if unless(pod)}

    def of(self, members: Iterable[MemberState]) -> int:
        """Return how many GPUs a gang holds. A pod and its replacement count once."""
        slots: dict[str, int] = {}
        for one in members:
            slot = one.member.slot
            slots[slot] = max(slots.get(slot, 0), self._held.get(one.member.pod.uid, 0))
        return sum(slots.values())


def count_end(ended: Round, status: Mapping[str, Any], *, metrics: Metrics, gpus: Gpus) -> None:
    """Count a round that has ended with this status."""
    assert ended.ended is not None
    phase, timings = ended.phase.value, status.get("timings", {})
    metrics.rounds.labels(phase).inc()
    if "totalMilliseconds" in timings:
        metrics.round_seconds.labels(phase).observe(timings["totalMilliseconds"] / 1000)
    to_decide = max(ended.started_at - ended.cause.at, 0.0)
    metrics.round_steps.labels("decide").observe(to_decide)
    for step in ("stop", "release"):
        if f"{step}Milliseconds" in timings:
            metrics.round_steps.labels(step).observe(timings[f"{step}Milliseconds"] / 1000)
    if held := gpus.of(ended.members.values()):
        metrics.round_gpus.labels(phase).inc(held)
        metrics.round_gpu_seconds.labels(phase).inc(held * (to_decide + ended.ended))
