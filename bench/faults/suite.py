"""List the faults, each with its promise in docs/operations.md ("What it withstands"), and try them."""

import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import structlog

from bench.faults import (
    api_away,
    clock_jumps,
    full_disk,
    hostile_hub,
    hostile_pods,
    huge_pods,
    hung_files,
    kills,
    little_memory,
    long_graces,
    pod_storm,
    runtime_restarts,
    unauthenticated,
    version_skew,
)
from bench.faults.reporting import Kind, Loss, NotTriedError, Reported
from bench.faults.scale import Scale
from bench.faults.stage import Stage

log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Fault:
    """Describe one fault. ``tried`` tries it and records the losses. A ``slow`` one is omitted from a short run."""

    name: str
    promise: str
    tried: Callable[[Stage, Scale, Reported], Awaitable[None]]
    slow: bool = False


FAULTS: Final = (
    Fault("api-server-away", api_away.PROMISE, api_away.tried),
    Fault("runtime-restarted", runtime_restarts.PROMISE, runtime_restarts.tried),
    Fault("clock-jumps", clock_jumps.PROMISE, clock_jumps.tried),
    Fault("disk-full", full_disk.PROMISE, full_disk.tried),
    Fault("pod-storm", pod_storm.PROMISE, pod_storm.tried),
    Fault("hostile-hub-client", hostile_hub.PROMISE, hostile_hub.tried),
    Fault("little-memory", little_memory.PROMISE, little_memory.tried),
    Fault("killed-and-upgraded", kills.PROMISE, kills.tried, slow=True),
    Fault("version-skew", version_skew.PROMISE, version_skew.tried),
    Fault("hostile-pods", hostile_pods.PROMISE, hostile_pods.tried),
    Fault("long-graces", long_graces.PROMISE, long_graces.tried),
    Fault("hung-files", hung_files.PROMISE, hung_files.tried),
    Fault("huge-pods", huge_pods.PROMISE, huge_pods.tried),
    Fault("unauthenticated", unauthenticated.PROMISE, unauthenticated.tried),
)


def chosen(names: Collection[str], *, short: bool) -> tuple[Fault, ...]:
    """Return the faults of these names; without names all, or in a short run all that are not slow."""
    if names:
        return tuple(fault for fault in FAULTS if fault.name in names)
    return tuple(fault for fault in FAULTS if not (short and fault.slow))


async def run(
    stage: Stage,
    faults: Sequence[Fault],
    *,
    scale: Scale,
    directory: Path,
    done: Callable[[dict[str, Any]], None] = lambda _: None,
) -> dict[str, Any]:
    """Try the faults one after another; return the printed figures. ``done`` gets the figures of each as it ends."""
    reported = []
    for fault in faults:
        stage.directory = directory / fault.name
        stage.directory.mkdir(parents=True)
        reported.append((await _reported(stage, fault, scale)).figures(fault=fault.name, promised=fault.promise))
        done(reported[-1])
    return {
        "node": stage.nodes[0].kinds,
        "faults": reported,
        "faults_tried": sum("not_tried" not in each for each in reported),
        "lost": sum(len(each["lost"]) for each in reported),
    }


async def _reported(stage: Stage, fault: Fault, scale: Scale) -> Reported:
    reported, began = Reported(), time.monotonic()
    try:
        await fault.tried(stage, scale, reported)
    except NotTriedError as error:
        reported.not_tried = str(error)
    except Exception as error:  # an error of a trial is a loss; the other faults are tried nevertheless
        log.exception("fault.not_withstood", fault=fault.name)
        reported.lost.append(Loss(Kind.UNREPORTED, f"{type(error).__name__}: {error}"))
    reported.seconds = time.monotonic() - began
    if not reported.checks and not reported.not_tried:
        reported.lost.append(Loss(Kind.UNREPORTED, "nothing was checked"))
    return reported
