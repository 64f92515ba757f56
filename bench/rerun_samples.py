"""Hold the counts and times of the rerun benchmark, and compute its printed figures."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from bench import figures
from kubemend.agent.clients.cri.events import ContainerEvent, EventKind
from kubemend.agent.model.workloads import ContainerId


@dataclass
class Samples:
    """Hold durations in seconds, and numbers of rounds.

    ``side_by_side`` counts, by container, where two ran at the same time, ``reported`` where the product itself
    reported that an init container had run again, ``bare_lost`` the bare calls that kubelet has spoiled by being
    faster.
    """

    prepare: list[float] = field(default_factory=list)
    reserve: list[float] = field(default_factory=list)
    rerun: list[float] = field(default_factory=list)
    bare: list[float] = field(default_factory=list)
    bare_lost: int = 0
    left_to_kubelet: int = 0
    init_runs: Counter[int] = field(default_factory=Counter)
    started_again: Counter[str] = field(default_factory=Counter)
    side_by_side: Counter[str] = field(default_factory=Counter)
    adopted: Counter[str] = field(default_factory=Counter)
    reported: int = 0
    names_kept: int = 0
    order_kept: int = 0
    counted_once: int = 0
    in_place: int = 0

    def figures(self) -> dict[str, Any]:
        """Return the printed figures."""
        rerun, bare = figures.milliseconds(self.rerun), figures.milliseconds(self.bare)
        return {
            "rounds": len(self.rerun),
            "init_runs_per_round": {str(runs): count for runs, count in sorted(self.init_runs.items())},
            "init_exactly_once": self.init_runs[1],
            "init_again_and_reported": self.reported,
            "started_again": dict(self.started_again),
            "duplicates": self.side_by_side.total(),
            "duplicates_by_container": dict(self.side_by_side),
            "order_kept": self.order_kept,
            "restart_counts_plus_one": self.counted_once,
            "same_pod_ip_and_sandbox": self.in_place,
            "adopted": dict(self.adopted),
            "left_to_kubelet": self.left_to_kubelet,
            "names_left_reserved": self.names_kept,
            "bare_lost": self.bare_lost,
            "prepare_ms": figures.milliseconds(self.prepare),
            "reserve_ms": figures.milliseconds(self.reserve),
            "rerun_ms": rerun,
            "bare_calls_ms": bare,
            "ratio": round(rerun["p50"] / bare["p50"], 3),
        }


def side_by_side(happened: Iterable[ContainerEvent]) -> set[str]:
    """Return the names of which two containers have run at the same time, the old ones apart."""
    running: dict[str, set[ContainerId]] = {}
    found = set()
    for event in happened:
        name, ids = event.container.ref.name, running.setdefault(event.container.ref.name, set())
        if event.kind is EventKind.STARTED:
            ids.add(event.container_id)
            found |= {name} if len(ids) > 1 else set()
        elif event.kind in (EventKind.STOPPED, EventKind.DELETED):
            ids.discard(event.container_id)
    return found
