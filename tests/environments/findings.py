"""The finding pipeline on a node in memory. Restarts are recorded, not executed."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from kubemend.agent import ports
from kubemend.agent.faults.app_faults import AppFaultHandler, Timeouts
from kubemend.agent.faults.finding_queue import FindingQueue
from kubemend.agent.faults.lost_devices import LostDevices
from kubemend.agent.faults.pipeline import FindingPipeline
from kubemend.agent.health.catalog import catalog_file
from kubemend.agent.model.actions import ActionClass
from kubemend.agent.model.findings import FindingKind
from kubemend.agent.model.workloads import ContainerRef
from kubemend.agent.restart import admission
from kubemend.common.coordination import FaultAnswer
from tests.environments.node import NodeEnv

QUICK = Timeouts(root_cause=0.0, twin=0.05, listed=1.0, ask_again=0.01)


@dataclass(kw_only=True)
class FindingEnv(NodeEnv):
    """The pipeline. ``restarts`` receives its requests once the runtime is found.

    ``now`` and ``monotonic`` are the pipeline's clocks; by default a storm is one moment, however slow the machine.
    """

    restarts: Any
    timeouts: Timeouts = QUICK
    settle: float = 0.05
    report_to_hub: Callable[[ContainerRef, admission.Cause], Awaitable[FaultAnswer]] = ports.NO_GANGS.device_lost
    classify: Callable[[FindingKind, str], ActionClass] = lambda *_: ActionClass.NONE
    now: Callable[[], float] = lambda: 200.0
    monotonic: Callable[[], float] = lambda: 50.0
    handler: type[AppFaultHandler] = AppFaultHandler
    knows_pids: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        self.queue = FindingQueue(metrics=self.metrics)
        self.conditions = self.publisher()
        self.faults = self.handler(
            verdict_store=self.verdict_store,
            catalog=self.catalog,
            pods=self.pods,
            devices=self.devices,
            holders=self.holders,
            processes=self.processes,
            access=self.access,
            knows_pids=self.knows_pids,
            timeouts=self.timeouts,
            now=self.now,
        )
        self.engine = FindingPipeline(
            queue=self.queue,
            verdict_store=self.verdict_store,
            publisher=self.conditions,
            faults=self.faults,
            lost=LostDevices(
                verdict_store=self.verdict_store,
                catalog=catalog_file.builtin(),
                faults=self.faults,
                devices=self.devices,
                report_to_hub=self.report_to_hub,
                settle=self.settle,
            ),
            devices=self.devices,
            processes=self.processes,
            metrics=self.metrics,
            classify=self.classify,
            now=self.now,
            monotonic=self.monotonic,
        )
